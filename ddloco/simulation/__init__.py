"""Simulation: the real machines in virtual time, with simulated work, links and failures."""
