"""Work as the simulator does it: small arithmetic instead of JAX, without a process."""
