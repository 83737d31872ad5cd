"""What the syncer knows of a learner: reports, what it lacks, and what may be merged of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ddloco.job.protocol.messages import Contribution, Progress
from ddloco.machines.syncer.members import (
    HASTE,
    HASTE_STEPS,
    RESEND_S_MIN,
    RESEND_STEPS,
    new_member,
)


@pytest.fixture
def member():
    """A learner of two fragments that has just joined."""
    return new_member("learner-0.1", "learner-0.1", 2, 5.0)


def progress(step, versions=(0, 0), steps=(1, 1), step_s=1.0):
    """A report."""
    return Progress(step, step_s, versions, steps, tuple(8 * n for n in steps))


def contribution(base=0, steps=1, fragment=0, tokens=None):
    """An answer to a pull."""
    return Contribution(5, fragment, base, 9, steps, 8 * steps if tokens is None else tokens)


def test_only_a_finished_step_is_fresh(member):
    """A report before the first step, or of the same step again, is no new step."""
    assert member.report(6.0, progress(0)) is None
    assert not member.fresh
    assert member.report(7.0, progress(1)) is None
    assert member.fresh
    member.fresh = False
    assert member.report(8.0, progress(1)) is None
    assert not member.fresh


def test_fresh_lasts_until_the_next_launch(member):
    """A second report of the same step does not take freshness away."""
    member.report(6.0, progress(1))
    member.report(7.0, progress(1))
    assert member.fresh


@pytest.mark.parametrize("false", [progress(2), progress(4, (0,), (1,)), progress(4, (0, 0), (1,))])
def test_a_report_that_cannot_be_true_changes_nothing(member, false):
    """An older step or another number of fragments is named, and not believed."""
    member.report(6.0, progress(3))
    assert member.report(7.0, false) is not None
    assert (progress(3), 6.0) == (member.progress, member.heard_at)


def test_it_is_known_when_it_was_heard_and_how_long_its_steps_take(member):
    """Joining is the first word; until a report nothing is known of its pace."""
    assert (5.0, 0.0) == (member.heard_at, member.report_s)
    member.report(6.5, progress(1, step_s=2.5))
    assert (6.5, 2.5) == (member.heard_at, member.report_s)


def test_it_is_known_how_many_tokens_it_trains_on(member):
    """In a second of training; unknown until it has finished a step."""
    assert member.tokens_per_s is None
    member.report(6.0, progress(0))
    assert member.tokens_per_s is None
    member.report(7.0, replace(progress(5, step_s=0.5), trained=50))
    assert 20.0 == member.tokens_per_s


def test_it_lacks_what_it_neither_holds_nor_was_sent(member):
    """The newest version is lacking until it is held or on its way."""
    assert member.lacks(5.0, 0, 0)
    member.report(6.0, progress(1, versions=(0, -1)))
    assert (False, True) == (member.lacks(6.0, 0, 0), member.lacks(6.0, 1, 0))
    member.tell(6.0, 0, 3)
    assert (False, True) == (member.lacks(6.0, 0, 3), member.lacks(6.0, 0, 4))


@pytest.mark.parametrize(
    ("step_s", "patience"), [(0.0, RESEND_S_MIN), (1.0, RESEND_S_MIN), (60.0, 60.0 * RESEND_STEPS)]
)
def test_what_was_sent_and_does_not_show_is_lacking_again(member, step_s, patience):
    """After ten of its steps, half a minute at least; counted again from the second sending."""
    member.report(6.0, progress(1, step_s=step_s))
    member.tell(7.0, 0, 3)
    member.tell(99.0, 1, 3)
    assert (False, True) == (
        member.lacks(7.0 + patience, 0, 3),
        member.lacks(7.001 + patience, 0, 3),
    )
    member.tell(8.0 + patience, 0, 3)
    assert not member.lacks(8.0 + 2 * patience, 0, 3)


def test_what_shows_is_never_sent_again(member):
    """However long ago it was sent, a version that is held is not lacking; nor an older one."""
    member.tell(6.0, 0, 3)
    member.report(7.0, progress(1, versions=(3, 0)))
    assert not member.lacks(1e6, 0, 3)
    assert not member.lacks(1e6, 0, 2)


@pytest.mark.parametrize(
    ("steps", "merged", "oldest", "may"),
    [
        (1, -1, -9, True),
        (0, -1, -9, False),
        (1, 2, -9, True),
        (1, 3, -9, False),
        (1, 7, -9, False),
        (1, -1, 3, True),
        (1, -1, 4, False),
    ],
)
def test_who_may_contribute(member, steps, merged, oldest, may):
    """Trained since its version 3, that version not merged already, and not too old."""
    member.report(6.0, progress(1, versions=(3, 0), steps=(steps, 1)))
    assert may is member.may_contribute(0, oldest, merged)


def test_no_learner_contributes_before_a_report(member):
    """A learner that has said nothing is not pulled."""
    member.fresh = True
    assert not member.may_contribute(0, -9, -1)


@pytest.mark.parametrize(
    ("said", "objects"),
    [
        (contribution(base=3), None),
        (contribution(base=4), None),
        (contribution(base=2), "merged already"),
        (contribution(base=1), "merged already"),
        (contribution(base=5), "does not exist yet"),
        (contribution(base=3, steps=0), "nothing was trained"),
        (contribution(base=3, tokens=0), "nothing was trained"),
    ],
)
def test_objections(member, said, objects):
    """Tokens merged already, versions not made yet and empty answers are objected to."""
    objection = member.objection(said, 4, -9, 2)
    assert objects is None if objection is None else objects in objection


@pytest.mark.parametrize(("base", "stale"), [(6, True), (7, False), (8, False), (13, False)])
def test_what_is_stale_is_objected_to(member, base, stale):
    """A contribution from before the oldest version that is taken would take others' work back."""
    objection = member.objection(contribution(base), 13, 7, -1)
    assert stale is (objection is not None)
    assert not stale or "the oldest that is taken is 7" in objection


def claim(base, step, steps):
    """An answer to a pull after ``step``, trained in ``steps`` from ``base``."""
    return Contribution(5, 0, base, step, steps, 8 * steps)


def test_steps_since_a_version_come_after_it_was_told(member):
    """No more of them than its own count has grown since; of another version it is unknown."""
    member.report(6.0, progress(10, versions=(3, 0)))
    member.tell(7.0, 0, 8)
    assert member.doubt(20.0, claim(8, 15, 5)) is None
    assert "more steps than it has taken: 6 of 5" in member.doubt(20.0, claim(8, 15, 6))
    assert member.doubt(20.0, claim(3, 15, 12)) is None
    assert "more steps than it has taken: 16 of 15" in member.doubt(20.0, claim(3, 15, 16))


def test_a_version_that_is_told_again_was_told_before(member):
    """Steps since its first telling are no lie, nor are those of one that it had from elsewhere."""
    member.report(6.0, progress(10, versions=(3, 0)))
    member.tell(7.0, 0, 8)
    member.report(16.0, progress(20, versions=(3, 0)))
    member.tell(17.0, 0, 8)
    assert member.doubt(20.0, claim(8, 21, 11)) is None
    member.report(18.0, progress(21, versions=(9, 0)))
    member.tell(19.0, 0, 9)
    assert member.doubt(20.0, claim(9, 22, 15)) is None


def test_steps_take_time(member):
    """A thousand times faster than its own fastest word, beyond a few, is no learner's pace."""
    member.report(6.0, progress(10, versions=(3, 0), step_s=2.0))
    member.tell(7.0, 0, 8)
    member.report(8.0, progress(11, versions=(8, 0), step_s=50.0))
    most = HASTE_STEPS + int(HASTE * 3.0 / 2.0)
    assert member.doubt(10.0, claim(8, 9999, most)) is None
    assert "more steps than time allows" in member.doubt(10.0, claim(8, 9999, most + 1))


def test_a_stall_at_the_first_step_is_no_pace(member):
    """A day in the first smoothed step time, then a second each: no learner is doubted on the
    way."""
    step_s, at = 86_400.0, 90_000.0
    member.report(at, progress(2, versions=(3, 0), step_s=step_s))
    member.tell(at, 0, 8)
    for steps in range(1, 500):
        at, step_s = at + 1.0, step_s + 0.1 * (1.0 - step_s)
        member.report(at, progress(2 + steps, versions=(8, 0), step_s=step_s))
        assert member.doubt(at, claim(8, 2 + steps, steps)) is None


@pytest.mark.parametrize("step_s", [math.inf, math.nan, 1e300])
def test_steps_without_end_are_not_believed(step_s):
    """Deadlines and timers are made of what learners say of their pace."""
    member = new_member("learner-0.1", "learner-0.1", 1, 0.0)
    assert "at most" in member.report(1.0, Progress(1, step_s, (0,), (1,), (1,)))
    assert member.progress is None


@given(
    version=st.integers(-1, 9),
    steps=st.integers(0, 3),
    merged=st.integers(-1, 9),
    oldest=st.integers(-9, 9),
    reported=st.booleans(),
)
def test_there_is_a_reason_exactly_where_a_member_may_not_contribute(
    version, steps, merged, oldest, reported
):
    """``absence`` and ``may_contribute`` are two views of one rule."""
    member = new_member("a.1", "a.1", 1, 0.0)
    if reported:
        member.report(1.0, Progress(9, 1.0, (version,), (steps,), (8 * steps,)))
    assert (member.absence(0, oldest, merged) is None) == member.may_contribute(0, oldest, merged)


@pytest.mark.parametrize(
    ("version", "steps", "oldest", "said"),
    [
        (-1, 0, 0, "has not received the fragment"),
        (3, 1, 0, "holds version 3, whose tokens are merged already"),
        (5, 1, 6, "holds version 5, the oldest that is taken is 6"),
        (7, 0, 6, "has finished no step since it received version 7"),
    ],
)
def test_each_reason_names_the_version(version, steps, oldest, said):
    """What a learner holds is what explains why it does not count."""
    member = new_member("a.1", "a.1", 1, 0.0)
    assert member.absence(0, oldest, 4) == "has reported no step"
    member.report(1.0, Progress(9, 1.0, (version,), (steps,), (8 * steps,)))
    assert member.absence(0, oldest, 4) == said
