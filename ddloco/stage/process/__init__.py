"""What every process needs: log, signals, terminal, errors, the user's code by name."""
