"""What becomes of the steps between a contribution and its answer."""

import pytest

from ddloco.job.protocol.messages import GlobalFragment, Progress, Pull
from ddloco.job.protocol.work import EncodeFragment, FragmentEncoded, RunStep
from tests.ddloco.machines.learner.test_machine import Harness, P, of, said


@pytest.fixture
def late(make_job, leaves):
    """Makes a learner with a rule, that has finished three steps and contributed after the second;
    the answer comes during the fourth."""

    def made(rule, **said_of):
        harness = Harness(make_job(fragments=P, interval=P, late=rule), leaves)
        harness.join()
        harness.parameters()
        harness.finish_step()
        harness.finish_step()
        (encode,) = of(EncodeFragment, harness.say(Pull(2, 2)))
        harness.tell(FragmentEncoded(encode.work, b"0" * 16))
        harness.finish_step()
        harness.say(GlobalFragment(2, 2, **said_of))
        return harness

    return made


def installing(harness):
    """What the next step installs, and what is reported after it."""
    (run,) = of(RunStep, harness.finish_step())
    (overwrite,) = run.overwrites
    (report,) = said(Progress, harness.finish_step())
    return overwrite, report


def test_overwrite_keeps_nothing(late):
    """As the paper: the counters start again."""
    overwrite, report = installing(late("overwrite"))
    assert (0.0, "") == (overwrite.mixing, overwrite.since)
    assert (1, 8) == (report.steps[2], report.tokens[2])


def test_blend_keeps_a_share(late):
    """Of its own parameters; the counters start again."""
    overwrite, report = installing(late("blend"))
    assert (0.5, "") == (overwrite.mixing, overwrite.since)
    assert (1, 8) == (report.steps[2], report.tokens[2])


def test_carry_takes_the_late_steps_again(late):
    """From the copy that was contributed after the second step; they count for the next merge."""
    harness = late("carry")
    assert 1 == harness.holders["host/2"], "the copy is kept for the answer"
    overwrite, report = installing(harness)
    assert (0.0, "host/2") == (overwrite.mixing, overwrite.since)
    assert (3, 24) == (report.steps[2], report.tokens[2])
    assert "host/2" not in harness.holders


@pytest.mark.parametrize("rule", ["blend", "carry"])
def test_what_was_refused_is_replaced_as_a_whole(late, rule):
    """A learner whose contribution was refused keeps nothing of it."""
    overwrite, _ = installing(late(rule, instead=True))
    assert (0.0, "") == (overwrite.mixing, overwrite.since)


def test_a_version_without_its_contribution_carries_nothing_over(late):
    """A newer version than that of the contribution: the copy is released."""
    harness = late("carry")
    harness.say(GlobalFragment(2, 5))
    overwrite, _ = installing(harness)
    assert (5, "") == (overwrite.version, overwrite.since)
    assert "host/2" not in harness.holders
