"""The shards of a syncer: who owns what, and how the lead gets the whole model at the end."""

import pytest

from ddloco.job.protocol.messages import Close, GlobalFragment, ShardReport, Stop
from ddloco.machines.syncer.shards import Shards, owned_by
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


def test_the_model_is_whole_when_all_shards_have_sent(shards):
    """One's own parameters in their places, the others' in theirs."""
    assert ["syncer-1", "syncer-2"] == shards.missing()
    for peer, p in ((ONE, 1), (TWO, 2), (ONE, 4)):
        assert not shards.complete
        assert [Keep(f"in/{p}")] == shards.final(peer, GlobalFragment(p, 9), f"in/{p}")
    shards.report(ONE, ShardReport(3, (-1, 9, -1, -1, 9), over=True))
    assert not shards.complete  # The other has not said how it ends.
    shards.report(TWO, ShardReport(3, (-1, -1, 9, -1, -1), over=True))
    assert shards.complete
    assert 6 == shards.merges
    assert ("t0", "in/1", "in/2", "t3", "in/4") == shards.whole(("t0", "", "", "t3", ""))


def test_the_newest_version_counts(shards):
    """A shard that has come back may have merged more; an older one changes nothing."""
    shards.final(ONE, GlobalFragment(1, 9), "in/1")
    assert [Keep("in/2"), Drop("in/1")] == shards.final(ONE, GlobalFragment(1, 11), "in/2")
    assert [] == shards.final(ONE, GlobalFragment(1, 9), "in/3")
    assert {1: (11, "in/2")} == shards.finals


@pytest.mark.parametrize(
    ("peer", "p", "handle"),
    [
        ("learner-0.1", 1, "in/1"),
        (ONE, 0, "in/1"),
        (ONE, 9, "in/1"),
        (ONE, 1, ""),
        (TWO, 1, "in/1"),
    ],
    ids=["a learner", "one's own", "none of the plan", "without bytes", "of another shard"],
)
def test_what_is_no_shards_fragment_is_not_taken(shards, peer, p, handle):
    """Whichever shard reports it."""
    assert [] == shards.final(peer, GlobalFragment(p, 9), handle)


def test_the_others_are_asked_to_end_also_those_who_come_later(shards):
    """One that is starting again when the lead is through hears it then."""
    shards.lose(TWO, "gone")
    assert [(ONE, Close("over"))] == said(shards.close(Close("over")))
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


def test_a_report_that_overtakes_its_fragments_does_not_complete(shards):
    """They travel in two lanes; what counts is that the versions said have come."""
    for peer, p in ((ONE, 1), (ONE, 4), (TWO, 2)):
        shards.final(peer, GlobalFragment(p, 5), f"in/{p}")
    shards.report(TWO, ShardReport(1, (-1, -1, 5, -1, -1), over=True))
    shards.report(ONE, ShardReport(2, (-1, 9, -1, -1, 5), over=True))
    assert not shards.complete
    shards.final(ONE, GlobalFragment(1, 9), "in/9")
    assert shards.complete


def test_a_shard_speaks_of_its_own_fragments_only(shards):
    """Of others' it may say anything; and no sum is more than a message takes."""
    for peer, p in ((ONE, 1), (ONE, 4), (TWO, 2)):
        shards.final(peer, GlobalFragment(p, 5), f"in/{p}")
    shards.report(ONE, ShardReport(2**63 - 1, (9, 5, 2**62, 9, 5), over=True))
    shards.report(TWO, ShardReport(2**63 - 1, (-1, -1, 5, -1, -1), over=True))
    assert shards.complete
    assert shards.merges == 2**63 - 1


def test_what_one_said_that_came_back_counts_no_more(shards):
    """It continues from what it kept, and may merge more."""
    shards.report(ONE, ShardReport(1, (-1, 5, -1, -1, 5), over=True))
    shards.join("syncer-1.2")
    assert ["syncer-1", "syncer-2"] == shards.missing()


def test_one_that_is_not_through_has_not_reported(shards):
    """It only says that it is there."""
    shards.report(ONE, ShardReport(1, (-1, 5, -1, -1, 5), over=False))
    shards.report("learner-0.1", ShardReport(1, (-1, 5, -1, -1, 5), over=True))
    assert ["syncer-1", "syncer-2"] == shards.missing()


def test_one_that_goes_on_is_through_no_longer(shards):
    """It says so itself: the lead may have heard the contrary just before, from another run."""
    for over in (True, False):
        shards.report(ONE, ShardReport(1, (-1, 5, -1, -1, 5), over=over))
    assert ["syncer-1", "syncer-2"] == shards.missing()


def test_in_another_run_all_is_open_again(shards):
    """No shard is done or told to end, and all are waited for at the next end."""
    shards.report(ONE, ShardReport(1, (-1, 5, -1, -1, 5), over=True))
    shards.close("enough")
    shards.patient = False
    shards.release(9, "enough")
    shards.go_on()
    assert ["syncer-1", "syncer-2"] == shards.missing()
    assert (None, True) == (shards.closing, shards.patient)
    assert [ONE, TWO] == [peer for peer, _ in said(shards.release(20, "done"))]


def test_the_lead_waits_for_those_who_were_not_told_to_go(shards):
    """Also where a link is broken just then."""
    shards.lose(ONE, "broken")
    shards.release(8, "over")
    assert 2 == shards.away()
    shards.lose(TWO, "over")
    assert 1 == shards.away()
    shards.join(ONE)
    shards.release(8, "over")
    shards.lose(ONE, "over")
    assert 0 == shards.away()


def test_an_older_self_does_not_take_the_place_of_a_newer_one(shards):
    """However late it comes."""
    shards.join("syncer-1.2")
    (hangup,) = [each for each in shards.join(ONE) if isinstance(each, Hangup)]
    assert (ONE, True) == (hangup.peer, hangup.final)
    assert "syncer-1.2" == shards.linked["syncer-1"]
