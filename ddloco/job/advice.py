"""Settings for a number of machines, a line and a model; docs/which-settings.md has the reasons.

What decides is the line: a learner sends each of its parameters once an interval, and receives each
once. The interval stays at the usual 24 steps, and the parameters whole, as long as that takes no
more than half of the line; then fewer bits, and then longer intervals, which cost quality.
"""

import math
from typing import NamedTuple

from ddloco.job.config import Outer, SyncTable
from ddloco.job.protocol.compression import BITS, BLOCK, SCALE_BYTES, Format

LINE_SHARE = 0.5
"""The share of a line that syncs may take: the rest is for bursts, returns and others."""

STEP_S = 1.0
"""The duration of a step if it is not known, in seconds; ``ddloco doctor`` measures it."""

WIRES: tuple[Format, ...] = ("float32", "bfloat16", "int8", "int4")
"""From the most bits to the fewest that cost nothing (paper, Table 10)."""

INTERVALS = (24, 48, 96, 192, 500)
"""The usual interval, and longer ones; 500 is DiLoCo's."""

OVERLAP_SHARE = 0.5
"""The share of an interval that a sync may take."""


class Advice(NamedTuple):
    """Settings for a job file, and why; ``mbit`` is what a learner's line must carry in each
    direction."""

    learners: int
    interval: int
    overlap: int
    wire: Format
    mbit: float
    enough: bool

    @property
    def reason(self) -> str:
        bits = f"{bits_of(self.wire):g} bits a parameter"
        said = f"syncs take {self.mbit:,.3g} Mbit/s each way: {bits}, every {self.interval} steps"
        return said if self.enough else f"{said}, which is more than half of the line"


def bits_of(wire: Format) -> float:
    """Return the bits that a parameter takes on the wire, scales included."""
    if wire == "float32":
        return 32.0
    scale = 8 * SCALE_BYTES / BLOCK if wire != "bfloat16" else 0.0
    return BITS[wire] + scale


def advice(learners: int, mbit: float, parameters: float, step_s: float = STEP_S) -> Advice:
    """Return settings for so many machines, each a learner with a line of ``mbit`` Mbit/s each way,
    which is ``math.inf`` within one machine."""
    found = None
    for interval in INTERVALS:
        for wire in WIRES if interval == INTERVALS[0] else WIRES[-1:]:
            needed = parameters * bits_of(wire) / 1e6 / (interval * step_s)
            enough = needed <= LINE_SHARE * mbit
            found = Advice(
                learners, interval, _overlap(needed, mbit, interval), wire, needed, enough
            )
            if enough:
                return found
    assert found is not None, "there are intervals"
    return found


def _overlap(needed: float, mbit: float, interval: int) -> int:
    """How many steps a sync may take: the transfers of one fragment, there and back, and a step."""
    fragments = min(SyncTable().fragments, interval)
    steps = 2 * needed / mbit * interval / fragments
    return min(max(SyncTable().overlap, math.ceil(steps) + 1), int(OVERLAP_SHARE * interval))


def advised_tables(found: Advice) -> dict[str, dict[str, object]]:
    """Return the settings by table, those that differ from the defaults or are worth seeing."""
    outer = Outer()
    tables: dict[str, dict[str, object]] = {
        "job": {"learners": found.learners},
        "sync": {"interval": found.interval, "overlap": found.overlap},
        "outer": {"lr": outer.lr, "momentum": outer.momentum},
    }
    if found.wire != "float32":
        tables["compress"] = {"up": found.wire, "down": found.wire}
    return tables
