"""The syncer's part in a return: who is named a donor, what is passed on, who comes next."""

import pytest

from ddloco.job.protocol.messages import Progress, Resume, StatePiece, StateRefused, StateWanted
from ddloco.job.protocol.status import RecoveringMember
from ddloco.job.protocol.timers import DonorDeadline
from ddloco.job.protocol.work import EncodePiece, PieceEncoded
from ddloco.machines.syncer.global_fragments import initial_globals
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.rounds import Rounds
from ddloco.machines.syncer.state_relay import AGAIN_S, PATIENCE_S_MIN, StateRelay
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Observe
from transport import BULK, CONTROL, CancelTimer, Drop, Send, SetTimer

P = 2
A1, A2, B1, C1 = "learner-0.1", "learner-0.2", "learner-1.1", "learner-2.1"


class Harness:
    """A relay among three learners that train, and one that comes back."""

    def __init__(self, merged=True):
        self.membership = Membership(P)
        self.globals = initial_globals(P, range(P), 4)
        if merged:
            for p in range(P):
                self.globals.recover(p, 6 + p)
        self.rounds = Rounds(self.membership, self.globals, OutlierHistory([]))
        self.relay, self.work = StateRelay(), WorkNumbers()
        for peer in (B1, C1):
            self.train(peer)
        self.membership.note_batches("learner-0", 17)
        self.newcomer, _ = self.membership.join(0.0, A2, A2)

    def train(self, peer, step=5, versions=(6, 7), step_s=1.0):
        """A learner is there and reports."""
        member = self.membership.members.get(peer) or self.membership.join(0.0, peer, peer)[0]
        member.report(0.0, Progress(step, step_s, versions, (1, 1), (8, 8), step))
        return member

    def come(self, at=1.0, versions=(-1, -1)):
        """The newcomer says what it has."""
        return self.relay.heard(at, self.newcomer, versions, self.rounds)

    def piece(self, donor=B1, index=0, pieces=3, handle="in/1", versions=(6, 7)):
        """A donor sends a piece."""
        said = StatePiece(A2, 5, index, pieces, versions)
        member = self.membership.members[donor]
        return self.relay.piece(2.0, member, said, handle, rounds=self.rounds, work=self.work)


@pytest.fixture
def harness():
    """Every fragment was merged; no learner has been given a donor yet."""
    return Harness()


def said(effects):
    """(peer, body) of what is said."""
    return [(each.peer, each.body) for each in effects if isinstance(each, Send)]


def test_who_comes_back_is_told_where_its_data_goes_on_and_whose_state_to_take(harness):
    """Once in a session, however often it says that it has nothing."""
    effects = harness.come()
    assert [(A2, Resume(17, B1))] == said(effects)
    assert SetTimer(DonorDeadline(A2), 1.0 + PATIENCE_S_MIN) in effects
    assert harness.relay.waits(A2)
    assert [] == harness.come(2.0)
    (waiting,) = harness.relay.waiting(3.0)
    assert RecoveringMember(learner=A2, donor=B1, since_s=2.0, until_s=8.0) == waiting


def test_before_everything_was_merged_once_globals_are_as_good():
    """Who comes back still hears where its data continues; who is new needs nothing."""
    harness = Harness(merged=False)
    assert [(A2, Resume(17, ""))] == said(harness.come())
    assert [] == harness.come(1.0 + AGAIN_S / 2), "it answers each time, while fragments come"
    assert [(A2, Resume(17, ""))] == said(harness.come(1.0 + AGAIN_S))  # One may have been lost.
    assert not harness.relay.waits(A2)
    new, _ = harness.membership.join(0.0, "learner-3.1", "learner-3.1")
    assert [] == harness.relay.heard(1.0, new, (-1, -1), harness.rounds)


@pytest.mark.parametrize(
    "unfit",
    [{"step": 0}, {"versions": (1, 7)}, {"versions": (-1, 7)}],
    ids=["has not begun", "is stale", "has no parameters"],
)
def test_a_donor_trains_and_is_not_far_behind(harness, unfit):
    """Else the next one is as good."""
    harness.membership.lose(B1)
    harness.train(B1, **unfit)
    assert [(A2, Resume(17, C1))] == said(harness.come())


def test_a_silent_one_is_no_donor(harness):
    """It may be stopped, or dead."""
    harness.train(C1, step_s=100.0)
    assert [(A2, Resume(17, C1))] == said(harness.come(at=60.0))


def test_donors_are_spread(harness):
    """Two that come back at once take from two."""
    harness.come()
    other, _ = harness.membership.join(0.0, "learner-3.2", "learner-3.2")
    assert [("learner-3.2", Resume(0, C1))] == said(
        harness.relay.heard(1.0, other, (-1, -1), harness.rounds)
    )


def test_requests_go_to_the_donor_and_pieces_to_who_asked(harness):
    """A piece is copied first: the memory it came in is used again."""
    harness.come()
    asked = harness.relay.wanted(A2, StateWanted(B1, 0, 0))
    assert [(B1, StateWanted(A2, 0, 0))] == said(asked)
    effects = harness.piece()
    (encode,) = [each for each in effects if isinstance(each, EncodePiece)]
    assert (0, "in/1") == (encode.piece, encode.source)
    assert SetTimer(DonorDeadline(A2), 2.0 + PATIENCE_S_MIN) in effects
    assert 2 == harness.relay.held()
    passed = harness.relay.encoded(PieceEncoded(encode.work, b"d"))
    assert [(A2, StatePiece(B1, 5, 0, 3, (6, 7)))] == said(passed)
    assert [encode.out] == [each.payload for each in passed if isinstance(each, Send)]
    assert [BULK] == [each.lane for each in passed if isinstance(each, Send)]
    assert [Drop("in/1"), Drop(encode.out)] == [each for each in passed if isinstance(each, Drop)]
    assert 0 == harness.relay.held()


def test_no_learner_sends_for_another(harness):
    """Only the donor that was named gives, only who was told so asks."""
    harness.come()
    assert [] == harness.piece(donor=C1)
    assert [] == harness.relay.wanted(C1, StateWanted(B1, 0, 0))
    assert [] == harness.relay.wanted(A2, StateWanted(C1, 0, 0))
    assert [] == harness.piece(handle="")


@pytest.mark.parametrize("how", ["lost", "silent"])
def test_a_donor_that_fails_is_replaced_until_there_is_none(harness, how):
    """Each is tried once; then the globals are there."""
    harness.come()

    def fail(at, donor):
        if how == "silent":
            return harness.relay.late(at, A2, harness.rounds)
        harness.membership.lose(donor)
        return harness.relay.lost(at, donor, harness.rounds)

    assert [(A2, Resume(17, C1))] == said(fail(2.0, B1))
    effects = fail(3.0, C1)
    assert [(A2, Resume(17, ""))] == said(effects)
    assert CancelTimer(DonorDeadline(A2)) in effects
    assert not harness.relay.waits(A2)


def test_a_task_whose_state_cannot_be_copied_begins_from_the_globals(harness):
    """No other donor is asked: they train the same task."""
    harness.come()
    assert [(A2, Resume(17, ""))] == said(harness.piece(pieces=0, handle=""))


def test_a_state_that_is_refused_is_anothers_turn(harness):
    """The donor is named in the log; only the learner that asked may refuse its state."""
    harness.come()
    assert [] == harness.relay.refused(2.0, C1, StateRefused(B1, "NaN"), harness.rounds)
    effects = harness.relay.refused(2.0, A2, StateRefused(B1, "NaN"), harness.rounds)
    assert [(A2, Resume(17, C1))] == said(effects)
    seen = [each.fields for each in effects if isinstance(each, Observe)]
    assert {"learner": B1, "reason": "its state: NaN", "by": A2} in seen


def test_it_is_over_when_the_learner_has_begun(harness):
    """Whatever came first; a piece that is still being copied goes nowhere."""
    harness.come()
    (encode,) = [each for each in harness.piece() if isinstance(each, EncodePiece)]
    assert [CancelTimer(DonorDeadline(A2))] == harness.come(versions=(6, 7))
    assert not harness.relay.waits(A2)
    assert [] == said(harness.relay.encoded(PieceEncoded(encode.work, b"d")))
    assert 0 == harness.relay.held()


def test_who_is_lost_while_it_waits_is_greeted_again(harness):
    """Its link has broken; the pieces that it has are good."""
    harness.come()
    assert [CancelTimer(DonorDeadline(A2))] == harness.relay.lost(2.0, A2, harness.rounds)
    sends = [each for each in harness.come(3.0) if isinstance(each, Send)]
    assert [(CONTROL, Resume(17, B1))] == [(each.lane, each.body) for each in sends]


@pytest.mark.parametrize("versions", [(6, 99), (6,)], ids=["of the future", "too few"])
def test_versions_that_cannot_be_are_refused(harness, versions):
    """A learner that took them over would take no global fragment any more."""
    harness.come()
    effects = harness.piece(versions=versions)
    assert [(A2, Resume(17, C1))] == said(effects)
    assert [B1] == [e.fields["learner"] for e in effects if getattr(e, "event", "") == "refused"]


def test_whose_place_is_taken_is_forgotten(harness):
    """A newer incarnation brings no word of the end of the older one."""
    harness.come()
    harness.membership.join(2.0, "learner-0.3", "learner-0.3")
    assert CancelTimer(DonorDeadline(A2)) in harness.relay.forget_the_gone(2.0, harness.rounds)
    assert not harness.relay.waits(A2)


def test_a_donor_whose_bytes_arrive_is_not_given_up(harness):
    """Its piece may lie behind a large fragment."""
    harness.come()
    (again,) = harness.relay.moving(9.0, B1, harness.membership)
    assert SetTimer(DonorDeadline(A2), 9.0 + PATIENCE_S_MIN) == again
    assert [] == harness.relay.moving(9.0, C1, harness.membership)
