"""Who gives state to whom: the syncer's part in a learner's return. A machine inside the syncer's.

It names a donor, passes requests and pieces on, and names another when a donor dies or is silent;
with nobody to ask, the learner begins from the globals. State goes through the syncer because
learners dial out and listen to nobody: there is one open address in a job, and one list of keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from clocks import actor_of, number_of
from ddloco.actors.effects import Observe
from ddloco.machines.syncer.global_fragments import Globals
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.protocol.effects import EncodePiece
from ddloco.protocol.events import PieceEncoded
from ddloco.protocol.messages import Resume, StatePiece, StateRefused, StateWanted
from transport import BULK, CONTROL, Body, CancelTimer, Drop, Effect, Keep, Send, SetTimer

RELAY = "state/"
PATIENCE_S_MIN = 10.0
PATIENCE_STEPS = 3.0
"""A donor from which no piece has come for ten seconds, or for three of its steps, since it copies
between two of them, is given up for another."""

PASSING_MAX = 64
"""Pieces that are copied on at once; a learner asks for two at a time."""


@dataclass(slots=True)
class Handover:
    """One learner that waits for state; ``donor`` is a peer, ``tried`` whoever was one before, and
    ``until`` is when it is another's turn, unless a piece comes."""

    peer: str
    batches: int
    cursor: bytes
    donor: str
    since: float
    until: float = 0.0
    tried: list[str] = field(default_factory=list[str])


class Relay:
    """Handovers under way.

    Args:
        membership: who is there.
        parts: the global fragments.
        next_work: numbers for work.
    """

    def __init__(
        self, membership: Membership, parts: Globals, next_work: Callable[[], int]
    ) -> None:
        self._membership = membership
        self._parts = parts
        self._next_work = next_work
        self._handovers: dict[str, Handover] = {}
        self._greeted: set[str] = set()
        self._passing: dict[int, tuple[str, StatePiece, str, str]] = {}

    def held(self) -> int:
        """How many holders of arrays there are."""
        return 2 * len(self._passing)

    def waits(self, peer: str) -> bool:
        """Whether a learner is being given state, so that it needs no globals yet."""
        return peer in self._handovers

    def waiting(self, at: float) -> list[dict[str, object]]:
        """Who waits for whose state, for people."""
        return [
            {
                "learner": each.peer,
                "donor": each.donor,
                "since_s": at - each.since,
                "until_s": max(each.until - at, 0.0),
            }
            for each in self._handovers.values()
        ]

    def heard(self, at: float, member: Member, versions: tuple[int, ...]) -> list[Effect]:
        """A learner reports what it holds: one that has nothing is told where its data goes on, and
        whose state it may take.

        Until every fragment has been merged once, a peer has little that the globals lack.
        """
        peer, incarnation = member.peer, member.incarnation
        if min(versions) >= 0:
            return self._done(peer)
        merged = self._parts.merged
        if peer in self._handovers or (not merged and number_of(incarnation) == 1):
            return []
        batches, cursor = self._membership.place_of(actor_of(incarnation))
        handover = Handover(peer, batches, cursor, "", at)
        if peer in self._greeted:  # It was told to begin alone, and that may have been lost.
            return [self._begin_alone(handover)]
        self._greeted.add(peer)
        return self._name_donor(at, handover) if merged else [self._begin_alone(handover)]

    def _begin_alone(self, handover: Handover) -> Effect:
        return Send(handover.peer, CONTROL, Resume(handover.batches, "", handover.cursor))

    def _name_donor(self, at: float, handover: Handover) -> list[Effect]:
        """The donor with the fewest to serve, then the first by name; without any, the globals."""
        peer = handover.peer
        busy = [each.donor for each in self._handovers.values()]
        members = self._membership.members.values()
        donors = [each for each in members if self._suits(at, handover, each)]
        if not donors:
            return [*self._done(peer), self._begin_alone(handover)]
        donor = min(donors, key=lambda each: busy.count(each.peer))
        handover.donor = donor.peer
        handover.tried.append(donor.peer)
        self._handovers[peer] = handover
        return [
            Send(peer, CONTROL, Resume(handover.batches, donor.peer, handover.cursor)),
            self._patience(at, handover, donor),
            Observe("recovering", {"learner": peer, "donor": donor.peer}),
        ]

    def _suits(self, at: float, handover: Handover, member: Member) -> bool:
        """Whether a member's state is worth having: it trains, is heard, is not far behind."""
        progress, peer = member.progress, member.peer
        if peer == handover.peer or peer in handover.tried or peer in self._handovers:
            return False
        if progress is None or progress.step == 0 or member.strikes:
            return False
        if self._membership.silent(at, member):
            return False
        parts, held = self._parts, progress.versions
        return min(held) >= 0 and all(held[p] >= parts.oldest(p) for p in parts.owned)

    def _patience(self, at: float, handover: Handover, donor: Member) -> Effect:
        handover.until = at + max(PATIENCE_S_MIN, PATIENCE_STEPS * donor.step_s)
        return SetTimer(RELAY + handover.peer, handover.until)

    def moving(self, at: float, peer: str) -> list[Effect]:
        """Bytes of a donor are arriving: its piece may lie behind something large."""
        donor = self._membership.members.get(peer)
        waiting = [each for each in self._handovers.values() if each.donor == peer]
        return [self._patience(at, each, donor) for each in waiting] if donor is not None else []

    def hear(self, at: float, member: Member, body: Body, handle: str) -> list[Effect]:
        """What a learner says about state."""
        match body:
            case StateWanted():
                return self.wanted(member.peer, body)
            case StatePiece():
                return self.piece(at, member, body, handle)
            case StateRefused():
                return self.refused(at, member.peer, body)
            case _:
                return []

    def wanted(self, peer: str, said: StateWanted) -> list[Effect]:
        """A learner asks its donor for a piece."""
        handover = self._handovers.get(peer)
        if handover is None or handover.donor != said.who:
            return []
        return [Send(said.who, CONTROL, StateWanted(peer, said.copy, said.piece))]

    def piece(self, at: float, donor: Member, said: StatePiece, handle: str) -> list[Effect]:
        """A donor sends a piece: a copy of it goes on, since the arrival's memory is used again."""
        handover = self._handovers.get(said.who)
        if handover is None or handover.donor != donor.peer or len(self._passing) >= PASSING_MAX:
            return []
        if not said.pieces:  # It cannot; nor can the others, who train the same task.
            return [*self._done(said.who), self._begin_alone(handover)]
        if not handle:
            return []
        newest, held = self._parts.versions, said.versions
        if len(held) != len(newest) or any(held[p] > newest[p] for p in self._parts.owned):
            return self.refused(at, said.who, StateRefused(donor.peer, f"versions {held}"))
        work = self._next_work()
        out = f"piece/{work}"
        body = StatePiece(donor.peer, said.copy, said.piece, said.pieces, said.versions)
        self._passing[work] = (said.who, body, handle, out)
        encode = EncodePiece(work, 0, handle, out)
        return [Keep(handle), Keep(out), encode, self._patience(at, handover, donor)]

    def refused(self, at: float, peer: str, said: StateRefused) -> list[Effect]:
        """A learner has no use for its donor's state; another's, then."""
        handover = self._handovers.get(peer)
        if handover is None or handover.donor != said.who:
            return []
        seen = {"learner": said.who, "reason": f"its state: {said.reason}", "by": peer}
        return [Observe("refused", seen), *self._name_donor(at, handover)]

    def encoded(self, event: PieceEncoded) -> list[Effect]:
        """A piece is copied: on with it."""
        peer, body, handle, out = self._passing.pop(event.work)
        key = f"state/{body.piece}"
        passed = [Send(peer, BULK, body, out, key)] if peer in self._handovers else []
        return [*passed, Drop(handle), Drop(out)]

    def _done(self, peer: str) -> list[Effect]:
        """A learner begins, with whatever came first."""
        return [CancelTimer(RELAY + peer)] if self._handovers.pop(peer, None) else []

    def lost(self, at: float, peer: str) -> list[Effect]:
        """A link is gone: its handover with it; whoever took state from there takes another's."""
        self._greeted.discard(peer)
        effects = self._done(peer)
        for handover in [each for each in self._handovers.values() if each.donor == peer]:
            effects += self._name_donor(at, handover)
        return effects

    def forget_the_gone(self, at: float) -> list[Effect]:
        """Whose place a newer incarnation has taken is not lost, but gone."""
        known = sorted(self._greeted | self._handovers.keys())
        gone = [peer for peer in known if peer not in self._membership.members]
        return [effect for peer in gone for effect in self.lost(at, peer)]

    def late(self, at: float, timer: str) -> list[Effect]:
        """Nothing has come from a donor for too long."""
        handover = self._handovers.get(timer.removeprefix(RELAY))
        return [] if handover is None else self._name_donor(at, handover)
