"""What a job needs of the hosts of its syncers: bytes a second, memory, disk.

All figures are computed from the settings, the sizes of the fragments and the duration of a step;
none of them is a limit.
"""

import math
from typing import Any

from msgspec import Struct

from ddloco.job.config import Job
from ddloco.job.protocol.compression import compressed_layout
from ddloco.job.protocol.fragment_plan import FragmentPlan

SYNCER_BYTES_S = 1e9
"""What a syncer moves in each direction, in bytes a second, on two cores; see
docs/performance.md."""

STATE_COPIES = 3
"""Copies of the parameters in a learner's state: parameters and two moments of Adam."""

STEP_TAPE_BYTES = 700
REPORT_TAPE_BYTES = 6
TENSOR_TAPE_BYTES = 4
SHARE_TAPE_BYTES = 1500
MERGE_TAPE_BYTES = 340
"""What the tapes of all actors grow by: with each step of a learner, beside so much for each
fragment and each tensor; and with each merge, for each contribution and beside them. Measured on
tapes of the quickstart with 4 and 12 fragments and 2 and 3 learners."""


class Needs(Struct, frozen=True):
    """What a job needs, in bytes; ``shards`` is the number of syncers that carry it.

    Attributes:
        merge_bytes: the contributions of one merge, which are in memory together, as they were
            sent; at most ``transport.memory_gb``, if that is set.
    """

    received_s: float
    sent_s: float
    merge_bytes: int
    shards: int
    tape_h: float
    snapshot_h: float


def wire_bytes(plan: FragmentPlan, form: Any) -> list[int]:
    if form == "float32":  # The parameters whole, in their own dtype.
        return [sum(leaf.nbytes for leaf in fragment) for fragment in plan.fragments]
    count = range(len(plan.fragments))
    return [sum(n for _, (n,), _ in compressed_layout(plan, p, form)) for p in count]


def lines_of(job: Job) -> int:
    """How many send the syncers a contribution of each merge: relays, and learners without one."""
    relayed = sum(len(table.learners) for table in job.relay.values())
    return job.job.learners - relayed + len(job.relay)


def needs_of(
    job: Job, plan: FragmentPlan, *, step_s: float, line_bytes_s: float = SYNCER_BYTES_S
) -> Needs:
    """What a Decoupled DiLoCo job needs if all its learners take part in all merges.

    ``line_bytes_s`` is what one syncer carries in each direction, in bytes a second.
    """
    learners, round_s = job.job.learners, job.sync.interval * step_s
    lines = lines_of(job)
    up, down = wire_bytes(plan, job.compress.up), wire_bytes(plan, job.compress.down)
    contributed = lines * max(up)
    merges_h = 3600 * len(plan.fragments) / round_s
    received_s, sent_s = lines * sum(up) / round_s, lines * sum(down) / round_s
    return Needs(
        received_s=received_s,
        sent_s=sent_s,
        merge_bytes=min(contributed, int(1e9 * job.transport.memory_gb) or contributed),
        shards=max(1, math.ceil(max(received_s, sent_s) / line_bytes_s)),
        tape_h=tape_bytes(
            plan, steps=learners * 3600 / step_s, merges=merges_h, shares=learners * merges_h
        ),
        snapshot_h=_snapshots_h(job, step_s) * (STATE_COPIES * learners + 2) * plan.total_bytes,
    )


def tape_bytes(plan: FragmentPlan, *, steps: float, merges: float, shares: float) -> float:
    """What the tapes of all actors have in the end, in bytes.

    ``steps`` and ``shares`` (contributions) are those of all learners together; ``merges`` are of
    single fragments.
    """
    tensors = sum(len(fragment) for fragment in plan.fragments)
    step = STEP_TAPE_BYTES + REPORT_TAPE_BYTES * len(plan.fragments) + TENSOR_TAPE_BYTES * tensors
    return steps * step + merges * MERGE_TAPE_BYTES + shares * SHARE_TAPE_BYTES


def _snapshots_h(job: Job, step_s: float) -> float:
    if job.snapshot.every_s:
        return 3600 / job.snapshot.every_s
    return 3600 / (job.snapshot.every_steps * step_s) if job.snapshot.every_steps else 0.0


def needs_in_words(job: Job, need: Needs, line_bytes_s: float) -> str:
    said = (
        f"{job.job.learners} learners that all take part: {size(need.received_s)}/s to the syncers "
        f"and {size(need.sent_s)}/s from them, {size(need.merge_bytes)} of memory for the "
        f"contributions of a merge, {size(need.tape_h)} of tapes an hour"
    )
    if need.snapshot_h:
        said += f", {size(need.snapshot_h)} of snapshots an hour"
    return f"{said}; enough for {need.shards} syncers of {size(line_bytes_s)}/s each way"


def size(count: float) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(max(count, 1), 1024)), len(units) - 1)
    return f"{count / 1024**power:.{0 if power == 0 else 1}f} {units[power]}"
