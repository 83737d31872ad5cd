"""The objective of simulated learners: parameters drift to targets; and corruptions of them."""

from functools import cache
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Wrong = Literal["norm", "sign", "bit"]

FAR = 400.0
"""The distance of learners' targets: further than the steps of a small simulation reach, like the
optimum of a large model. With nearer targets the outer momentum would overshoot, and learners'
gradients would point in opposite directions."""

OWN = 0.5
"""The weight of a learner's own target relative to the common one: the outer gradients of two
learners have a cosine of about 0.8."""


def spoil(how: Wrong, part: F32, base: F32) -> F32:
    """A fragment trained from ``base``, as defective hardware would return it."""
    if how == "norm":
        return (base + 1000.0 * (part - base)).astype(np.float32)
    if how == "sign":
        return (base - (part - base)).astype(np.float32)
    spoilt = part.copy()
    # Flips the exponent bit worth 2 to the 16th of the largest number: a number of 2 or more grows
    # by that factor; a smaller one becomes nearly zero, which goes unnoticed.
    spoilt.view(np.uint32)[int(np.argmax(np.abs(spoilt)))] ^= np.uint32(1 << 27)
    return spoilt


@cache
def target(name: str, elements: int) -> F32:
    """An array that depends on a name: the optimum of a learner's data."""
    seed = int.from_bytes(xxhash.xxh3_64_digest(name.encode())[:4], "little")
    phase = np.arange(elements, dtype=np.float64) * 0.7 + seed
    return np.sin(phase).astype(np.float32)


@cache
def pull(name: str, elements: int) -> F32:
    """A learner's optimum: mostly the common target, and partly its own."""
    return (target("everybody", elements) + OWN * target(name, elements)).astype(np.float32)
