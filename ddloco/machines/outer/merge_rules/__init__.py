"""How the changes of a tensor become one change: a file for each value of ``outer.merge``."""
