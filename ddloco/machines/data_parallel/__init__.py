"""Synchronous data-parallel training, the baseline that learners are compared with."""
