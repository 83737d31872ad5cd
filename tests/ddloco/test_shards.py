"""The shards of a syncer: who owns what, and how the lead gets the whole model at the end."""

import pytest

from ddloco.messages import Close, Closed, GlobalFragment, Stop
from ddloco.shards import Shards, owned_by
from transport import Drop, Hangup, Keep, Retire, Send

NAMES = ("syncer-0", "syncer-1", "syncer-2")
ONE, TWO = "syncer-1.1", "syncer-2.1"


@pytest.fixture
def shards():
    """The lead of three shards of five fragments; both others are linked."""
    shards = Shards(NAMES[1:], (1, 2, 4))
    shards.join(ONE)
    shards.join(TWO)
    return shards


def said(effects):
    """(peer, body) of what is said."""
    return [(each.peer, each.body) for each in effects if isinstance(each, Send)]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_fragment_has_one_owner(count):
    """And every shard of no more than there are fragments owns some."""
    names = [f"syncer-{n}" for n in range(count)]
    parts = [owned_by(name, names, range(5)) for name in names]
    assert list(range(5)) == sorted(p for part in parts for p in part)
    assert all(parts)


def test_without_others_nothing_is_missing():
    """A syncer that is alone has the whole model."""
    alone = Shards()
    assert alone.complete
    assert ("a", "b") == alone.whole(("a", "b"))
    assert not alone.knows("learner-0.1")


def test_the_model_is_whole_when_everybody_has_sent(shards):
    """One's own parameters in their places, the others' in theirs."""
    assert [1, 2, 4] == shards.missing()
    for peer, p in ((ONE, 1), (TWO, 2), (ONE, 4)):
        assert not shards.complete
        assert [Keep(f"in/{p}")] == shards.final(peer, GlobalFragment(p, 9), f"in/{p}")
    assert not shards.complete  # How many merges there were is not known.
    for peer in (ONE, TWO):
        shards.closed(peer, Closed(3))
    assert shards.complete
    assert ("t0", "in/1", "in/2", "t3", "in/4") == shards.whole(("t0", "", "", "t3", ""))


def test_the_newest_version_counts(shards):
    """A shard that has come back may have merged more; an older one changes nothing."""
    shards.final(ONE, GlobalFragment(1, 9), "in/1")
    assert [Keep("in/2"), Drop("in/1")] == shards.final(ONE, GlobalFragment(1, 11), "in/2")
    assert [] == shards.final(ONE, GlobalFragment(1, 9), "in/3")
    assert {1: (11, "in/2")} == shards.finals


@pytest.mark.parametrize(
    ("peer", "p", "handle"),
    [("learner-0.1", 1, "in/1"), (ONE, 0, "in/1"), (ONE, 9, "in/1"), (ONE, 1, "")],
    ids=["a learner", "one's own", "none of the plan", "without bytes"],
)
def test_what_is_no_shards_fragment_is_not_taken(shards, peer, p, handle):
    """Whoever says it."""
    assert [] == shards.final(peer, GlobalFragment(p, 9), handle)


def test_the_others_are_asked_to_end_also_those_who_come_later(shards):
    """One that is starting again when the lead is through hears it then."""
    shards.lose(TWO, "gone")
    assert [(ONE, Close("over"))] == said(shards.close("over"))
    assert ("syncer-2.2", Close("over")) in said(shards.join("syncer-2.2"))


def test_each_is_released_once_over_each_link(shards):
    """And again when its link was another one."""
    assert [(ONE, Stop(8, "over")), (TWO, Stop(8, "over"))] == said(shards.release(8, "over"))
    assert [] == shards.release(8, "over")
    shards.lose(ONE, "gone")
    shards.join(ONE)
    assert [(ONE, Stop(8, "over"))] == said(shards.release(8, "over"))


def test_one_that_comes_back_takes_its_place(shards):
    """Its former self is refused, and leaves the clocks."""
    effects = shards.join("syncer-1.2")
    assert [Hangup(ONE, "syncer-1.2 has its place", final=True)] == [
        each for each in effects if isinstance(each, Hangup)
    ]
    assert Retire({"syncer-1": 2}) in effects
    assert [] == shards.lose(ONE, "late news")
    assert "syncer-1.2" == shards.linked["syncer-1"]
