"""A job that merges nothing says so, and what it waits for."""

import io
import itertools

import pytest
from msgspec.structs import asdict
from rich.console import Console

from ddloco.job.protocol.status import Status
from ddloco.machines.syncer.standstill import NAMES_MAX, REPEAT_S_MAX, STANDSTILL_S, first_names
from ddloco.monitoring.live_display import Board
from ddloco.monitoring.status_view import picture

DEAD_AT_S = 10.0


@pytest.fixture
def stood(World, make_job):
    """A job of two whose quorum is two; one of them dies after ten seconds, and stays away."""
    world = World(make_job(learners=2, fragments=3, interval=3, steps=900, quorum=2))
    world.run(DEAD_AT_S)
    world.kill("learner-1")
    world.run(DEAD_AT_S + 30 * 60.0, events_max=200_000)
    return world


def test_it_is_said_after_a_minute_and_then_less_often(stood):
    """With the time since the last merge, at warning level, and who is missing."""
    told = stood.observed("no merge", "syncer.1")
    first_at, first = told[0]
    assert STANDSTILL_S - 5.0 <= first_at - DEAD_AT_S <= STANDSTILL_S + 5.0
    assert "warning" == first["level"]
    assert "a quorum of 2" in first["reason"]
    assert "nothing new from learner-1.1" in first["reason"]
    waits = [b - a for (a, _), (b, _) in itertools.pairwise(told)]
    assert 2 <= len(waits) <= 8
    assert waits == sorted(waits)
    assert waits[-1] <= REPEAT_S_MAX + 1e-6


def test_every_surface_shows_it(stood):
    """The plain line, the live picture and the status, until something is merged again."""
    (at, fields), *_ = stood.observed("no merge", "syncer.1")
    board = Board(stood.job)
    assert "no merge" not in board.line()
    board.take({"event": "no merge", "actor": "syncer", "at": at, **fields})
    assert "waits for a quorum of 2" in board.line()
    assert "waits for a quorum of 2" in board.troubles[-1]
    status = stood.nodes["syncer"].actor.machine.status(stood.now)
    assert "waits for a quorum of 2" in status.standstill
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(picture(Status(name="x", **asdict(status))))
    assert "waits for a quorum of 2" in console.export_text()
    stood.start("learner-1")
    stood.pass_time(60.0)
    assert "" == stood.nodes["syncer"].actor.machine.status(stood.now).standstill


@pytest.mark.parametrize(
    ("step_s", "interval", "blocking"),
    [(1.0, 3, False), (20.0, 3, False), (70.0, 3, False), (40.0, 60, False), (40.0, 60, True)],
)
def test_a_job_that_merges_says_nothing(World, make_job, step_s, interval, blocking):
    """However long it lasts, and however long its steps and its intervals are."""
    more = {"blocking": True, "quorum": 2} if blocking else {}
    job = make_job(learners=2, fragments=3, interval=interval, steps=4 * interval, **more)
    world = World(job, {"learner-0": step_s, "learner-1": step_s})
    world.run(6 * interval * step_s + 1000.0)
    assert world.over
    assert [] == world.observed("no merge")


def test_a_job_that_stands_says_so_whatever_its_deadlines_are(World, make_job):
    """Learners that leave pulls unanswered lengthen them; a minute stays a minute."""
    world = World(make_job(learners=2, fragments=3, interval=3, steps=900, quorum=2))
    world.run(DEAD_AT_S)
    machine = world.nodes["syncer"].actor.machine
    machine.rounds.pacing.vain = 12
    world.kill("learner-1")
    world.run(DEAD_AT_S + 3 * STANDSTILL_S, events_max=200_000)
    (at, _), *_ = world.observed("no merge", "syncer.1")
    assert at - DEAD_AT_S <= STANDSTILL_S + 10.0


def test_many_learners_are_counted():
    """One line names a few."""
    many = [f"learner-{n}.1" for n in range(20)]
    assert f"{', '.join(many[:NAMES_MAX])} and 12 more" == first_names(many)
    assert "a, b" == first_names(["a", "b"])
