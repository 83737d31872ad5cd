"""Examples to run and to read; a package, so that its modules do not conflict with others."""
