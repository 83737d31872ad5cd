"""Both worlds, the real one and the simulated one, do all kinds of work."""

from typing import get_args, get_type_hints

import pytest

from ddloco.job.protocol.work import KINDS
from ddloco.stage.actors.effects import AskedByAll
from ddloco.stage.actors.work_table import Doer
from ddloco.workers.executor import WorkExecutor
from ddloco.workers.simulated.snapshot_sink import SnapshotCapture
from ddloco.workers.simulated.work import SimulatedWork
from ddloco.workers.snapshot_work import SnapshotWork
from ddloco.workers.state_transfer import StateTransfer

REAL = WorkExecutor, StateTransfer, SnapshotWork
SIMULATED = SimulatedWork, SnapshotCapture


@pytest.mark.parametrize("world", [REAL, SIMULATED])
def test_each_world_does_every_kind_of_work_once(world: tuple[type[Doer], ...]):
    """And each method takes the kind that it does."""
    done = [(kind, part, name) for part in world for kind, name in part.kinds.items()]
    wanted = {*KINDS, *get_args(AskedByAll)}
    assert ({kind for kind, *_ in done}, len(done)) == (wanted, len(wanted))
    for kind, part, name in done:
        base = next(each for each in part.__mro__ if name in vars(each))
        assert vars(base)[name].__annotations__["work"] in {kind, kind.__name__}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_says_what_it_reads_makes_and_results_in(kind: type):
    """By the types of its fields, so a handle that is not marked is not among the fields."""
    plain = [
        name for name, hint in get_type_hints(kind, include_extras=True).items() if hint is str
    ]
    assert plain == (["out"] if kind.__name__ == "RunStep" else [])
