"""What simulated learners train: numbers drawn towards targets, and what breaks them."""

from functools import cache
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Wrong = Literal["norm", "sign", "bit"]

FAR = 400.0
"""How far away learners' targets are: further than a small world's steps go, as an optimum of a
large model is. Near by, outer momentum would overshoot it, and learners turn against each other."""

OWN = 0.5
"""Of a learner's target, how much is its own for each part that is everybody's: two learners'
outer gradients have a cosine of about 0.8."""


def spoil(how: Wrong, part: F32, base: F32) -> F32:
    """What broken hardware makes of a fragment that was trained from ``base``."""
    if how == "norm":
        return (base + 1000.0 * (part - base)).astype(np.float32)
    if how == "sign":
        return (base - (part - base)).astype(np.float32)
    spoilt = part.copy()
    # The exponent's bit that stands for 2 to the 16th, of the largest number: above 2 it becomes
    # so many times larger, below it is as good as gone, which nobody can notice.
    spoilt.view(np.uint32)[int(np.argmax(np.abs(spoilt)))] ^= np.uint32(1 << 27)
    return spoilt


@cache
def target(name: str, elements: int) -> F32:
    """Numbers that depend on a name: where a learner's data pulls its parameters."""
    seed = int.from_bytes(xxhash.xxh3_64_digest(name.encode())[:4], "little")
    phase = np.arange(elements, dtype=np.float64) * 0.7 + seed
    return np.sin(phase).astype(np.float32)


@cache
def pull(name: str, elements: int) -> F32:
    """Where a learner is drawn: in large part where everybody is, for the rest by its own data."""
    return (target("everybody", elements) + OWN * target(name, elements)).astype(np.float32)
