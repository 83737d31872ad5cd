"""The syncer's decisions (paper: Algorithm 2)."""
