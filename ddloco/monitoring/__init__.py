"""Observing a running job from outside: status, metrics, evaluation, the live display."""
