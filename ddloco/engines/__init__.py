"""What an engine needs to run the processes of a job: Slurm, Kubernetes, Ray, or a shell."""
