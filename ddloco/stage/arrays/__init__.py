"""Arrays beside machines: named, counted, kept in shared memory, put together from pieces."""
