"""Decoupled DiLoCo: learners, syncer, driver and command line.

Machines decide (``learner``, ``syncer``), workers compute (``workers``, ``worker``), and the
``driver`` is the only door. See ARCHITECTURE.md for the way through.
"""
