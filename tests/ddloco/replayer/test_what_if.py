"""Merges changed on the way: who is left out, since when, and what is refused."""

import pytest
from msgspec.structs import replace

from ddloco.job.config import Outer
from ddloco.job.protocol.work import MergeFragment, Recover, Share
from ddloco.replayer.what_if import WHAT_IF, WhatIf, change_of, fact_of, what_if
from ddloco.stage.files.toml import ConfigError

NOW, BEFORE = Outer(lr=0.3), Outer(lr=0.7)


def merge(t, *names):
    """A merge of contributions of equal weight."""
    shares = tuple(Share(name, f"in/{name}", 2.0, 0) for name in names)
    return MergeFragment(1, t, 0, "theta/0/0", "", shares, {}, {}, ("a", "b", "c"))


def test_a_learner_that_is_left_out_keeps_its_place():
    """Its weight is zero from the step on, whatever its incarnation; all else is as it was."""
    change = WhatIf(10, ("learner-1",), BEFORE)
    before, after = merge(9, "learner-0.1", "learner-1.2"), merge(10, "learner-0.1", "learner-1.2")
    assert change.changed(before) == before
    assert [2.0, 0.0] == [share.weight for share in change.changed(after).shares]
    assert replace(change.changed(after), shares=after.shares) == after
    assert change.changed(Recover(3)) == Recover(3)
    assert (change.outer_at(9, NOW), change.outer_at(10, NOW)) == (BEFORE, NOW)


def test_a_merge_of_no_learner_is_refused():
    """It would be repeated, and the run would part from its schedule."""
    change = WhatIf(0, ("learner-0", "learner-1"), BEFORE)
    with pytest.raises(ConfigError, match=r"global step 4 has only contributions of learner-1;"):
        change.changed(merge(4, "learner-1.1"))


def test_what_is_asked_for_is_checked(make_job):
    """Learners and steps are those of the schedule; nothing asked for changes nothing."""
    job = make_job(learners=2, steps=12)
    assert what_if(job, job, (), None) is None
    assert what_if(job, job, ["learner-1"], None) == WhatIf(0, ("learner-1",), job.outer)
    other = replace(job, outer=NOW)
    assert what_if(other, job, [], 5) == WhatIf(5, (), job.outer)
    for without, since, said in (
        (["learner-2"], None, "--without learner-2: no such learner; the schedule has learner-0"),
        ([], 13, "--since 13: want a global step from 1 to 12"),
        ([], 0, "--since 0: want a global step from 1 to 12"),
    ):
        with pytest.raises(ConfigError, match=said):
            what_if(job, job, without, since)


def test_another_optimizer_is_for_a_whole_run(make_job):
    """From a step on it would find the state of the schedule's; the line names both."""
    job = make_job(learners=2, steps=12)
    other = replace(job, outer=Outer(optimizer="adam"))
    assert what_if(other, job, (), None) is None
    with pytest.raises(ConfigError, match=r'"nesterov" before that step, this job has "adam"'):
        what_if(other, job, (), 5)


def test_the_change_is_on_the_tapes():
    """And is read back; a fact that is no change is refused by its name."""
    change = WhatIf(10, ("learner-1",), BEFORE)
    assert change_of({WHAT_IF: fact_of(change)}) == change
    assert change_of({}) is None
    with pytest.raises(ConfigError, match="the tape's fact 'what if': "):
        change_of({WHAT_IF: "{}"})
    with pytest.raises(ConfigError):
        change_of({WHAT_IF: '{"other": ' + "[" * 100_000})
