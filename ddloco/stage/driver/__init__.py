"""What drives one actor: the only door between its machine and everything else."""
