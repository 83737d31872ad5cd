"""The syncer's side of state recovery: it names donors for restarted learners and relays requests
and pieces. Without a donor, the learner starts from the global fragments. State passes through the
syncer because learners accept no connections: a job has one open address and one list of keys."""

from msgspec import Struct

from clocks import actor_of, number_of
from ddloco.job.protocol.messages import Resume, StatePiece, StateRefused, StateWanted
from ddloco.job.protocol.status import RecoveringMember
from ddloco.job.protocol.timers import DonorDeadline
from ddloco.job.protocol.work import EncodePiece, PieceEncoded
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.rounds import Rounds
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Observe
from transport import BULK, CONTROL, Body, CancelTimer, Drop, Effect, Keep, Send, SetTimer

PATIENCE_S_MIN = 10.0
PATIENCE_STEPS = 3.0
"""A donor is replaced if no piece of its state arrives for ten seconds or three of its steps,
whichever is longer. Steps count because a donor copies its state between two steps."""

AGAIN_S = 5.0
"""Seconds until a learner is told again to begin alone: it answers each time, and may wait for long
until all fragments have come."""

PASSING_MAX = 64
"""Pieces that are relayed at once; a learner requests two at a time."""


class Handover(Struct, forbid_unknown_fields=True):
    """A learner that waits for state.

    Attributes:
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
    tried: list[str] = []


class StateRelay(Struct, forbid_unknown_fields=True):
    """The recoveries in progress.

    Attributes:
        greeted: the peers that were told where they stand, and when that was, in seconds.
        passing: by work number, a piece that is copied: the learner, the message, the piece's
            handle and that of the copy.
    """

    handovers: dict[str, Handover] = {}
    greeted: dict[str, float] = {}
    passing: dict[int, tuple[str, StatePiece, str, str]] = {}

    def held(self) -> int:
        return 2 * len(self.passing)

    def waits(self, peer: str) -> bool:
        """Whether a learner is receiving state, so that it needs no global fragments yet."""
        return peer in self.handovers

    def waiting(self, at: float) -> tuple[RecoveringMember, ...]:
        return tuple(
            RecoveringMember(each.peer, each.donor, at - each.since, max(each.until - at, 0.0))
            for each in self.handovers.values()
        )

    def heard(
        self, at: float, member: Member, versions: tuple[int, ...], rounds: Rounds
    ) -> list[Effect]:
        """Handle a learner's report: name a donor if the learner has no state, but not until every
        fragment has been merged once: a donor's state is then hardly better than the global
        fragments."""
        peer, incarnation = member.peer, member.incarnation
        if min(versions) >= 0:
            return self._done(peer)
        merged = rounds.globals.merged
        if peer in self.handovers or (not merged and number_of(incarnation) == 1):
            return []
        told_at = self.greeted.get(peer)
        if told_at is not None and at - told_at < AGAIN_S:
            return []
        self.greeted[peer] = at
        batches, cursor = rounds.membership.place_of(actor_of(incarnation))
        handover = Handover(peer, batches, cursor, "", at)
        if told_at is not None:  # The message to begin alone may have been lost.
            return [self._begin_alone(handover)]
        return self._name_donor(at, handover, rounds) if merged else [self._begin_alone(handover)]

    def _begin_alone(self, handover: Handover) -> Effect:
        return Send(handover.peer, CONTROL, Resume(handover.batches, "", handover.cursor))

    def _name_donor(self, at: float, handover: Handover, rounds: Rounds) -> list[Effect]:
        """Name the donor that serves the fewest learners, the first by name among equals."""
        peer = handover.peer
        busy = [each.donor for each in self.handovers.values()]
        members = rounds.membership.members.values()
        donors = [each for each in members if self._suits(at, handover, each, rounds)]
        if not donors:
            return [*self._done(peer), self._begin_alone(handover)]
        donor = min(donors, key=lambda each: busy.count(each.peer))
        handover.donor = donor.peer
        handover.tried.append(donor.peer)
        self.handovers[peer] = handover
        return [
            Send(peer, CONTROL, Resume(handover.batches, donor.peer, handover.cursor)),
            self._patience(at, handover, donor),
            Observe("recovering", {"learner": peer, "donor": donor.peer}),
        ]

    def _suits(self, at: float, handover: Handover, member: Member, rounds: Rounds) -> bool:
        """Whether a member can be a donor: it trains, is not silent, and is not far behind."""
        progress, peer = member.progress, member.peer
        if peer == handover.peer or peer in handover.tried or peer in self.handovers:
            return False
        if progress is None or progress.step == 0 or member.strikes:
            return False
        if rounds.membership.silent(at, member):
            return False
        parts, held = rounds.globals, progress.versions
        return min(held) >= 0 and all(held[p] >= parts.oldest(p) for p in parts.owned)

    def _patience(self, at: float, handover: Handover, donor: Member) -> Effect:
        handover.until = at + max(PATIENCE_S_MIN, PATIENCE_STEPS * donor.report_s)
        return SetTimer(DonorDeadline(handover.peer), handover.until)

    def moving(self, at: float, peer: str, membership: Membership) -> list[Effect]:
        """Extend the wait for a donor whose bytes arrive; its piece may follow a large message."""
        donor = membership.members.get(peer)
        waiting = [each for each in self.handovers.values() if each.donor == peer]
        return [self._patience(at, each, donor) for each in waiting] if donor is not None else []

    def hear(
        self,
        at: float,
        member: Member,
        body: Body,
        handle: str,
        *,
        rounds: Rounds,
        work: WorkNumbers,
    ) -> list[Effect]:
        match body:
            case StateWanted():
                return self.wanted(member.peer, body)
            case StatePiece():
                return self.piece(at, member, body, handle, rounds=rounds, work=work)
            case StateRefused():
                return self.refused(at, member.peer, body, rounds)
            case _:
                return []

    def wanted(self, peer: str, said: StateWanted) -> list[Effect]:
        """Relay a learner's request for a piece to its donor."""
        handover = self.handovers.get(peer)
        if handover is None or handover.donor != said.who:
            return []
        return [Send(said.who, CONTROL, StateWanted(peer, said.copy, said.piece))]

    def piece(
        self,
        at: float,
        donor: Member,
        said: StatePiece,
        handle: str,
        *,
        rounds: Rounds,
        work: WorkNumbers,
    ) -> list[Effect]:
        """Relay a donor's piece as a copy, because the memory of received messages is reused."""
        handover = self.handovers.get(said.who)
        if handover is None or handover.donor != donor.peer or len(self.passing) >= PASSING_MAX:
            return []
        if not said.pieces:  # Its task cannot copy state, at any donor.
            return [*self._done(said.who), self._begin_alone(handover)]
        if not handle:
            return []
        newest, held = rounds.globals.versions, said.versions
        if len(held) != len(newest) or any(held[p] > newest[p] for p in rounds.globals.owned):
            refused = StateRefused(donor.peer, f"versions {held}")
            return self.refused(at, said.who, refused, rounds)
        number = work.next()
        out = f"piece/{number}"
        body = StatePiece(donor.peer, said.copy, said.piece, said.pieces, said.versions)
        self.passing[number] = (said.who, body, handle, out)
        encode = EncodePiece(number, 0, handle, out)
        return [Keep(handle), Keep(out), encode, self._patience(at, handover, donor)]

    def refused(self, at: float, peer: str, said: StateRefused, rounds: Rounds) -> list[Effect]:
        """Name another donor, because the learner cannot use the state of this one."""
        handover = self.handovers.get(peer)
        if handover is None or handover.donor != said.who:
            return []
        seen = {"learner": said.who, "reason": f"its state: {said.reason}", "by": peer}
        return [Observe("refused", seen), *self._name_donor(at, handover, rounds)]

    def encoded(self, event: PieceEncoded) -> list[Effect]:
        peer, body, handle, out = self.passing.pop(event.work)
        key = f"state/{body.piece}"
        passed = [Send(peer, BULK, body, out, key)] if peer in self.handovers else []
        return [*passed, Drop(handle), Drop(out)]

    def _done(self, peer: str) -> list[Effect]:
        """End a learner's recovery, because it has state or starts without."""
        return [CancelTimer(DonorDeadline(peer))] if self.handovers.pop(peer, None) else []

    def lost(self, at: float, peer: str, rounds: Rounds) -> list[Effect]:
        """Handle a lost link: end that learner's recovery, and replace it as a donor."""
        self.greeted.pop(peer, None)
        effects = self._done(peer)
        for handover in [each for each in self.handovers.values() if each.donor == peer]:
            effects += self._name_donor(at, handover, rounds)
        return effects

    def forget_the_gone(self, at: float, rounds: Rounds) -> list[Effect]:
        """Handle incarnations that a newer one has replaced like lost links."""
        known = sorted(self.greeted.keys() | self.handovers.keys())
        gone = [peer for peer in known if peer not in rounds.membership.members]
        return [effect for peer in gone for effect in self.lost(at, peer, rounds)]

    def late(self, at: float, peer: str, rounds: Rounds) -> list[Effect]:
        handover = self.handovers.get(peer)
        return [] if handover is None else self._name_donor(at, handover, rounds)
