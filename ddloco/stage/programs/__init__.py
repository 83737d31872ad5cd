"""Programs of users' actors: how they are written, described, executed and run."""
