"""No machine raises, or ends, whatever its peers say that is well-formed and makes no sense."""

from collections import Counter

import pytest

from ddloco.job.config import job_from
from ddloco.simulation.physics import Physics
from ddloco.workers.simulated.work import leaves_of
from tests.simulation.absurd import Stage

SITES = "decoupled-diloco with a relay"

PLAYS = [
    ("decoupled-diloco", 1, "syncer", "learner-2"),
    ("decoupled-diloco", 1, "learner-0", "syncer"),
    ("decoupled-diloco", 2, "syncer-0", "syncer-1"),
    ("decoupled-diloco", 2, "syncer-1", "syncer-0"),
    ("decoupled-diloco", 2, "syncer-1", "learner-2"),
    ("data-parallel", 1, "syncer", "learner-2"),
    ("elastic-data-parallel", 1, "syncer", "learner-2"),
    ("data-parallel", 1, "learner-0", "syncer"),
    (SITES, 1, "relay-0", "learner-0"),
    (SITES, 1, "relay-0", "syncer"),
    (SITES, 1, "syncer", "relay-0"),
    (SITES, 1, "learner-0", "relay-0"),
]
"""How the job trains, its syncers, who is spoken to, and by whom."""


def play(method: str, syncers: int, target: str, name: str, messages: int, seed: int) -> Counter:
    """What was said in one world."""
    table = {"fragments": 3, "interval": 3, "fragmentation": "tensor"}
    job = job_from(
        {
            "job": {
                "task": "none:none",
                "steps": 10**6,
                "learners": 3,
                "syncers": syncers,
                "method": method.partition(" ")[0],
            },
            "sync": {} if "parallel" in method else table,
            "snapshot": {"every_s": 20.0},
            "relay": {"relay-0": {"learners": ["learner-0", "learner-1"]}}
            if method == SITES
            else {},
        },
        "absurd",
    )
    return Stage(job, Physics(leaves=leaves_of(6)), target, name, seed).play(messages)


@pytest.mark.parametrize(("method", "syncers", "target", "name"), PLAYS)
def test_absurd_messages_raise_nothing(method, syncers, target, name):
    """Some hundreds from each kind of peer to each kind of actor."""
    counts = play(method, syncers, target, name, 900, seed=1)
    assert counts.total() > 600


@pytest.mark.slow
@pytest.mark.parametrize(("method", "syncers", "target", "name"), PLAYS)
def test_a_million_absurd_messages_raise_nothing(method, syncers, target, name):
    """An eighth of them each; three minutes of one core in all."""
    counts = play(method, syncers, target, name, 1_000_000 // len(PLAYS), seed=2)
    assert counts["of an open session"] > 10_000
