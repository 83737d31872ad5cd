"""Simulated work: small arithmetic instead of JAX, without a worker process."""
