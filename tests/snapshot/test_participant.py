"""Snapshots of small banks, in every order that a network may choose; and bugs that must show."""

import random
from collections import Counter
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot import read_state, write_state
from snapshot.participant import (
    GATHERING_S,
    PATIENCE_S,
    REFUSED,
    REMEMBERED_MAX,
    UNDER_WAY_MAX,
    Capture,
    Commit,
    Discard,
    Moment,
    Participant,
    RecordFlight,
    SendMarkers,
    Tell,
)
from snapshot.record import Part
from tests.snapshot.bank import Bank
from tests.snapshot.ledger import check
from tests.snapshot.mutations import MUTATIONS

SCRIPT_BYTES = 400
BANKS = range(600)
MUTANTS_MAX = 400


def live(seed):
    """The bank of a seed, when all is over."""
    # The text is part of the seed, and the planted bugs name seeds: it must not change.
    return Bank(random.Random(f"town {seed}").randbytes(SCRIPT_BYTES)).live()


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=SCRIPT_BYTES, max_size=SCRIPT_BYTES))
def test_every_snapshot_is_true_or_none(text):
    """Whatever a network does: a consistent cut with all that was in flight, or a reason."""
    check(Bank(text).live())


def test_banks_differ_widely():
    """Drawn from seeds they hold, too; and show commits with and without absent ones, messages in
    flight, each reason to be absent, and each to discard."""
    seen = Counter()
    for seed in BANKS:
        bank = live(seed)
        check(bank)
        seen[f"{len(bank.lanes)} lanes"] += 1
        seen["overlapping"] += any(len(account.cuts) > 2 for account in bank.accounts.values())
        for snapshot, outcomes in bank.outcomes.items():
            for outcome in outcomes:
                if isinstance(outcome, Discard):
                    seen["discarded: " + outcome.reason.rpartition(": ")[2].partition(":")[0]] += 1
                    continue
                seen["absent" if outcome.absent else "all"] += len(outcome.parts) > 1
                seen.update("absent: " + why.rpartition(": ")[2] for why in outcome.absent.values())
                accounts = [bank.everyone[part.who] for part in outcome.parts]
                seen["in flight"] += any(account.flights[snapshot] for account in accounts)
    for what, least in {
        "1 lanes": 100,
        "2 lanes": 100,
        "overlapping": 100,
        "all": 300,
        "absent": 150,
        "in flight": 300,
        "absent: broken": 100,
        "absent: it shook hands again": 5,
        "absent: disk full": 5,
        f"absent: {REFUSED}": 50,
        f"absent: no marker within {PATIENCE_S:g} s": 5,
        f"absent: nothing was heard of its part within {GATHERING_S:g} s": 30,
        "absent: the channel was opened between their cuts": 10,
        f"discarded: {REFUSED}": 10,
        "discarded: disk full": 10,
    }.items():
        assert seen[what] >= least, f"{what}: {seen}"
    clocks = sum(number for what, number in seen.items() if "heard of" in what)
    whole = seen["all"] + seen["absent"]
    assert 0 < clocks < whole / 5, "new links in the middle of a snapshot seldom spoil it"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.name)
def test_planted_bugs_are_noticed(mutation, monkeypatch):
    """Some small bank objects to each of them."""
    mutation.plant(monkeypatch)
    for seed in range(mutation.first, mutation.first + MUTANTS_MAX):
        try:
            check(live(seed))
        except (AssertionError, KeyError):
            return
    pytest.fail(f"{mutation.name}: not noticed")


# One at a time.

A = ("a.1", "bulk")
B = ("b.1", "bulk")


def now(number, *peers):
    """Event ``number`` of some participant."""
    return Moment(number, {"me.1": number}, peers)


def me():
    """A participant with one lane to each peer."""
    return Participant("me.1", ["bulk"])


def test_alone_in_the_world():
    """An actor without peers records itself, and commits when that is written."""
    one = me()
    assert [Capture("me.1:7", (), 5.0 + PATIENCE_S), RecordFlight("me.1:7", ())] == one.take(
        5.0, now(7)
    )
    assert ["me.1:7"] == one.began()
    assert not one.recording
    assert [] == one.captured("me.1:7", "state")
    (commit,) = one.captured("me.1:7", "flight")
    assert Commit("me.1:7", commit.parts, {}) == commit
    part = Part("me.1", 7, {"me.1": 7}, (), {}, ("state", "flight"))
    assert (part,) == commit.parts
    assert [] == one.began() == one.overdue("me.1:7")


def test_first_marker_cuts_and_the_part_goes_back_where_it_came_from():
    """State at the first marker, what came until the second, then a part, in that order."""
    one = me()
    capture = Capture("i.1:3", ("a.1", "b.1"), PATIENCE_S)
    assert [capture] == one.marker(0.0, "i.1:3", A, lambda: now(2, "a.1", "b.1"))
    assert one.recording
    assert (0, 1) == (one.heard(A, "late"), one.heard(B, "in flight"))
    assert [] == one.captured("i.1:3", "state")
    flight = RecordFlight("i.1:3", ((B, ("in flight",)),))
    assert [flight] == one.marker(1.0, "i.1:3", B, lambda: now(4, "a.1", "b.1"))
    (tell,) = one.captured("i.1:3", "flight")
    assert ("a.1", "i.1:3", 2) == (tell.peer, tell.snapshot, tell.part.number)
    assert [] == one.captured("i.1:3", "flight"), "it has been told"


def test_a_former_peer_that_may_still_hear_is_named():
    """What was said before the channel broke may arrive there after its cut."""
    one = me()
    one.joined("b.1")
    assert [] == one.gone("b.1", "broken")
    one.marker(0.0, "i.1:3", A, lambda: now(2, "a.1"))
    one.captured("i.1:3", "state")
    (tell,) = one.captured("i.1:3", "flight")
    assert {"b.1": "broken"} == tell.part.lost
    assert [] == one.joined("b.1")
    one.marker(0.0, "i.1:4", A, lambda: now(3, "a.1"))
    one.captured("i.1:4", "state")
    assert {} == one.captured("i.1:4", "flight")[0].part.lost


def test_an_actor_that_joins_is_told_of_all_snapshots_under_way():
    """Also who was a peer at the cut: the marker that it was sent may have been lost."""
    one = me()
    one.marker(0.0, "i.1:3", A, lambda: now(2, "a.1", "b.1"))
    one.gone("b.1", "broken")
    assert [SendMarkers("i.1:3", "b.1")] == one.joined("b.1")
    assert [SendMarkers("i.1:3", "c.1")] == one.joined("c.1")
    one.failed("i.1:3", "disk full")
    assert [] == one.joined("d.1")


def test_too_many_are_refused_by_name():
    """Markers are passed on, nothing is recorded, the initiator hears why; and it stays so."""
    one = me()
    for number in range(UNDER_WAY_MAX):
        one.marker(0.0, f"i.1:{number}", A, partial(now, number, "a.1", "b.1"))
    mark, other, tell = one.marker(0.0, "i.1:9", A, lambda: now(9, "a.1", "b.1"))
    assert (SendMarkers("i.1:9", "a.1"), SendMarkers("i.1:9", "b.1")) == (mark, other)
    assert ("a.1", REFUSED) == (tell.peer, tell.part.failed)
    assert [Discard("me.1:10", REFUSED)] == one.take(0.0, now(10, "a.1", "b.1"))
    one.failed("i.1:0", "disk full")
    assert [] == one.marker(0.0, "i.1:9", B, lambda: now(11, "a.1", "b.1"))


def test_what_comes_after_it_was_given_up_is_nothing():
    """Written too late, failed twice, a part of a snapshot that is settled or unknown."""
    one = me()
    one.take(0.0, now(1, "a.1"))
    assert [] == one.captured("me.1:1", "state")
    discard = Discard("me.1:1", "me.1, who began it: disk full")
    assert [discard] == one.failed("me.1:1", "disk full"), "there is nothing to wait for"
    assert [] == one.gone("a.1", "broken")
    assert [] == one.failed("me.1:1", "again") == one.captured("me.1:1", "flight")
    assert [] == one.late("me.1:1") == one.overdue("me.1:1")
    part = Part("a.1", 1, {}, (), {})
    assert [] == one.told("me.1:1", part) == one.told("x.1:1", part)


def test_a_participant_is_plain_data():
    """Written and read back in the middle of two snapshots it asks for the same as before."""
    one = me()
    one.take(0.0, now(1, "a.1", "b.1"))
    one.marker(0.0, "i.1:3", A, lambda: now(2, "a.1", "b.1"))
    one.heard(B, "in flight")
    one.captured("i.1:3", "state")
    one.gone("c.1", "broken")
    other = read_state(write_state(one), Participant[str])
    heard = []
    for each in (one, other):
        asks = each.marker(1.0, "i.1:3", B, lambda: now(3, "a.1", "b.1"))
        asks += each.captured("i.1:3", "flight") + each.gone("a.1", "broken")
        asks += each.joined("d.1") + each.late("me.1:1") + each.overdue("me.1:1")
        heard.append([repr(ask) for ask in asks])
    assert len(heard[0]) == 5
    assert heard[0] == heard[1]


def test_parts_are_handed_on_as_long_as_is_remembered():
    """The ways of the newest snapshots are remembered, and only those."""
    one, part = me(), Part("a.1", 1, {}, (), {})
    for number in range(REMEMBERED_MAX + 1):
        one.marker(0.0, f"i{number}.1:3", A, partial(now, number, "a.1"))
        one.failed(f"i{number}.1:3", "disk full")
    assert [] == one.told("i0.1:3", part)
    assert [Tell("a.1", "i1.1:3", part)] == one.told("i1.1:3", part)
