"""The snapshot schedules of hostile worlds, and additional requests for snapshots."""

import random
from collections.abc import Sequence

from msgspec.structs import replace

from ddloco.job.config import Job
from ddloco.simulation.world import World
from ddloco.stage.actors.events import SnapshotRequested
from ddloco.stage.files.faults import Fault
from ddloco.stage.files.settings import SnapshotTable

SHARE = 0.3
"""The share of worlds with snapshots; a snapshot of a small world costs as much as some dozens of
its events."""

MBIT_MIN = 0.01
"""Minimum bandwidth of links: with less, the messages of snapshots and everything else do not fit,
and the link lags behind for a long time after the fault has ended."""

TABLES = (
    SnapshotTable(every_s=0.5),
    SnapshotTable(every_s=4.0),
    SnapshotTable(every_s=12.0),
    SnapshotTable(every_steps=6),
)

Asked = tuple[tuple[float, str], ...]
"""Pairs of time and actor."""


def requests(
    seed: int, job: Job, heal_at: float, *, always: bool = False
) -> tuple[SnapshotTable, Asked]:
    """The snapshot schedule, if any, and additional requests; sometimes several at once.

    They have a random stream of their own, so that worlds without snapshots do not change.
    """
    rng = random.Random(f"snapshots {seed}")
    if rng.random() >= SHARE and not always:
        return job.snapshot, ()
    table, asked = rng.choice(TABLES), list[tuple[float, str]]()
    for _ in range(rng.choice([0, 1, 4])):
        at = rng.uniform(0, 1.5 * heal_at)
        asked += [(at, rng.choice(job.names())) for _ in range(rng.choice([1, 1, 1, 6]))]
    return table, tuple(asked)


def not_too_narrow(faults: Sequence[Fault]) -> list[Fault]:
    """The faults with enough bandwidth for snapshots."""
    return [replace(each, mbit=max(each.mbit, MBIT_MIN)) for each in faults]


def ask(world: World, name: str) -> None:
    """Request a snapshot of an actor; does nothing if it does not run."""
    if name in world.nodes and world.nodes[name].present:
        world.tell(world.nodes[name], SnapshotRequested())
