"""What drives an actor: the door to clocks, sockets, files and threads, and what lies behind it."""
