"""What people ask of a job: job file, faults, keys, its part of a run folder."""
