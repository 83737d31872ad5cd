"""User settings: job files, faults, addresses, run folders, and whose runs are trusted."""
