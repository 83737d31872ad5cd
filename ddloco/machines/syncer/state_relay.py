"""The syncer's side of state recovery: it names donors and relays their state to learners.

This machine is part of the syncer machine. It names a donor for a restarted learner, relays
requests and pieces, and names another donor if one is lost or silent. Without a donor, the learner
starts from the global fragments. State passes through the syncer because learners accept no
connections: a job has one open address and one list of keys.
"""

from dataclasses import dataclass, field

from clocks import actor_of, number_of
from ddloco.job.protocol.effects import EncodePiece
from ddloco.job.protocol.events import PieceEncoded
from ddloco.job.protocol.messages import Resume, StatePiece, StateRefused, StateWanted
from ddloco.job.protocol.status import RecoveringMember
from ddloco.machines.syncer.global_fragments import Globals
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Observe
from transport import BULK, CONTROL, Body, CancelTimer, Drop, Effect, Keep, Send, SetTimer

RELAY = "state/"
PATIENCE_S_MIN = 10.0
PATIENCE_STEPS = 3.0
"""A donor is replaced if no piece of its state arrives for ten seconds or three of its steps,
whichever is longer. Steps count because a donor copies its state between two steps."""

PASSING_MAX = 64
"""Pieces that are relayed at once; a learner requests two at a time."""


@dataclass(slots=True)
class Handover:
    """A learner that waits for state.

    Attributes:
        peer: the learner.
        batches: the batches of its shard that its earlier incarnations have drawn.
        cursor: the position of its data stream after them.
        donor: the peer that gives the state.
        since: the time at which the recovery began, in seconds.
        until: the time at which the donor is replaced unless a piece arrives, in seconds.
        tried: this donor and those before it.
    """

    peer: str
    batches: int
    cursor: bytes
    donor: str
    since: float
    until: float = 0.0
    tried: list[str] = field(default_factory=list[str])


class Relay:
    """The recoveries in progress.

    Args:
        membership: the connected learners.
        parts: the global fragments.
        work: the machine's work numbers.
    """

    def __init__(self, membership: Membership, parts: Globals, work: WorkNumbers) -> None:
        self._membership = membership
        self._parts = parts
        self._work = work
        self._handovers: dict[str, Handover] = {}
        self._greeted: set[str] = set()
        self._passing: dict[int, tuple[str, StatePiece, str, str]] = {}

    def held(self) -> int:
        """Return the number of references to arrays that this machine holds."""
        return 2 * len(self._passing)

    def waits(self, peer: str) -> bool:
        """Whether a learner is receiving state, so that it needs no global fragments yet."""
        return peer in self._handovers

    def waiting(self, at: float) -> tuple[RecoveringMember, ...]:
        """Return the recoveries in progress."""
        return tuple(
            RecoveringMember(each.peer, each.donor, at - each.since, max(each.until - at, 0.0))
            for each in self._handovers.values()
        )

    def heard(self, at: float, member: Member, versions: tuple[int, ...]) -> list[Effect]:
        """Handle a learner's report: name a donor if the learner has no state.

        Until every fragment has been merged once, no donor is named, because a donor's state is
        then hardly better than the global fragments.
        """
        peer, incarnation = member.peer, member.incarnation
        if min(versions) >= 0:
            return self._done(peer)
        merged = self._parts.merged
        if peer in self._handovers or (not merged and number_of(incarnation) == 1):
            return []
        batches, cursor = self._membership.place_of(actor_of(incarnation))
        handover = Handover(peer, batches, cursor, "", at)
        if peer in self._greeted:  # The message to begin alone may have been lost.
            return [self._begin_alone(handover)]
        self._greeted.add(peer)
        return self._name_donor(at, handover) if merged else [self._begin_alone(handover)]

    def _begin_alone(self, handover: Handover) -> Effect:
        return Send(handover.peer, CONTROL, Resume(handover.batches, "", handover.cursor))

    def _name_donor(self, at: float, handover: Handover) -> list[Effect]:
        """Name the donor that serves the fewest learners, the first by name among equals.

        Without a donor, the learner starts from the global fragments.
        """
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
        """Whether a member can be a donor: it trains, is not silent, and is not far behind."""
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
        """Extend the wait for a donor whose bytes arrive; its piece may follow a large message."""
        donor = self._membership.members.get(peer)
        waiting = [each for each in self._handovers.values() if each.donor == peer]
        return [self._patience(at, each, donor) for each in waiting] if donor is not None else []

    def hear(self, at: float, member: Member, body: Body, handle: str) -> list[Effect]:
        """Handle a learner's message about state recovery."""
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
        """Relay a learner's request for a piece to its donor."""
        handover = self._handovers.get(peer)
        if handover is None or handover.donor != said.who:
            return []
        return [Send(said.who, CONTROL, StateWanted(peer, said.copy, said.piece))]

    def piece(self, at: float, donor: Member, said: StatePiece, handle: str) -> list[Effect]:
        """Relay a donor's piece as a copy, because the memory of received messages is reused."""
        handover = self._handovers.get(said.who)
        if handover is None or handover.donor != donor.peer or len(self._passing) >= PASSING_MAX:
            return []
        if not said.pieces:  # Its task cannot copy state, at any donor.
            return [*self._done(said.who), self._begin_alone(handover)]
        if not handle:
            return []
        newest, held = self._parts.versions, said.versions
        if len(held) != len(newest) or any(held[p] > newest[p] for p in self._parts.owned):
            return self.refused(at, said.who, StateRefused(donor.peer, f"versions {held}"))
        work = self._work.next()
        out = f"piece/{work}"
        body = StatePiece(donor.peer, said.copy, said.piece, said.pieces, said.versions)
        self._passing[work] = (said.who, body, handle, out)
        encode = EncodePiece(work, 0, handle, out)
        return [Keep(handle), Keep(out), encode, self._patience(at, handover, donor)]

    def refused(self, at: float, peer: str, said: StateRefused) -> list[Effect]:
        """Name another donor, because the learner cannot use the state of this one."""
        handover = self._handovers.get(peer)
        if handover is None or handover.donor != said.who:
            return []
        seen = {"learner": said.who, "reason": f"its state: {said.reason}", "by": peer}
        return [Observe("refused", seen), *self._name_donor(at, handover)]

    def encoded(self, event: PieceEncoded) -> list[Effect]:
        """Send a copied piece to its learner."""
        peer, body, handle, out = self._passing.pop(event.work)
        key = f"state/{body.piece}"
        passed = [Send(peer, BULK, body, out, key)] if peer in self._handovers else []
        return [*passed, Drop(handle), Drop(out)]

    def _done(self, peer: str) -> list[Effect]:
        """End a learner's recovery, because it has state or starts without."""
        return [CancelTimer(RELAY + peer)] if self._handovers.pop(peer, None) else []

    def lost(self, at: float, peer: str) -> list[Effect]:
        """Handle a lost link: end that learner's recovery, and replace it as a donor."""
        self._greeted.discard(peer)
        effects = self._done(peer)
        for handover in [each for each in self._handovers.values() if each.donor == peer]:
            effects += self._name_donor(at, handover)
        return effects

    def forget_the_gone(self, at: float) -> list[Effect]:
        """Handle incarnations that a newer one has replaced like lost links."""
        known = sorted(self._greeted | self._handovers.keys())
        gone = [peer for peer in known if peer not in self._membership.members]
        return [effect for peer in gone for effect in self.lost(at, peer)]

    def late(self, at: float, timer: str) -> list[Effect]:
        """Replace a donor whose time has run out."""
        handover = self._handovers.get(timer.removeprefix(RELAY))
        return [] if handover is None else self._name_donor(at, handover)
