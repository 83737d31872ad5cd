"""Invariants that must hold in every run, checked in simulations and on tapes."""
