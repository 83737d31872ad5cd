"""Programs of a user's own actors: how they are described, executed and run."""
