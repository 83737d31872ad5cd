"""The values of ``outer.optimizer``, a file each, behind one interface."""
