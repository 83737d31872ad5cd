"""Explains recorded runs from their tapes: what happened, why, and where two runs part."""
