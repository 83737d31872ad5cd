"""Decoupled DiLoCo: learners, syncer, driver and command line.

Machines decide (``machines``), workers compute (``workers``), and the driver (``runtime``) is their
only connection to the outside. See ARCHITECTURE.md for an overview.
"""
