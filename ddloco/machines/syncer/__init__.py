"""The state machine of a syncer (paper: Algorithm 2)."""
