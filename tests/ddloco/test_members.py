"""What the syncer knows of a learner: reports, what it lacks, and what may be merged of it."""

import pytest

from ddloco.members import Member
from ddloco.messages import Contribution, Progress


@pytest.fixture
def member():
    """A learner of two fragments that has just joined."""
    return Member("learner-0.1", "learner-0.1", [-1, -1], [-1, -1])


def progress(step, versions=(0, 0), steps=(1, 1)):
    """A report."""
    return Progress(step, 1.0, versions, steps, tuple(8 * n for n in steps))


def contribution(base=0, steps=1, fragment=0):
    """An answer to a pull."""
    return Contribution(5, fragment, base, 9, steps, 8 * steps)


def test_only_a_finished_step_is_fresh(member):
    """A report before the first step, or of the same step again, is no new step."""
    assert member.report(progress(0)) is None
    assert not member.fresh
    assert member.report(progress(1)) is None
    assert member.fresh
    member.fresh = False
    assert member.report(progress(1)) is None
    assert not member.fresh


def test_fresh_lasts_until_the_next_launch(member):
    """A second report of the same step does not take freshness away."""
    member.report(progress(1))
    member.report(progress(1))
    assert member.fresh


@pytest.mark.parametrize("false", [progress(2), progress(4, (0,), (1,)), progress(4, (0, 0), (1,))])
def test_a_report_that_cannot_be_true_changes_nothing(member, false):
    """An older step or another number of fragments is named, and not believed."""
    member.report(progress(3))
    assert member.report(false) is not None
    assert progress(3) == member.progress


def test_it_lacks_what_it_neither_holds_nor_was_sent(member):
    """The newest version is lacking until it is held or on its way."""
    assert member.lacks(0, 0)
    member.report(progress(1, versions=(0, -1)))
    assert (False, True) == (member.lacks(0, 0), member.lacks(1, 0))
    member.sent[0] = 3
    assert (False, True) == (member.lacks(0, 3), member.lacks(0, 4))


@pytest.mark.parametrize(
    ("fresh", "steps", "merged", "may"),
    [(True, 1, -1, True), (False, 1, -1, False), (True, 0, -1, False), (True, 1, 0, False)],
)
def test_who_may_contribute(member, fresh, steps, merged, may):
    """Fresh, trained since its version, and that version not merged already."""
    member.report(progress(1, steps=(steps, 1)))
    member.fresh, member.merged[0] = fresh, merged
    assert may is member.may_contribute(0)


def test_nobody_contributes_before_a_report(member):
    """A learner that has said nothing is not pulled."""
    member.fresh = True
    assert not member.may_contribute(0)


@pytest.mark.parametrize(
    ("said", "merged", "objects"),
    [
        (contribution(base=3), 2, None),
        (contribution(base=2), 2, "merged already"),
        (contribution(base=1), 2, "merged already"),
        (contribution(base=5), 2, "does not exist yet"),
        (contribution(base=3, steps=0), 2, "nothing was trained"),
    ],
)
def test_objections(member, said, merged, objects):
    """Tokens merged already, versions not made yet and empty answers are objected to."""
    member.merged[0] = merged
    objection = member.objection(said, 4)
    assert objects is None if objection is None else objects in objection
