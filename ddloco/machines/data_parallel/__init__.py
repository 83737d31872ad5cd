"""Synchronous data-parallel training, the baseline for comparison with DiLoCo."""
