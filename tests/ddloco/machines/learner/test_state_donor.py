"""A learner that gives its state: one copy between two steps, handed out piece by piece."""

import pytest

from ddloco.job.protocol.messages import StatePiece, StateWanted
from ddloco.job.protocol.timers import CopyUnused
from ddloco.job.protocol.work import CopyState, EncodePiece, PieceEncoded, StateCopied
from ddloco.machines.learner.state_donor import ASKED_MAX, LENDING_S, StateDonor
from ddloco.machines.work_numbers import WorkNumbers
from transport import BULK, CONTROL, Drop, Keep, Send, SetTimer

ANNA, BERT = "learner-1.2", "learner-2.2"


class Harness:
    """Lending, and numbers for its work."""

    def __init__(self):
        self.numbers = WorkNumbers()
        self.machine = StateDonor()

    @property
    def work(self):
        """The number of the newest work."""
        return self.numbers.newest

    def boundary(self, step=5, versions=(1, 2)):
        """Between two steps."""
        return self.machine.between_steps(step, versions, self.numbers)

    def copied(self, pieces=3):
        """The copy is made."""
        return self.machine.copied(
            11.0, StateCopied(self.work, pieces, b"d"), "syncer", self.numbers
        )


@pytest.fixture
def harness():
    """No learner has asked yet."""
    return Harness()


@pytest.fixture
def lending(harness):
    """A copy of three pieces stands; the first was asked for, and is being cut."""
    harness.machine.wanted(9.0, StateWanted(ANNA, 0, 0), harness.numbers)
    harness.boundary()
    harness.copied()
    return harness


def of(kind, effects):
    """The effects of a kind."""
    return [each for each in effects if isinstance(each, kind)]


def test_nothing_is_copied_unasked(harness):
    """A boundary without a request is nothing."""
    assert [] == harness.boundary()


def test_one_copy_is_made_between_steps_for_all_who_ask(harness):
    """Nothing happens at once; and a second request asks for no second copy."""
    assert [] == harness.machine.wanted(9.0, StateWanted(ANNA, 0, 0), harness.numbers)
    (copy,) = of(CopyState, harness.boundary())
    assert "state/5" == copy.out
    assert [] == harness.machine.wanted(9.0, StateWanted(BERT, 0, 0), harness.numbers)
    assert [] == harness.boundary(6)
    cut = of(EncodePiece, harness.copied())
    assert [(0, "state/5"), (0, "state/5")] == [(each.piece, each.source) for each in cut]


def test_a_piece_says_whose_it_is_of_which_copy_and_versions(lending):
    """Those that were held when the copy was made, whatever is held by now."""
    effects = lending.machine.encoded(PieceEncoded(2, b"d"), "syncer")
    (send,) = of(Send, effects)
    assert (BULK, "piece/2") == (send.lane, send.payload)
    assert StatePiece(ANNA, 5, 0, 3, (1, 2)) == send.body
    assert [Drop("state/5"), Drop("piece/2")] == of(Drop, effects)
    assert 1 == lending.machine.held()


def test_pieces_of_the_copy_are_cut_as_they_are_asked_for(lending):
    """Each request also gives the copy a minute more."""
    effects = lending.machine.wanted(20.0, StateWanted(ANNA, 5, 2), lending.numbers)
    (cut,) = of(EncodePiece, effects)
    assert (2, "state/5") == (cut.piece, cut.source)
    assert SetTimer(CopyUnused(), 20.0 + LENDING_S) in effects
    assert [Keep("state/5"), Keep(cut.out)] == of(Keep, effects)


def test_a_request_for_a_copy_that_is_gone_begins_anew(lending):
    """Piece 7 of that one may not exist of this one."""
    (cut,) = of(EncodePiece, lending.machine.wanted(20.0, StateWanted(BERT, 4, 7), lending.numbers))
    assert 0 == cut.piece


def test_a_copy_that_is_not_asked_for_is_released(lending):
    """Those who are being served still get their piece; the next request makes a new copy."""
    assert Drop("state/5") in lending.machine.expire()
    assert [] == lending.machine.expire()
    assert of(Send, lending.machine.encoded(PieceEncoded(2, b"d"), "syncer"))
    assert 0 == lending.machine.held()
    assert [] == lending.machine.wanted(99.0, StateWanted(ANNA, 5, 1), lending.numbers)
    assert ["state/9"] == [each.out for each in of(CopyState, lending.boundary(9))]


def test_a_state_that_cannot_be_copied_is_said_to_be_so(harness):
    """All learners that asked are told, and no array is held."""
    for who in (ANNA, BERT):
        harness.machine.wanted(9.0, StateWanted(who, 0, 0), harness.numbers)
    harness.boundary()
    effects = harness.copied(pieces=0)
    assert [(CONTROL, ANNA, 0), (CONTROL, BERT, 0)] == [
        (each.lane, each.body.who, each.body.pieces) for each in of(Send, effects)
    ]
    assert [Drop("state/5")] == of(Drop, effects)
    assert 0 == harness.machine.held()


def test_requests_are_bounded(harness):
    """Whatever is beyond is not remembered."""
    for n in range(ASKED_MAX + 5):
        harness.machine.wanted(9.0, StateWanted(f"learner-{n}.1", 0, 0), harness.numbers)
    harness.boundary()
    assert ASKED_MAX == len(of(EncodePiece, harness.copied()))


def test_a_copy_that_is_still_being_made_is_not_let_go(harness):
    """A donor that was stopped for a minute in the middle of it finds its timer due first."""
    harness.machine.wanted(9.0, StateWanted(ANNA, 0, 0), harness.numbers)
    harness.boundary()
    assert [] == harness.machine.expire()
    assert of(EncodePiece, harness.copied())


def test_before_its_first_step_a_learner_has_nothing_to_lend(harness):
    """Its optimizer has no state yet."""
    harness.machine.wanted(9.0, StateWanted(ANNA, 0, 0), harness.numbers)
    assert [] == harness.boundary(step=0)
