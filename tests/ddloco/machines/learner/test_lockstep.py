"""A learner that keeps step with the schedule: where it waits, and what it contributes."""

import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.messages import Contribution, GlobalFragment, Progress, Pull
from ddloco.job.protocol.work import EncodeFragment, FragmentEncoded, RunStep
from tests.ddloco.machines.learner.test_machine import Harness, of, said
from transport import Drop, SetTimer, TimerFired


@pytest.fixture
def blocking(make_job, leaves):
    """Makes a learner that is linked and has begun."""

    def made(learners=2, **sync):
        job = make_job(learners=learners, quorum=learners, blocking=True, **sync)
        harness = Harness(job, leaves)
        harness.join()
        for p in range(len(job.plan(leaves).fragments)):
            harness.begun = harness.say(GlobalFragment(p, 0))
        return harness

    return made


def test_it_waits_at_the_step_at_which_its_fragment_is_due(blocking):
    """With one fragment and no overlap, as DiLoCo: it trains an interval, then nothing."""
    harness = blocking(fragments=1, interval=3, overlap=0)
    steps = [harness.finish_step() for _ in range(3)]
    assert [1, 1, 0] == [len(of(RunStep, each)) for each in steps]
    (run,) = of(RunStep, steps[1])
    assert "host/3" == run.out, "what it contributes is copied"
    (report,) = said(Progress, steps[2])
    assert (3, 3) == (report.step, report.position)


def test_it_waits_after_its_local_steps(leaves):
    """What it contributes is of so many steps, and counts at the end of the round."""
    tables = {
        "job": {"task": "none:none", "method": "fedavg", "learners": 2, "steps": 12},
        "sync": {"interval": 5},
        "learner": {"learner-0": {"local_steps": 2}},
    }
    harness = Harness(job_from(tables, "test"), leaves)
    harness.join()
    harness.say(GlobalFragment(0, 0))
    steps = [harness.finish_step() for _ in range(2)]
    assert [1, 0] == [len(of(RunStep, each)) for each in steps]
    (report,) = said(Progress, steps[1])
    assert (2, 5) == (report.step, report.position)
    (encode,) = of(EncodeFragment, harness.say(Pull(5, 0)))
    assert "host/2" == encode.source


def test_the_version_lets_it_go_on(blocking):
    """It is installed before the next step; the copy is no longer needed after it."""
    harness = blocking(fragments=1, interval=3, overlap=0)
    for _ in range(3):
        harness.finish_step()
    (run,) = of(RunStep, harness.say(GlobalFragment(0, 3)))
    assert [3] == [each.version for each in run.overwrites]
    harness.finish_step()
    assert 2.0 == pytest.approx(harness.machine.spent.versions + 2.0)
    for _ in range(2):
        last = harness.finish_step()
    assert Drop("host/3") in last


def test_an_early_version_is_installed_when_the_overlap_is_over(blocking):
    """Not before: when it arrived decides nothing. Nor later."""
    harness = blocking(fragments=1, interval=6, overlap=2)
    for _ in range(6):
        harness.finish_step()
    assert not of(RunStep, harness.say(GlobalFragment(0, 6)))
    installed = [of(RunStep, harness.finish_step())[0].overwrites for _ in range(3)]
    assert [[], [6], []] == [[each.version for each in run] for run in installed]


def test_it_says_again_where_it_is_while_it_waits(blocking):
    """Otherwise it would not notice that its link is dead."""
    harness = blocking(fragments=1, interval=1, overlap=0)
    (timer,) = of(SetTimer, harness.finish_step())
    again = harness.tell(TimerFired(timer.timer))
    assert said(Progress, again)
    assert timer.timer in [each.timer for each in of(SetTimer, again)]


def test_overlap_lets_it_run_on_and_contribute_what_it_had(blocking):
    """A pull that comes two steps later is answered from the copy of the step that it is for."""
    harness = blocking(fragments=1, interval=4, overlap=2)
    steps = [harness.finish_step() for _ in range(6)]
    assert [1, 1, 1, 1, 1, 0] == [len(of(RunStep, each)) for each in steps]
    (encode,) = of(EncodeFragment, harness.say(Pull(4, 0)))
    assert "host/4" == encode.source
    (sent,) = said(Contribution, harness.tell(FragmentEncoded(encode.work, b"0" * 16)))
    assert (0, 4, 4, 32) == (sent.base, sent.step, sent.steps, sent.tokens)


def test_one_that_was_refused_trains_its_round_again(blocking):
    """It forgets the copy that was refused, and is at the version that it is given instead."""
    harness = blocking(fragments=1, interval=3, overlap=0)
    for _ in range(3):
        harness.finish_step()
    effects = harness.say(GlobalFragment(0, 0, instead=True))
    assert Drop("host/3") in effects
    assert of(RunStep, effects)
    assert 0 == said(Progress, harness.finish_step())[0].position - 1
    assert [] == of(EncodeFragment, harness.say(Pull(3, 0)))


def test_a_newcomer_does_not_wait_for_syncs_of_before(blocking, make_job, leaves):
    """Fragment 2 was due at step 2, and is not merged: nobody but newcomers may be there for it."""
    job = make_job(quorum=2, blocking=True, fragments=3, interval=3, overlap=1)
    harness = Harness(job, leaves)
    harness.join()
    for p, version in enumerate((6, 4, 2)):
        begun = harness.say(GlobalFragment(p, version))
    assert of(RunStep, begun)
    assert of(RunStep, harness.finish_step()), "at 7, fragment 1 is due and may come until 8"
    assert not of(RunStep, harness.finish_step())


def test_who_is_not_drawn_for_a_round_does_not_train(leaves):
    """Of two learners one trains in a round, the same for all who ask."""
    table = {"task": "none:none", "steps": 12, "learners": 2, "method": "fedavg"}
    job = job_from({"job": table, "sync": {"interval": 3, "clients": 0.5}}, "test")
    begun = []
    for name in ("learner-0.1", "learner-1.1"):
        harness = Harness(job, leaves, name)
        harness.join()
        begun.append(len(of(RunStep, harness.say(GlobalFragment(0, 0)))))
    assert [0, 1] == sorted(begun)
