"""The end of a job: all learners are told, the model is scored and saved, and the wait is
bounded."""

import math

import pytest

from ddloco.job.protocol.messages import Stop
from ddloco.job.protocol.timers import ShutdownDeadline
from ddloco.job.protocol.work import Evaluate, SaveModel
from ddloco.machines.syncer.shutdown import (
    DIVERGED,
    LATE_S,
    SHUTDOWN_S_MAX,
    SHUTDOWN_S_MIN,
    JobShutdown,
)
from ddloco.stage.actors.effects import Finish, Observe
from transport import CONTROL, CancelTimer, Send, SetTimer

PEERS, THETAS = ("learner-0.1", "learner-1.1"), ("theta/0/8", "theta/1/9")


@pytest.fixture
def shutdown():
    """A job that ends well at step 9, after seven merges."""
    return JobShutdown("done", "global step 9", 9, 7, evaluating=41)


def test_nobody_is_told_of_the_end_before_the_model_is_saved(shutdown):
    """All fragments are saved; then stop to each, the evaluation, and the timer."""
    stop = Stop(9, "global step 9")
    assert [SaveModel(42, THETAS, done=True)] == shutdown.begin(THETAS, 42)
    assert shutdown.tell("learner-2.1") == []
    assert [
        *(Send(peer, CONTROL, stop, key="stop") for peer in PEERS),
        Observe("evaluating", {"t": 9}),
        Evaluate(41, THETAS),
        SetTimer(ShutdownDeadline(), 120.0),
    ] == shutdown.announce(100.0, PEERS, 2.0)
    assert shutdown.tell("learner-2.1") == [Send("learner-2.1", CONTROL, stop, key="stop")]


def test_a_syncer_that_comes_after_the_end_waits_for_those_who_do_not_know(shutdown):
    """It says for whom and for how long, and no longer than that somebody may come."""
    shutdown.absent = {"learner-2": None, "relay-0": None}
    shutdown.begin(THETAS, 42)
    *_, seen, timer = shutdown.announce(4.0, (), None)
    assert (seen.event, seen.fields) == (
        "lingers",
        {"for": "learner-2, relay-0", "for_s": LATE_S - 4.0},
    )
    assert SetTimer(ShutdownDeadline(), LATE_S) == timer
    shutdown.result(2.5)
    assert shutdown.leave(0) == []
    shutdown.tell("relay-0.1")
    assert shutdown.leave(0) == []
    shutdown.tell("learner-2.3")
    assert shutdown.leave(0)


@pytest.mark.parametrize(
    ("step_s", "patience"),
    [
        (None, SHUTDOWN_S_MAX),
        (0.0, SHUTDOWN_S_MAX),
        (0.01, SHUTDOWN_S_MIN),
        (2.0, 20.0),
        (99.0, 60.0),
    ],
)
def test_patience_is_ten_steps_within_bounds(shutdown, step_s, patience):
    """Where no step was timed, the longest; never less than three seconds, which are enough where
    nobody is linked."""
    *_, timer = shutdown.announce(100.0, PEERS, step_s)
    *_, alone = shutdown.announce(100.0, (), step_s)
    assert SetTimer(ShutdownDeadline(), 100.0 + SHUTDOWN_S_MIN) == alone
    assert SetTimer(ShutdownDeadline(), 100.0 + patience) == timer


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("members", [0, 2])
def test_it_leaves_when_all_is_done(shutdown, evaluated, saved, patient, members):
    """Scored and saved, and no learner left to wait for, or the wait is over."""
    shutdown.evaluated, shutdown.saved, shutdown.patient = evaluated, saved, patient
    leaves = evaluated and saved and (members == 0 or not patient)
    done = [CancelTimer(ShutdownDeadline()), Finish("done", "global step 9")]
    assert (done if leaves else []) == shutdown.leave(members)


@pytest.mark.parametrize("loss", [2.5, None])
def test_the_result_says_what_it_is_of(shutdown, loss):
    """The loss, or that there is none, with the global step and the number of merges."""
    fields = {"held_out_loss": loss, "t": 9, "merges": 7, "status": shutdown.status}
    assert [Observe("result", fields)] == shutdown.result(loss)
    assert shutdown.evaluated


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("status", ["done", "stopped"])
def test_a_model_that_is_not_finite_is_no_success(status, loss):
    """The result has a status of its own, and the lead ends as failed; a job that failed before
    keeps its reason."""
    shutdown = JobShutdown(status, "global step 9", 9, 7, evaluating=41)
    (said,) = shutdown.result(loss)
    shutdown.saved, shutdown.patient = True, False
    assert isinstance(said, Observe)
    assert said.fields["status"] == DIVERGED
    finish = shutdown.leave(0)[-1]
    assert finish == Finish("failed", f"the held-out loss of the final model is {loss}")
    failed = JobShutdown("failed", "no learner is left", 9, 7, evaluating=41)
    assert failed.result(loss)[0].fields["status"] == "failed"
    assert failed.reason == "no learner is left"
