"""The state machine of a learner (paper: Algorithm 1)."""
