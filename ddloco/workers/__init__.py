"""Workers, which compute: JAX in a separate process, numpy in threads, and a simulation of both."""
