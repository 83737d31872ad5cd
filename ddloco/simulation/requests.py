"""When snapshots are taken in a hostile world, and who asks for more of them."""

import random
from collections.abc import Sequence

from msgspec.structs import replace

from ddloco.actors.events import SnapshotRequested
from ddloco.config.faults import Fault
from ddloco.config.job import Job, SnapshotTable
from ddloco.simulation.world import World

SHARE = 0.3
"""Of all worlds; a snapshot of a small world costs as much as some dozens of its events."""

MBIT_MIN = 0.01
"""What snapshots say does not fit through less, with all the rest: a line that is told faster than
it can say is behind for as long as it was slow, also when nothing is wrong with it any more."""

TABLES = (
    SnapshotTable(every_s=0.5),
    SnapshotTable(every_s=4.0),
    SnapshotTable(every_s=12.0),
    SnapshotTable(every_steps=6),
)

Asked = tuple[tuple[float, str], ...]
"""When, and who."""


def requests(seed: int, job: Job, heal_at: float) -> tuple[SnapshotTable, Asked]:
    """When snapshots are taken, if at all, and who begins some more; now and then several at once.

    From a stream of its own, so that worlds without snapshots are as they were.
    """
    rng = random.Random(f"snapshots {seed}")
    if rng.random() >= SHARE:
        return job.snapshot, ()
    table, asked = rng.choice(TABLES), list[tuple[float, str]]()
    for _ in range(rng.choice([0, 1, 4])):
        at = rng.uniform(0, 1.5 * heal_at)
        asked += [(at, rng.choice(job.names())) for _ in range(rng.choice([1, 1, 1, 6]))]
    return table, tuple(asked)


def not_too_narrow(faults: Sequence[Fault]) -> list[Fault]:
    """Links that stay wide enough for snapshots."""
    return [replace(each, mbit=max(each.mbit, MBIT_MIN)) for each in faults]


def ask(world: World, name: str) -> None:
    """An actor is asked to begin a snapshot; nobody, if it is not there."""
    if name in world.nodes and world.nodes[name].present:
        world.tell(world.nodes[name], SnapshotRequested())
