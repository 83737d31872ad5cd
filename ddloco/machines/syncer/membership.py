"""Membership: the learners that take part in a job. No learner is removed for being silent; a
membership ends when the link is lost, or a newer incarnation joins and the older one is refused.
Every change increments the *epoch*. Clocks forget replaced incarnations, so that they do not grow
with restarts."""

from bisect import bisect
from collections.abc import Container, Mapping, Sequence

from msgspec import Struct, field

from clocks import actor_of, number_of
from ddloco.job.protocol.messages import Progress, Roster
from ddloco.machines.syncer.accounts import LATE, PASSED, Accounts
from ddloco.machines.syncer.data_roster import AHEAD_MAX, DataRoster
from ddloco.machines.syncer.members import Member, new_member
from ddloco.machines.syncer.outlier_history import STRIKES
from ddloco.stage.actors.effects import Observe
from ddloco.stage.actors.observations import APART, DISREGARDED
from transport import CONTROL, Effect, Hangup, Retire, Send

SILENCE_STEPS = 10
SILENCE_S_MIN = 5.0
SILENCE_S_UNKNOWN = 120.0
"""A learner is silent after ten of its own steps without a report, at least five seconds; before
its first step, which includes compilation, after two minutes. A grace window does not wait for
silent learners."""


class Membership(Struct, forbid_unknown_fields=True):
    """The connected learners, and the records that outlive their links.

    Attributes:
        members: the connected learners by peer, sorted by name as bytes.
        epoch: the number of changes to the set of members.
        merged: for each incarnation and fragment, the base version of its last merged contribution;
            -1 for none. It outlives links and syncer restarts, because those tokens must not be
            merged again.
        batches: for each actor, the reported number of batches drawn from its shard.
        cursors: for each actor, a number of batches and the position of its data stream and
            schedules after them; see ``Progress``.
        counters: the most batches that a learner has reported, and the counters of the task's state
            that it had then.
        reasons: for each incarnation, why its last rejected contribution was rejected; the newest
            is the last.
    """

    fragments: int
    members: dict[str, Member] = {}
    epoch: int = 0
    merged: dict[str, list[int]] = {}
    newest: dict[str, int] = {}
    refused: dict[str, int] = {}
    batches: dict[str, int] = {}
    cursors: dict[str, tuple[int, bytes]] = {}
    counters: tuple[int, tuple[int, ...]] = (0, ())
    reasons: dict[str, str] = {}
    accounts: Accounts = field(default_factory=Accounts)
    data: DataRoster = field(default_factory=DataRoster)
    stale: dict[str, None] = {}
    """Members that have not finished a step since the last launch."""
    reported: dict[str, None] = {}
    """Members that have reported since this was last read; see ``Rounds``."""
    is_first: bool = False
    """Whether this is the lead and no other was before it: whoever began was told by it where."""
    found: str = ""
    """The member that ``missing`` last found worth waiting for."""

    def report(self, at: float, member: Member, progress: Progress) -> str | None:
        problem = self._untrue(member, progress) or member.report(at, progress)
        if problem is None:
            self.reported[member.peer] = None
            self.accounts.report(member.incarnation, progress)
            if progress.counters and progress.batches >= self.counters[0]:
                self.counters = progress.batches, progress.counters
            if member.fresh:
                self.stale.pop(member.peer, None)
        return problem

    def _untrue(self, member: Member, progress: Progress) -> str | None:
        """Return why a report of used batches cannot be, or None if it can: without its own steps
        they are those that the lead told it of when it began."""
        known, earlier = self.batches.get(actor_of(member.incarnation), 0), member.progress
        before, most = progress.batches - progress.step, known + (not self.is_first) * AHEAD_MAX
        same = earlier is None or not earlier.step or before == earlier.batches - earlier.step
        if self.data.shards or (before <= most and same):
            return None
        said = f"report of {progress.batches} batches after {progress.step} steps"
        return f"{said}, {known} were known"

    def launched(self, steps: int) -> None:
        """Note the launch of a sync ``steps`` global steps after the one before: only who takes
        several steps together may have one left that counts."""
        for member in self.members.values():
            member.launched(steps)
        self.stale = {peer: None for peer, member in self.members.items() if not member.fresh}

    def join(self, at: float, peer: str, incarnation: str) -> tuple[Member | None, list[Effect]]:
        """Add a member for a new link; None if a newer incarnation of the same actor is known."""
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
        self.accounts.join(at, incarnation)
        self._merged(incarnation)
        member = new_member(peer, incarnation, self.fragments, at)
        self.stale[peer] = None
        # The members stay sorted by name as bytes, so that no caller has to sort them.
        self.members.pop(peer, None)
        entries = list(self.members.items())
        entries.insert(bisect(list(self.members), peer.encode(), key=str.encode), (peer, member))
        self.members = dict(entries)
        self.epoch += 1
        roster = self.roster()
        if roster is not None:
            others = list(self.members) if effects else [peer]
            effects += [Send(each, CONTROL, roster, key="roster") for each in others]
        return member, effects

    def roster(self) -> Roster | None:
        floors = self._floors()
        return Roster(self.epoch, floors) if floors else None

    def _forget_former(self, actor: str, number: int, effects: list[Effect]) -> None:
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
        """Return the newest incarnation number of every restarted actor, sorted by name, as it is
        in the decoded message, so that both sides see the same order."""
        if max(self.newest.values(), default=1) == 1:
            return {}
        return dict(sorted(pair for pair in self.newest.items() if pair[1] > 1))

    def _merged(self, incarnation: str) -> list[int]:
        return self.merged.setdefault(incarnation, [-1] * self.fragments)

    def recover(self, fragment: int, merged: dict[str, int], batches: dict[str, int]) -> None:
        if self.data.shards:
            self.data.recover(batches)
        else:
            for actor, count in batches.items():
                self.note_batches(actor, count)
        for incarnation, base in merged.items():
            actor, number = actor_of(incarnation), number_of(incarnation)
            self.newest[actor] = max(self.newest.get(actor, 0), number)
            self._merged(incarnation)[fragment] = base

    def drawn(self) -> dict[str, int]:
        """Return what is kept with every merge of the batches drawn so far: their number by actor,
        or by data shard (see ``DataRoster.kept``)."""
        return self.data.kept() if self.data.shards else dict(self.batches)

    def note_batches(self, actor: str, count: int, cursor: bytes = b"") -> None:
        """Note the batches that an actor's incarnations have drawn from its shard so far; fewer
        than known are ignored."""
        if count >= self.batches.get(actor, 0):
            self.batches[actor] = count
            if cursor:
                self.cursors[actor] = count, cursor

    def place_of(self, actor: str) -> tuple[int, bytes]:
        """Return the batches that an actor has drawn and its cursor, empty if that is unknown."""
        batches = self.batches.get(actor, 0)
        count, cursor = self.cursors.get(actor, (0, b""))
        return batches, cursor if count == batches else b""

    def recovered(self) -> list[Effect]:
        for incarnation in list(self.merged):
            if number_of(incarnation) < self.newest[actor_of(incarnation)]:
                del self.merged[incarnation]
        floors = self._floors()
        return [Retire(floors)] if floors else []

    def lose(self, peer: str) -> Member | None:
        """Remove the member of a lost link; returns it, or None if there was none."""
        member = self.members.pop(peer, None)
        self.stale.pop(peer, None)
        self.epoch += member is not None
        return member

    def refuse(self, incarnation: str, t: int, fragment: int, reason: str) -> list[Effect]:
        """Reject a contribution: count it, remember the reason unless it was only late, log it; and
        say whose contributions are rejected again and again."""
        if reason != LATE:
            self.refused[incarnation] = self.refused.get(incarnation, 0) + 1
            self.reasons.pop(incarnation, None)
            self.reasons[incarnation] = reason
        fate = self.accounts.refuse(incarnation, reason)
        fields = {"learner": incarnation, "t": t, "fragment": fragment, "reason": reason}
        effects: list[Effect] = [Observe("refused", fields)]
        if reason != LATE and fate.is_new:
            told = {"level": "warning", "learner": incarnation, "in_row": fate.in_row}
            effects.append(Observe(DISREGARDED, {**told, "merged": fate.merged, "reason": reason}))
        return effects

    def look_apart(
        self, accepted: Sequence[str], own: Container[str], *, all_take_part: bool
    ) -> list[Effect]:
        """After a merge: say who trains and is never in one, if all are to take part, and who
        counts tokens or has batches otherwise than the others, but for those with batches of their
        ``own``; of each once."""
        trains = [m.incarnation for m in self.members.values() if m.progress and m.progress.step]
        without = [each for each in trains if each not in accepted] if all_take_part else []
        passed = self.accounts.pass_by(without)
        told = dict.fromkeys(passed, f"it trains, and was in none of {PASSED} merges")
        newest = {m.incarnation: m.progress.last for m in self.members.values() if m.progress}
        shapes = {who: last.shapes for who, last in newest.items() if last is not None}
        learner, said = self.accounts.compare(shapes, own)
        told |= {learner: said} if learner else {}
        return [
            Observe(APART, {"level": "warning", "learner": each, "reason": said})
            for each, said in told.items()
        ]

    def strike(self, member: Member) -> list[Effect]:
        """Count a contribution that the merge has rejected; a member that must start over begins
        its count anew."""
        member.strikes += 1
        if member.strikes < STRIKES:
            return []
        member.strikes = 0
        reason = f"{STRIKES} in a row refused, the last: {self.reasons[member.incarnation]}"
        return [Observe("starts over", {"learner": member.incarnation, "reason": reason})]

    def reset_strikes(self, peers: Sequence[str]) -> None:
        for member in (self.members[peer] for peer in peers if peer in self.members):
            member.strikes = 0

    def spent(self, fragment: int) -> dict[str, int]:
        """Return, by incarnation, the base version of the last contribution to ``fragment``. An
        incarnation that has replaced another is in it also if it has contributed nothing (-1): a
        syncer that restarts from this record must know that the other was replaced, which may still
        live, and join again."""
        return {
            name: bases[fragment]
            for name, bases in self.merged.items()
            if bases[fragment] >= 0 or number_of(name) > 1
        }

    def able(self, fragment: int, oldest: int) -> list[Member]:
        """Return the members that count for the quorum: they have finished a step since the last
        launch and would be pulled."""
        return [each for each in self.unmerged(fragment, oldest) if each.fresh]

    def unmerged(self, fragment: int, oldest: int) -> list[Member]:
        """Return the members with unmerged training of ``fragment``, sorted by name as bytes. A
        slow learner answers from its last finished step at once, so it delays no merge. One that
        left the last pull unanswered and has sent nothing since is left out: every merge would wait
        for it until the deadline."""
        members, merged = self.members.values(), self.merged
        return [
            each
            for each in members
            if each.may_be_pulled(fragment, oldest, merged[each.incarnation][fragment])
        ]

    def may_be_pulled(self, member: Member, fragment: int, oldest: int) -> bool:
        return member.may_be_pulled(fragment, oldest, self.merged[member.incarnation][fragment])

    def absence(self, member: Member, fragment: int, oldest: int) -> str | None:
        """Return in words why a member is not pulled, or None where it would be."""
        reason = member.absence(fragment, oldest, self.merged[member.incarnation][fragment])
        if reason is None and member.unanswered:
            reason = "left its last pull unanswered and has sent nothing since"
        return reason

    def note_unanswered(self, pulled: Mapping[str, int], answered: Container[str]) -> None:
        """Note which members left the pull of a closed sync unanswered. They are not pulled again,
        and count for no quorum, until they send something. ``pulled`` says how often each had
        spoken by then."""
        for peer, spoken in pulled.items():
            member = self.members.get(peer)
            if member is not None and peer not in answered and member.spoken == spoken:
                member.unanswered = True
                self.reported[peer] = None

    def missing(self, at: float, until: float) -> bool:
        """Whether a member is worth waiting for until ``until``, in seconds: connected, not fresh,
        and expected by then. This runs at every event, so the member found last is checked
        first."""
        members = self.members
        if self.found in self.stale and self.worth_waiting(members[self.found], at, until):
            return True
        stale = (members[peer] for peer in self.stale)
        found = (each for each in stale if self.worth_waiting(each, at, until))
        first = next(found, None)
        self.found = first.peer if first is not None else ""
        return first is not None

    def worth_waiting(self, member: Member, at: float, until: float) -> bool:
        """Whether a member is expected to finish a step by ``until``, and is not overdue by more
        than a step of its own already."""
        overdue = member.report_s and at > member.due_at + member.report_s
        return member.due_at <= until and not overdue and not self.silent(at, member)

    def silent(self, at: float, member: Member) -> bool:
        """Whether a member has sent no report for longer than its own pace explains."""
        report_s, quiet_s = member.report_s, at - member.heard_at
        if not report_s:
            return quiet_s > SILENCE_S_UNKNOWN
        return quiet_s > SILENCE_S_MIN and quiet_s > SILENCE_STEPS * report_s
