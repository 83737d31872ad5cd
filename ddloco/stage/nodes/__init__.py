"""Actors on a host: opened, started, watched, harmed on purpose and closed."""
