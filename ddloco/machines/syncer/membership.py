"""Membership: who takes part, as the syncer sees it. A machine inside the syncer's.

Nobody is ever expelled for being silent: a learner that is stopped, cut off or slow simply is not
waited for, and is heard again when it speaks. What ends a membership is a link that is lost, or a
newer incarnation of the same learner; the older one is then refused for good, whatever it still
says. Every change has a number, the *epoch*; whoever has gone for good loses its entries in
everybody's clock, so that clocks do not grow with restarts.
"""

from bisect import bisect
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from clocks import actor_of, number_of
from ddloco.actors.effects import Observe
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.outlier_history import STRIKES
from ddloco.protocol.messages import Progress, Roster
from transport import CONTROL, Effect, Hangup, Retire, Send

SILENCE_STEPS = 10
SILENCE_S_MIN = 5.0
SILENCE_S_UNKNOWN = 120.0
"""A learner is silent after ten of its own steps without a word, at least five seconds; before its
first step, which compiles, after two minutes. A silent one is not waited for in a grace window."""


@dataclass(slots=True)
class Membership:
    """Members by peer, and what must be remembered of them.

    Attributes:
        fragments: how many a member may contribute to.
        members: whoever is linked, by peer, in order of names as bytes.
        epoch: how many times the set of members has changed.
        merged: per incarnation and fragment the base version of its last merged contribution, -1
            for none; it outlives a link and a syncer, since the tokens behind it are spent.
        newest: the highest incarnation number that was heard of each actor.
        refused: how many contributions of each incarnation were refused.
        batches: how many batches of its shard each actor has drawn, as far as it was heard.
        cursors: where its stream and schedules stood after how many of them; see ``Progress``.
        reasons: why the last of them was.
    """

    fragments: int
    members: dict[str, Member] = field(default_factory=dict[str, Member])
    epoch: int = 0
    merged: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    newest: dict[str, int] = field(default_factory=dict[str, int])
    refused: dict[str, int] = field(default_factory=dict[str, int])
    batches: dict[str, int] = field(default_factory=dict[str, int])
    cursors: dict[str, tuple[int, bytes]] = field(default_factory=dict[str, tuple[int, bytes]])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    stale: dict[str, Member] = field(default_factory=dict[str, Member])
    """Members that have not finished a step since the last launch."""
    reported: dict[str, Member] = field(default_factory=dict[str, Member])
    """Members that have reported since somebody looked."""
    found: str = ""
    """Who was worth waiting for when that was last asked."""

    def report(self, at: float, member: Member, progress: Progress) -> str | None:
        """Take a member's report; returns what is wrong with one that cannot be true."""
        problem = member.report(at, progress)
        if problem is None:
            self.reported[member.peer] = member
            if member.fresh:
                self.stale.pop(member.peer, None)
        return problem

    def launched(self) -> None:
        """A sync was launched: everybody has yet to finish a step after that."""
        for member in self.members.values():
            member.fresh = False
        self.stale = dict(self.members)

    def join(self, at: float, peer: str, incarnation: str) -> tuple[Member | None, list[Effect]]:
        """A link to ``peer`` is up: its member, or None where a newer incarnation has its place."""
        actor, number = actor_of(incarnation), number_of(incarnation)
        newest = self.newest.get(actor, 0)
        if number < newest:
            reason = f"a newer incarnation, {actor}.{newest}, has the place of {incarnation}"
            seen = Observe("refused", {"learner": incarnation, "reason": reason})
            return None, [seen, Hangup(peer, reason, final=True)]
        effects: list[Effect] = []
        if number > newest:
            self.newest[actor] = number
            if newest:
                self._forget_former(actor, number, effects)
            effects += [Retire({actor: number})] if number > 1 else []
        member = Member(peer, incarnation, self.fragments, self._merged(incarnation), at)
        self.stale[peer] = member
        # Always in order of names as bytes, so that nobody sorts on the way.
        self.members.pop(peer, None)
        entries = list(self.members.items())
        entries.insert(bisect(list(self.members), peer.encode(), key=str.encode), (peer, member))
        self.members = dict(entries)
        self.epoch += 1
        floors = self._floors()
        if floors:
            roster = Roster(self.epoch, floors)
            others = list(self.members) if effects else [peer]
            effects += [Send(each, CONTROL, roster, key="roster") for each in others]
        return member, effects

    def _forget_former(self, actor: str, number: int, effects: list[Effect]) -> None:
        """Let go of the older incarnations of an actor that has come back."""
        for member in list(self.members.values()):
            if actor_of(member.incarnation) == actor:
                reason = f"a newer incarnation, {actor}.{number}, has joined"
                effects.append(Hangup(member.peer, reason, final=True))
                del self.members[member.peer]
                self.stale.pop(member.peer, None)
        gone = [each for each in self.merged if actor_of(each) == actor]
        for incarnation in gone:
            del self.merged[incarnation]
            self.refused.pop(incarnation, None)
            self.reasons.pop(incarnation, None)

    def _floors(self) -> dict[str, int]:
        """Only who has ever come back has incarnations to forget. In the order of the decoded."""
        return {name: number for name, number in sorted(self.newest.items()) if number > 1}

    def _merged(self, incarnation: str) -> list[int]:
        return self.merged.setdefault(incarnation, [-1] * self.fragments)

    def recover(self, fragment: int, merged: dict[str, int], batches: dict[str, int]) -> None:
        """What a merge of ``fragment`` had used up before this syncer started."""
        for actor, count in batches.items():
            self.note_batches(actor, count)
        for incarnation, base in merged.items():
            actor, number = actor_of(incarnation), number_of(incarnation)
            self.newest[actor] = max(self.newest.get(actor, 0), number)
            self._merged(incarnation)[fragment] = base

    def note_batches(self, actor: str, count: int, cursor: bytes = b"") -> None:
        """An actor has drawn ``count`` batches of its shard, whichever of its selves it was; after
        them it stood at ``cursor``, where that is known."""
        if count >= self.batches.get(actor, 0):
            self.batches[actor] = count
            if cursor:
                self.cursors[actor] = count, cursor

    def place_of(self, actor: str) -> tuple[int, bytes]:
        """How many batches an actor has drawn, and where it stood after them, if that is known."""
        batches = self.batches.get(actor, 0)
        count, cursor = self.cursors.get(actor, (0, b""))
        return batches, cursor if count == batches else b""

    def recovered(self) -> list[Effect]:
        """All is recovered: incarnations that a newer one has replaced are forgotten here, too."""
        for incarnation in list(self.merged):
            if number_of(incarnation) < self.newest[actor_of(incarnation)]:
                del self.merged[incarnation]
        floors = self._floors()
        return [Retire(floors)] if floors else []

    def lose(self, peer: str) -> Member | None:
        """The link to ``peer`` is gone."""
        member = self.members.pop(peer, None)
        self.stale.pop(peer, None)
        self.epoch += member is not None
        return member

    def refuse(self, incarnation: str, t: int, fragment: int, reason: str) -> list[Effect]:
        """A contribution is refused whole: attributed, counted, told."""
        self.refused[incarnation] = self.refused.get(incarnation, 0) + 1
        self.reasons[incarnation] = reason
        fields = {"learner": incarnation, "t": t, "fragment": fragment, "reason": reason}
        return [Observe("refused", fields)]

    def strike(self, member: Member) -> list[Effect]:
        """One more of a member's contributions in a row was not believed by those who merge; says
        so when it is to start over."""
        member.strikes += 1
        if member.strikes < STRIKES:
            return []
        member.strikes = 0
        reason = f"{STRIKES} in a row refused, the last: {self.reasons[member.incarnation]}"
        return [Observe("starts over", {"learner": member.incarnation, "reason": reason})]

    def absolve(self, peers: Sequence[str]) -> None:
        """Contributions of these were merged: what comes next is counted anew."""
        for member in (self.members[peer] for peer in peers if peer in self.members):
            member.strikes = 0

    def spent(self, fragment: int) -> dict[str, int]:
        """Per incarnation the base whose tokens a merge of ``fragment`` has used up."""
        return {
            name: bases[fragment] for name, bases in self.merged.items() if bases[fragment] >= 0
        }

    def able(self, fragment: int, oldest: int) -> list[Member]:
        """Who counts for the quorum of ``fragment``: whoever has finished a step since the last
        launch and may contribute from version ``oldest`` on; in order of names as bytes."""
        members = self.members.values()
        return [each for each in members if each.fresh and each.may_contribute(fragment, oldest)]

    def unmerged(self, fragment: int, oldest: int) -> list[Member]:
        """Who has trained steps of ``fragment`` that are in no merge yet, in order of names.

        A slow learner answers from its last finished step at once, so nobody waits for it. One that
        did not answer the last pull and has been silent since is left out: it is stopped or cut
        off, and every merge would wait for it until the deadline.
        """
        return [
            each
            for each in self.members.values()
            if not each.unanswered and each.may_contribute(fragment, oldest)
        ]

    def note_unanswered(
        self, pulled: Sequence[str], answered: Container[str], launched_at: float
    ) -> None:
        """A sync is closed: who was ``pulled`` at ``launched_at`` (seconds), did not answer and has
        said nothing since is not pulled again until it is heard."""
        for peer in pulled:
            member = self.members.get(peer)
            if member is not None and peer not in answered and member.spoke_at <= launched_at:
                member.unanswered = True

    def missing(self, at: float, until: float) -> bool:
        """Whether anybody is worth waiting for until then: linked, heard of lately, not fresh, and
        by its own pace to finish a step by ``until`` (seconds). A slow one is not waited for in
        vain; what it has trained so far is pulled all the same.

        Asked with every event: who was found last is looked at first, and the others only when it
        is not worth waiting for any more."""
        last = self.stale.get(self.found)
        if last is not None and self._worth(last, at, until):
            return True
        found = (each for each in self.stale.values() if self._worth(each, at, until))
        first = next(found, None)
        self.found = first.peer if first is not None else ""
        return first is not None

    def _worth(self, member: Member, at: float, until: float) -> bool:
        return member.due_at <= until and not self.silent(at, member)

    def silent(self, at: float, member: Member) -> bool:
        """Whether a member has said nothing for longer than its own pace explains."""
        step_s = member.step_s
        patience = max(SILENCE_STEPS * step_s, SILENCE_S_MIN) if step_s else SILENCE_S_UNKNOWN
        return at - member.heard_at > patience

    def step_times(self) -> list[float]:
        """The members' smoothed step times; 0 for one that has not said any."""
        return [each.step_s for each in self.members.values() if each.progress is not None]
