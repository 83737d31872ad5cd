"""The learner's decisions (paper: Algorithm 1)."""
