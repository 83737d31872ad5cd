"""What runs an actor: the driver, and its access to clocks, sockets, files, threads and signals."""
