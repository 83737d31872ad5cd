"""What any actor is: a machine, its events, its effects, and its part in snapshots. Pure."""
