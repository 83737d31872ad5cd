"""How actors reach each other: keys, and endpoints with a job's limits."""
