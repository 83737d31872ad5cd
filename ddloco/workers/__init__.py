"""What computes: JAX in a process of its own, numpy in threads, and a simulation of both."""
