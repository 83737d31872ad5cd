"""The second run: tapes executed again, every event and every payload compared."""
