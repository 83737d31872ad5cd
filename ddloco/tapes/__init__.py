"""Tapes on their way: shipped to the syncer, received, cut into segments, and let go."""
