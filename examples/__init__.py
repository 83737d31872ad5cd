"""Examples to run and to read; a package, so that no other project's can be found instead."""
