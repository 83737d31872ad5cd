"""Actors without I/O: a machine with its links, events, effects and part in snapshots."""
