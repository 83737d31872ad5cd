"""The replica machine: one gradient for each version that it is sent, and it waits in between."""

import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Roster, Stop
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.job.protocol.timers import STOP_S_MAX, LeaveDeadline, ProbeDue
from ddloco.job.protocol.work import Differentiate, StepFinished
from ddloco.machines.data_parallel.replica import Replica
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.actors.events import StopRequested, WorkFailed
from ddloco.stage.files.faults import SYNCER
from transport import (
    BULK,
    CONTROL,
    Dial,
    Drop,
    Hangup,
    Keep,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Retire,
    Send,
    SetTimer,
    TimerFired,
)


@pytest.fixture
def job():
    """A data-parallel job."""
    table = {"task": "none:none", "steps": 9, "learners": 2, "method": "data-parallel"}
    return job_from({"job": table}, "test")


@pytest.fixture
def replica(job, leaves):
    """One that has started."""
    machine = Replica(job)
    machine.handle(0.0, Started("learner-0.1", leaves))
    return machine


def said(body, handle=""):
    """A message of the averager."""
    lane = BULK if handle else CONTROL
    return MessageArrived(SYNCER, lane, "syncer.1", 1, 1, {"syncer.1": 5}, body, b"", handle)


def parameters(version, handle=None):
    """The parameters of a version."""
    return said(GlobalFragment(0, version), f"in/{version}" if handle is None else handle)


def done(step, work=None, loss=1.0):
    """A gradient is there."""
    return StepFinished(work or step, step, loss, 8, b"batch")


def test_it_dials_and_waits(job, leaves):
    """Nothing is computed before there are parameters."""
    dial, waits = Replica(job).handle(0.0, Started("learner-0.1", leaves))
    assert (Dial, SYNCER) == (type(dial), dial.peer)
    assert "waiting" == waits.event


def test_parameters_are_answered_with_their_gradient(replica):
    """Held as long as they are needed; said with what it is a gradient of."""
    effects = replica.handle(1.0, parameters(4))
    assert [Keep("in/4"), Keep("out/1"), Differentiate(1, 1, "in/4", "out/1", 5)] == effects
    effects = replica.handle(3.5, done(1))
    gradient = Send(SYNCER, BULK, Contribution(5, 0, 4, 1, 1, 8), "out/1", key="gradient")
    assert [Drop("in/4"), gradient, Drop("out/1")] == effects[:3]
    assert {"step": 1, "loss": 1.0, "tokens": 8, "step_s": 2.5} == effects[4].fields
    assert 5 == len(effects), "it waits for the next parameters"


def test_it_reports_how_its_time_was_spent(replica):
    """When it is linked, and after each gradient: computing, compiling, waiting for parameters."""
    [first] = replica.handle(0.5, PeerJoined(SYNCER, "syncer.1"))
    assert (first.body.step, first.body.spent) == (0, TimeSpent())
    replica.handle(1.0, parameters(0))
    [report] = [e for e in replica.handle(3.0, done(1)) if getattr(e, "key", "") == "progress"]
    assert report.body.spent == TimeSpent(compiling=2.0, parameters=0.5)
    replica.handle(7.0, parameters(1))
    [report] = [e for e in replica.handle(8.0, done(2)) if getattr(e, "key", "") == "progress"]
    assert report.body.spent == TimeSpent(computing=1.0, compiling=2.0, parameters=4.5)
    assert (report.body.step, report.body.trained, report.body.last.loss) == (2, 16, 1.0)


def test_newer_parameters_wait_for_the_gradient_under_way(replica):
    """Only the newest of them; then they are next."""
    replica.handle(1.0, parameters(4))
    assert [Keep("in/5")] == replica.handle(1.5, parameters(5))
    assert [Keep("in/6"), Drop("in/5")] == replica.handle(1.6, parameters(6))
    effects = replica.handle(2.0, done(1))
    assert Differentiate(2, 2, "in/6", "out/2", 7) in effects
    assert Drop("in/6") not in effects


def test_the_same_parameters_again(replica):
    """While their gradient is computed they are nothing new; afterwards it is asked for again."""
    replica.handle(1.0, parameters(4))
    assert [] == replica.handle(1.5, parameters(4, "in/again"))
    replica.handle(2.0, done(1))
    effects = replica.handle(3.0, parameters(4, "in/again"))
    asked = Differentiate(2, 2, "in/again", "out/2", 6)
    assert [Keep("in/again"), Keep("out/2"), asked] == effects


def test_parameters_without_an_array_are_none(replica):
    """A message that lost its payload says nothing."""
    assert [] == replica.handle(1.0, parameters(4, ""))


def test_a_first_loss_that_is_no_number_ends_it(replica):
    """The task is at fault, and this is reported before any step."""
    replica.handle(1.0, parameters(0))
    effects = replica.handle(2.0, done(1, loss=float("nan")))
    assert [Drop("in/0"), Drop("out/1")] == effects[:2]
    hangup, finish = effects[2:]
    assert (Hangup, "bad-input") == (type(hangup), finish.status)
    assert "loss is nan" in finish.reason


def test_a_later_loss_that_is_no_number_is_sent(replica):
    """The coordinator refuses it."""
    replica.handle(1.0, parameters(0))
    replica.handle(2.0, done(1))
    replica.handle(3.0, parameters(1))
    effects = replica.handle(4.0, done(2, loss=float("inf")))
    assert any(isinstance(effect, Send) for effect in effects)


@pytest.mark.parametrize("stop", [StopRequested("enough"), said(Stop(3, "enough"))])
def test_it_finishes_what_it_computes(replica, stop):
    """Then it says goodbye; one that waits does so at once."""
    replica.handle(1.0, parameters(0))
    assert [SetTimer(LeaveDeadline(), 1.2 + STOP_S_MAX)] == replica.handle(1.2, stop)
    *_, hangup, finish, _ = replica.handle(2.0, done(1))
    assert (Hangup(SYNCER, "enough"), Finish("done", "enough")) == (hangup, finish)


def test_it_does_not_wait_for_a_gradient_that_hangs(replica):
    """The job is over."""
    replica.handle(1.0, parameters(0))
    replica.handle(1.2, StopRequested("enough"))
    effects = replica.handle(9.0, TimerFired(LeaveDeadline()))
    assert [Hangup(SYNCER, "enough"), Finish("done", "enough")] == effects


def test_one_that_waits_leaves_at_once(replica):
    """Nothing is under way."""
    effects = replica.handle(1.0, StopRequested("enough"))
    assert [Hangup(SYNCER, "enough"), Finish("done", "enough")] == effects


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (PeerRefused(SYNCER, "protocol differs"), "bad-input"),
        (WorkFailed(1, "task", "no such file"), "bad-input"),
        (WorkFailed(1, "worker", "killed"), "failed"),
        (WorkFailed(1, "later", "away"), "failed"),
    ],
)
def test_what_ends_it(replica, event, status):
    """A refusal, a task that cannot be used, a worker that died."""
    hangup, finish = replica.handle(1.0, event)
    assert (Hangup, status) == (type(hangup), finish.status)


def test_a_lost_link_is_seen_and_waited_for(replica):
    """Its links dial again; the gradient under way continues."""
    replica.handle(1.0, parameters(0))
    [seen] = replica.handle(1.5, PeerLost(SYNCER, "gone"))
    assert Observe("syncer lost", {"reason": "gone", "step": 0}) == seen
    assert any(isinstance(effect, Send) for effect in replica.handle(2.0, done(1)))


def test_a_roster_retires_and_the_rest_is_let_be(replica):
    """What it does not know changes nothing."""
    assert [Retire({"learner-1": 2})] == replica.handle(1.0, said(Roster(3, {"learner-1": 2})))
    assert [] == replica.handle(1.0, TimerFired(ProbeDue()))
    assert [] == replica.handle(1.0, said(Contribution(1, 0, 0, 1, 1, 8)))
