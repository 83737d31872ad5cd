"""Radial-directional averaging: directions and lengths are averaged apart (paper 3.5, App. D.2)."""

from collections.abc import Sequence
from math import sqrt

from ddloco.machines.outer.merge_rules.rule import MergeRule

DIRECTION_NORM_MIN = 1e-6
"""Below this the mean of unit vectors has no direction. The paper's 1e-12 is never reached in
float32: v and -3v leave a rounding error of 1e-8, which would be scaled to full length."""

NORM_MIN = 1e-30
"""A tensor's change below this counts as zero: weights divided by its norm would leave float32's
range."""


def _factor(weight: float, norm: float) -> float:
    """The weight of the change that makes it the weight of a unit vector."""
    return weight / norm if norm > NORM_MIN else 0.0


def _scale(weights: Sequence[float], norms: Sequence[float], square: float) -> float | None:
    """The average length over that of the sum; None if the directions cancelled."""
    length = sqrt(square)
    if length < DIRECTION_NORM_MIN:
        return None
    return sum(weight * norm for weight, norm in zip(weights, norms, strict=True)) / length


RDA = MergeRule(merges_values=False, factor=_factor, scale=_scale)
