"""Where a replay begins: who is before the cut, who came back, who is past."""

import pytest

from ddloco.restoring import Beginning, Start
from snapshot import Part


def start(who, number, clock):
    """Where one stood."""
    part = Part(who, number, {who: number, **clock}, (), {})
    return Start(part, None, {}, None, [], {})


@pytest.fixture
def beginning():
    """A syncer that has heard of a learner that is not in it, and one that has come back."""
    starts = [
        start("syncer.1", 50, {"learner-0.1": 7, "learner-1.2": 4}),
        start("learner-1.2", 5, {"syncer.1": 40}),
    ]
    return Beginning("syncer.1:50", {each.part.who: each for each in starts})


def test_before_and_after_a_cut(beginning):
    """An event is before it up to the number at which its actor was captured."""
    assert beginning.before("syncer.1", 50)
    assert not beginning.before("syncer.1", 51)
    assert not beginning.before("learner-2.1", 1)
    assert (50, 0) == (beginning.after("syncer.1"), beginning.after("learner-2.1"))


def test_who_is_past(beginning):
    """Whoever was heard of and is not in it, and former incarnations; nobody who is to come."""
    past = [
        name
        for name in ("syncer.1", "learner-0.1", "learner-1.1", "learner-1.2", "learner-1.3")
        if beginning.is_past(name)
    ]
    assert ["learner-0.1", "learner-1.1"] == past
    former = ("learner-0.1", "learner-1.1", "learner-1.2", "learner-1.3")
    assert [False, True, False, False] == [beginning.is_former(name) for name in former]
    assert (7, 0) == (beginning.heard("learner-0.1"), beginning.heard("learner-1.1"))
