"""A learner that comes back: the pieces of a peer's state, and what becomes of them."""

import pytest

from ddloco.job.protocol.events import OwnState
from ddloco.job.protocol.messages import Resume, StatePiece, StateWanted
from ddloco.machines.learner.state_recovery import PIECES_MAX, WINDOW_PIECES, StateRecovery
from transport import Drop, Keep, Send

LEAD = "syncer"
DONOR, OTHER = "learner-1.1", "learner-2.1"


@pytest.fixture
def recovery():
    """One that was named a donor, and has asked for the first piece."""
    recovery = StateRecovery()
    recovery.resume(Resume(7, DONOR), LEAD)
    return recovery


def asked(effects):
    """Which pieces of which copy are asked for."""
    wanted = [each.body for each in effects if isinstance(each, Send)]
    assert all(isinstance(each, StateWanted) for each in wanted)
    return [(each.who, each.copy, each.piece) for each in wanted]


def piece(index, who=DONOR, copy=3, pieces=4):
    """A piece, and the handle that it came under."""
    return StatePiece(who, copy, index, pieces, (5, 6)), f"in/{copy}/{index}"


def test_nothing_is_asked_before_a_donor_is_named():
    """Nor is it known where the data continues."""
    recovery = StateRecovery()
    assert (None, False) == (recovery.batches, recovery.complete)
    assert [] == recovery.resume(Resume(7, ""), LEAD)
    assert 7 == recovery.batches


def test_of_an_unknown_copy_the_first_piece_is_asked_for():
    """How many there are is said with it."""
    recovery = StateRecovery()
    assert [(DONOR, 0, 0)] == asked(recovery.resume(Resume(0, DONOR), LEAD))


def test_pieces_are_asked_for_a_few_at_a_time_until_all_are_there(recovery):
    """Never more than the window is under way, and each is asked for once."""
    under_way, everything = 1, [0]
    for index in range(4):
        said, handle = piece(index)
        effects = recovery.take(said, handle, LEAD)
        assert Keep(handle) in effects
        more = [n for _, _, n in asked(effects)]
        under_way += len(more) - 1
        everything += more
        assert under_way <= WINDOW_PIECES
        assert recovery.complete is (index == 3)
    assert [0, 1, 2, 3] == everything
    assert ("in/3/0", "in/3/1", "in/3/2", "in/3/3") == recovery.handles()
    assert (3, (5, 6)) == (recovery.copy, recovery.versions)


def test_pieces_may_come_in_any_order(recovery):
    """They are cut side by side."""
    for index in (0, 2, 3, 1):
        recovery.take(*piece(index), LEAD)
    assert recovery.complete
    assert [f"in/3/{n}" for n in range(4)] == list(recovery.handles())


def test_a_broken_link_costs_only_what_was_under_way(recovery):
    """The same donor is asked for what is missing, of the same copy."""
    recovery.take(*piece(0), LEAD)
    recovery.take(*piece(1), LEAD)
    assert [(DONOR, 3, 2), (DONOR, 3, 3)] == asked(recovery.resume(Resume(7, DONOR), LEAD))
    assert 2 == recovery.held()


def test_another_donor_begins_anew(recovery):
    """Pieces of two learners make no state."""
    recovery.take(*piece(0), LEAD)
    effects = recovery.resume(Resume(7, OTHER), LEAD)
    assert Drop("in/3/0") in effects
    assert [(OTHER, 0, 0)] == asked(effects)
    assert [] == recovery.take(*piece(1), LEAD)  # The old donor is late.
    assert 0 == recovery.held()


def test_another_copy_begins_anew(recovery):
    """The donor had let go of the first one."""
    recovery.take(*piece(0), LEAD)
    effects = recovery.take(*piece(1, copy=9), LEAD)
    assert [Drop("in/3/0"), Keep("in/9/1")] == [e for e in effects if isinstance(e, Keep | Drop)]
    assert [(DONOR, 9, 0), (DONOR, 9, 2)] == asked(effects)
    assert 9 == recovery.copy


@pytest.mark.parametrize(
    ("said", "handle"),
    [
        (StatePiece(OTHER, 3, 0, 4, (5, 6)), "in/1"),
        (StatePiece(DONOR, 3, 0, 4, (5, 6)), ""),
        (StatePiece(DONOR, 3, 0, PIECES_MAX + 1, (5, 6)), "in/1"),
    ],
    ids=["of another", "without bytes", "too many"],
)
def test_what_was_not_asked_for_is_not_taken(recovery, said, handle):
    """A piece of another learner, an empty one, one of a copy without end."""
    assert [] == recovery.take(said, handle, LEAD)
    assert 0 == recovery.held()


def test_a_piece_that_comes_twice_is_held_once(recovery):
    """And one beyond the end is not held."""
    recovery.take(*piece(0), LEAD)
    again, beyond = recovery.take(*piece(0), LEAD), recovery.take(*piece(4), LEAD)
    assert [] == [each for each in (*again, *beyond) if isinstance(each, Keep | Drop)]
    assert 1 == recovery.held()


def test_ones_own_state_is_there_already():
    """No donor is asked for one; the position in the data comes from the syncer all the same."""
    recovery = StateRecovery()
    assert [Keep("own")] == recovery.bring(OwnState("syncer.1:9", 3, (5, 6), "own", b"d"))
    assert recovery.complete
    assert [] == recovery.resume(Resume(7, DONOR), LEAD)
    assert (7, (5, 6), ("own",)) == (recovery.batches, recovery.versions, recovery.handles())
    assert {"from": "syncer.1:9", "copy": 3, "batches": 7} == recovery.seen
    assert [] == recovery.take(*piece(0), LEAD)


def test_ones_own_state_may_be_of_no_use():
    """It is released without a message, and a donor's is requested when one is named again."""
    recovery = StateRecovery()
    recovery.bring(OwnState("syncer.1:9", 3, (5, 6), "own", b"d"))
    recovery.resume(Resume(7, DONOR), LEAD)
    assert [] == recovery.refused("NaN", LEAD)
    assert [Drop("own")] == recovery.give_up()
    assert [(DONOR, 0, 0)] == asked(recovery.resume(Resume(7, DONOR), LEAD))
    [refused] = recovery.refused("NaN", LEAD)
    assert DONOR == refused.body.who
