"""The values of ``outer.optimizer``, behind one interface."""
