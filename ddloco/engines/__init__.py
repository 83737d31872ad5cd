"""What engines that place and restart processes need to run a job: Slurm, Kubernetes, a shell."""
