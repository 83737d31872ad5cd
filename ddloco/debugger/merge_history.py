"""The merges of a syncer, with what each one waited for and who was not in it. A syncer's tape is
walked once with its machine (``replay.Stepper``), from launches, arrivals and results (paper:
Algorithm 2, section 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple

from msgspec import UNSET, Struct

from clocks import actor_of
from ddloco.job.protocol.messages import Contribution
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.work import FragmentMerged
from ddloco.machines.data_parallel.coordinator import Coordinator
from ddloco.machines.syncer.accounts import LATE
from ddloco.machines.syncer.machine import Syncer
from ddloco.machines.syncer.pacing import NextSync
from ddloco.machines.syncer.rounds import NOT_FRESH, Rounds
from ddloco.machines.syncer.syncs import Sync
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Observe
from replay import Step, Stepper
from transport import MessageArrived

SILENT = "has reported nothing since {since:.1f} s, for {for_s:.1f} s: stopped, hung or cut off"
"""Why a learner was not pulled that was silent: what it holds is a consequence."""


class Wait(Struct, frozen=True):
    """What held a launch, in seconds; the three parts add up to ``total_s``.

    Attributes:
        total_s: from the moment at which a slot for the sync was free to its launch.
        quorum_s: held by the quorum, beyond the floor.
        grace_s: held by the grace window, beyond floor and quorum.
    """

    total_s: float
    floor_s: float
    quorum_s: float
    grace_s: float


class MergeAnswer(Struct, frozen=True):
    """One learner's contribution to a merge, merged or refused.

    Attributes:
        event: the syncer's event at which it arrived; empty if that was before its tape begins.
        base: the version that it was trained from.
        step: the learner's inner step after which it was taken.
        digest: of its bytes, in hex; empty if it arrived before the tape begins.
        weight: its share in the merge; the weights of a merge add up to 1. 0 if it was refused.
        norm: the norm of its outer gradient; None where it was not measured.
        cosine: its cosine to the sum of the others' outer gradients; None where there were none.
        wait_s: seconds from the launch to its arrival; None if that was before the tape begins.
        relay: the relay in whose sum it was merged; empty if it came directly.
    """

    learner: str
    event: str
    base: int
    steps: int
    tokens: int
    step: int
    digest: str
    weight: float
    norm: float | None
    cosine: float | None
    wait_s: float | None
    relay: str = ""


Kind = Literal["absent", "late", "lost", "refused", "silent"]


class Absence(Struct, frozen=True):
    """A learner that is not in a merge, with the reason and the syncer's event that decided it.

    Attributes:
        event: the event; empty if it was before the tape begins.
        norm: of its outer gradient, if it was measured and refused.
        cosine: its cosine to the others' sum, likewise.
        kind: "refused" if its contribution was, for what it is; "late" if it was pulled, and did
            not answer before the sync was closed; "lost" if it was not connected; "silent" if it
            had reported nothing for long; else "absent", which may follow from one before.
    """

    learner: str
    reason: str
    event: str
    norm: float | None = None
    cosine: float | None = None
    kind: Kind = "absent"


class Merge(Struct, frozen=True):
    """One merge of one fragment.

    Attributes:
        t: its global step; the new version of the fragment.
        event: the syncer's event at which it was done.
        at: the time of that event, in seconds since the syncer's start.
        launched: the event at which the pulls were sent; empty if that was before the tape begins.
        live: learners that were connected at the launch.
        contributions: what was merged, in the order of summation.
        refused: contributions that arrived in time and were refused.
        moved: the distance that the outer step went (norm).
        theta: digest of the new parameters, in hex; ``state`` (of the outer optimizer) and ``wire``
            likewise.
        tensors: the beginnings of the digests of its tensors, in hex; empty if it has none.
        repeats: why earlier launches of it came to nothing, each with its event.
    """

    t: int
    fragment: int
    event: str
    at: float
    launched: str
    launched_at: float
    wait: Wait
    live: int
    contributions: tuple[MergeAnswer, ...]
    refused: tuple[MergeAnswer, ...]
    absent: tuple[Absence, ...]
    moved: float
    theta: str
    state: str
    wire: str
    tensors: str = ""
    repeats: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return int(self.event.rpartition(":")[2])


class _Arrival(NamedTuple):
    """A contribution, with the event and the time of its arrival and the digest of its bytes; empty
    and None if it arrived before the tape begins."""

    said: Contribution
    event: str = ""
    at: float | None = None
    digest: str = ""


@dataclass
class _Open:
    """A sync under way; ``launched`` is empty if that was before the tape begins."""

    sync: Sync
    launched: str
    absent: dict[str, Absence]
    live: int
    arrived: dict[str, _Arrival] = field(default_factory=dict[str, _Arrival])


class MergeHistory:
    def __init__(self, stepper: Stepper[Actor], learners: Sequence[str]) -> None:
        self.stepper = stepper
        self._syncer = stepper.tape.incarnation
        self._learners = learners
        self._known: list[Merge] = []
        self._ahead = self._walked()
        self._wrong: Exception | None = None
        """What ended the walk; whoever asks for more is told again."""
        self._open: dict[int, _Open] = {}
        self._repeats: dict[int, list[str]] = {}
        self._unseen = "it has not joined"
        """Why a learner is not connected of which the tape says nothing."""
        if stepper.number:
            self._unseen = "it has not joined since this tape begins"
        self._gone: dict[str, tuple[str, str]] = {}
        """By learner's name, how its link was last lost, and at which event."""
        self._used: dict[tuple[str, int, int], int] = {}
        """By learner, fragment and base version, the merge that used up its tokens."""
        self.told: list[tuple[int, float, Observe]] = []
        """What the syncer observed of learners, with the number and the time of its event."""
        self.numbers = Numbers()
        """The job's numbers at the last event that was seen."""
        self.is_whole = False
        """Whether it has walked to the tape's end."""
        self.disregarded: dict[str, str] = {}
        """Whose work was of no use to the job by then, in words."""

    def merges(self) -> Iterator[Merge]:
        """Yield all merges; each is computed once, when it is asked for first."""
        for position in count():
            if position == len(self._known):
                following = self._next()
                if following is None:
                    return
                self._known.append(following)
            yield self._known[position]

    def _next(self) -> Merge | None:
        if self._wrong is not None:
            raise self._wrong
        try:
            return next(self._ahead, None)
        except Exception as wrong:
            self._wrong = wrong
            raise

    def walk(self) -> "MergeHistory":
        """Walk to the end of the tape, where all that is not a merge is known, too."""
        for _ in self.merges():
            pass
        return self

    def _walked(self) -> Iterator[Merge]:
        self._begin()
        at, machine = 0.0, self.stepper.actor.machine
        for step in self.stepper.steps():
            at, machine = step.at, self.stepper.actor.machine
            for effect in step.effects:
                if type(effect) is Observe and "learner" in effect.fields:
                    self.told.append((step.number, at, effect))
            if isinstance(machine, Syncer) and machine.rounds is not None:
                merge = self._seen(step, machine, machine.rounds)
                if merge is not None:
                    yield merge
        if isinstance(machine, Syncer | Coordinator):
            self.numbers = machine.numbers(at)
            self.disregarded = machine.disregarded
        self.is_whole = True

    def _begin(self) -> None:
        """Take up the syncs that were under way where the tape begins, as they were there."""
        machine = self.stepper.actor.machine
        if not isinstance(machine, Syncer) or machine.rounds is None:
            return
        for t, sync in machine.rounds.syncs.items():
            absent = {
                who: Absence(who, "was not pulled", "")
                for who in (each.incarnation for each in machine.members.values())
                if who not in sync.pulled
            }
            absent |= {
                who: Absence(who, "its contribution was left out, or its link was lost", "")
                for who in sync.pulled
                if who not in sync.awaited and who not in sync.parts
            }
            there = {actor_of(who) for who in (*absent, *sync.pulled)}
            absent |= {
                name: Absence(name, "was not connected", "")
                for name in self._learners
                if name not in there
            }
            arrived = {who: _Arrival(part.said) for who, part in sync.parts.items()}
            self._open[t] = _Open(sync, "", absent, len(machine.members), arrived)

    def _seen(self, step: Step, machine: Syncer, rounds: Rounds) -> Merge | None:
        event: Any = step.event
        merge: Merge | None = None
        if type(event) is MessageArrived and type(event.body) is Contribution:
            under_way = self._open.get(event.body.t)
            if under_way is not None:
                ref = self._ref(step)
                arrival = _Arrival(event.body, ref, step.at, event.payload.hex())
                under_way.arrived.setdefault(event.peer, arrival)
        if step.effects:
            merged: dict[str, Any] | None = None
            for effect in step.effects:
                if type(effect) is Observe:
                    self._observed(self._ref(step), effect)
                    merged = effect.fields if effect.event == "merge" else merged
            if merged is not None and isinstance(event, FragmentMerged):
                merge = self._merged(self._ref(step), step.at, merged, event)
        for t, sync in rounds.syncs.items():
            known = self._open.get(t)
            if known is None or known.sync is not sync:
                self._open[t] = self._launched(self._ref(step), step.at, machine, sync)
        return merge

    def _ref(self, step: Step) -> str:
        return f"{self._syncer}:{step.number}"

    def _observed(self, ref: str, seen: Observe) -> None:
        fields = seen.fields
        match seen.event:
            case "refused" if "t" in fields:
                under_way = self._open.get(fields["t"])
                if under_way is not None:
                    who = fields["learner"]
                    said, kind = f"its contribution was refused: {fields['reason']}", "refused"
                    if fields["reason"] == LATE:
                        said, kind = f"was pulled, and its contribution was late: {LATE}", "late"
                    under_way.absent[who] = Absence(who, said, ref, kind=kind)
            case "sync repeated":
                self._open.pop(fields["t"], None)
                self._repeats.setdefault(fields["t"], []).append(f"{fields['reason']} ({ref})")
            case "lost":
                self._gone[actor_of(fields["learner"])] = fields["reason"], ref
            case "joined":
                self._gone.pop(actor_of(fields["learner"]), None)
            case _:
                pass

    def _launched(self, ref: str, at: float, machine: Syncer, sync: Sync) -> _Open:
        rounds = machine.rounds
        assert rounds is not None, "it has launched a sync"
        membership = rounds.membership
        p = sync.fragment
        absent: dict[str, Absence] = {}
        for member in membership.members.values():
            if member.peer in sync.pulled:
                continue
            reason = rounds.absence(machine.job, member, sync.t, p) or NOT_FRESH
            who = member.incarnation
            base = member.progress.versions[p] if member.progress is not None else -1
            used = self._used.get((who, p, base))
            if used is not None and not machine.job.sync.blocking:
                reason = f"holds version {base}, whose tokens merge {used} has"
            kind: Kind = "absent"
            if membership.silent(at, member):
                reason = SILENT.format(since=member.heard_at, for_s=at - member.heard_at)
                kind = "silent"
            absent[who] = Absence(who, reason, ref, kind=kind)
        connected = {actor_of(member.incarnation) for member in membership.members.values()}
        for name in self._learners:
            if name not in connected:
                reason, where = self._gone.get(name, (self._unseen, ref))
                absent[name] = Absence(name, f"not connected: {reason}", where, kind="lost")
        return _Open(sync, ref, absent, len(membership.members))

    def _merged(self, ref: str, at: float, seen: dict[str, Any], event: FragmentMerged) -> Merge:
        t, p = seen["t"], seen["fragment"]
        done = self._open.pop(t)
        sync = done.sync
        weights = dict(zip(event.accepted, event.weights, strict=True))
        for learner in event.accepted:
            self._used[learner, p, done.arrived[learner].said.base] = t
        for learner in sync.pulled:
            if learner not in weights and learner not in done.absent:
                said = "was pulled, and did not answer before the sync was closed"
                if not done.launched:
                    said = "was pulled, and no answer that was taken is on this tape"
                done.absent[learner] = Absence(learner, said, done.launched, kind="late")
        refused = [_answer(done, learner, 0.0, event) for learner, _ in event.refused]
        for each, (_, reason) in zip(refused, event.refused, strict=True):
            said = f"its contribution was refused: {reason}"
            who = each.learner
            done.absent[who] = Absence(who, said, ref, each.norm, each.cosine, "refused")
        return Merge(
            t=t,
            fragment=p,
            event=ref,
            at=at,
            launched=done.launched,
            launched_at=sync.launched_at,
            wait=wait_of(sync.waited, sync.launched_at),
            live=done.live,
            contributions=tuple(_answer(done, who, share, event) for who, share in weights.items()),
            refused=tuple(refused),
            absent=tuple(done.absent[name] for name in sorted(done.absent, key=str.encode)),
            moved=event.moved,
            theta=event.theta.hex(),
            state=event.state.hex(),
            wire=event.wire.hex(),
            tensors=event.tensors.hex(),
            repeats=tuple(self._repeats.pop(t, ())),
        )


def _answer(done: _Open, learner: str, weight: float, event: FragmentMerged) -> MergeAnswer:
    """A contribution that was part of the work of a merge."""
    came = done.arrived[learner]
    found = next((each for each in event.measured if each.name == learner), None)
    said = came.said
    return MergeAnswer(
        learner=learner,
        event=came.event,
        base=said.base,
        steps=said.steps,
        tokens=said.tokens,
        step=said.step,
        digest=came.digest,
        weight=weight,
        norm=found.norm if found else None,
        cosine=found.cosine if found else None,
        wait_s=came.at - done.sync.launched_at if came.at is not None else None,
        relay="" if said.relay is UNSET else said.relay,
    )


def wait_of(waited: NextSync, launched_at: float) -> Wait:
    """Split the time before a launch into what held it: floor, then quorum, then grace window."""
    since = waited.since
    floor_at = launched_at if waited.floor_at is None else min(waited.floor_at, launched_at)
    floor_at = max(floor_at, since)
    quorum_at = launched_at if waited.quorum_at is None else min(waited.quorum_at, launched_at)
    quorum_at = max(quorum_at, floor_at)
    return Wait(
        total_s=launched_at - since,
        floor_s=floor_at - since,
        quorum_s=quorum_at - floor_at,
        grace_s=launched_at - quorum_at,
    )
