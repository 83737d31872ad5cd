"""Tapes after recording: shipped to the syncer, received, cut into segments, and deleted."""
