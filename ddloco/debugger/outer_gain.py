"""How far outer steps go compared with the contributions, and what that says of momentum. With
Nesterov momentum mu, and merged differences whose correlation falls by rho from one merge of a
fragment to the next, the ratio of lengths is known, so rho can be read from it; and then the gain
in the direction of the differences, lr (1 + mu / (1 - mu rho)), which decides how fast a job learns
and when it diverges."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ddloco.debugger.merge_history import Merge
from ddloco.job.config import Outer

TERMS = 64
"""Earlier merges whose momentum is counted; 0.9 to this power is a thousandth."""

HALVINGS = 40
RHO_MAX = 0.999


class OuterGain(NamedTuple):
    """What the outer steps of a run were like.

    Attributes:
        length: the length of the outer steps as a multiple of the mean length of contributions.
        rho: the correlation of successive merged differences of a fragment that this implies; None
            if it cannot be told: other rules than RDA shorten what they merge, and other optimizers
            than Nesterov's have other laws.
        gain: the effective gain in the direction of the differences; None without ``rho``.
    """

    length: float
    rho: float | None
    gain: float | None
    merges: int


def outer_gain(merges: Sequence[Merge], outer: Outer) -> OuterGain | None:
    """Return what the outer steps were like; None if no merge measured lengths (``sync.band`` 0).
    Merges weigh as much as they moved, so the first ones of a fragment, which have no momentum yet,
    count little."""
    moved = across = 0.0
    count = 0
    for merge in merges:
        norms = [(each.weight, each.norm) for each in merge.contributions]
        known = [(weight, norm) for weight, norm in norms if norm is not None]
        whole = sum(weight for weight, _ in known)
        if not merge.moved or len(known) < len(norms) or not whole:
            continue
        moved += merge.moved
        across += sum(weight * norm for weight, norm in known) / whole
        count += 1
    if not across or not math.isfinite(moved / across):
        return None
    length = moved / across
    if outer.merge != "rda" or outer.optimizer != "nesterov" or not outer.momentum:
        return OuterGain(length, None, None, count)
    rho = _rho(length / outer.lr, outer.momentum)
    return OuterGain(
        length, rho, outer.lr * (1 + outer.momentum / (1 - outer.momentum * rho)), count
    )


def stretch(rho: float, momentum: float) -> float:
    """Return the length of Nesterov steps of rate 1 as a multiple of that of merged differences,
    whose correlation is ``rho`` to the power of the merges between them."""
    shares = [1 + momentum, *(momentum ** (k + 1) for k in range(1, TERMS))]
    squares = sum(
        one * other * rho ** abs(j - k)
        for j, one in enumerate(shares)
        for k, other in enumerate(shares)
    )
    return math.sqrt(max(squares, 0.0))


def _rho(times: float, momentum: float) -> float:
    """The correlation at which steps of rate 1 are so many times as long as the differences."""
    low, high = -RHO_MAX, RHO_MAX
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if stretch(middle, momentum) < times else (low, middle)
    return (low + high) / 2
