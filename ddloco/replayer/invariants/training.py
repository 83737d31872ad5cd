"""Invariants of every run, checked from events and effects alone: merging, learning, clocks.

Each check has the stable name of its invariant. It keeps its own records of actors' events and
effects; if it reads a machine's state, it is to bound it, not to rely on it. So the same checks run
within simulated worlds and, afterwards, on the tapes of any run, where
``ddloco.replayer.invariants.tape_audit`` lets the machines decide again.

Where each invariant is checked:

* here, in worlds and on tapes: merge-once, token-conservation, outer-monotone, weights-valid,
  staleness-bound, merge-order-canonical, no-zombie, no-unhealed-donor, no-learner-waits-on-learner,
  inner-steps-never-block, in-step, clock-causal, ack-after-durable;
* in ``tests/lab``, in worlds and on tapes. ``launches``: quorum-or-grace, overlap, unmerged-pulled;
* there, and only in worlds, where more is known than the actors know. ``truth``: clock-vs-truth,
  data-cursor, optimizer-with-params, and token-conservation of the arrays' real contents.
  ``data_order``: data-order. ``fencing``: one-lead. ``resource_bounds``: bounded-memory,
  control-not-starved. ``merge_oracle``: model-oracle, finite. ``belief``: wrong-refused,
  honest-believed, starts-over. ``snapshot_checks``: cut-consistent, channel-complete,
  snapshot-terminates, concurrent-snapshots, and data-cursor, optimizer-with-params and merge-once
  in the contents of snapshots. ``hostile_world``: heal-progress, participation, and by running a
  world again determinism-check and record-is-inert;
* in tests, because two worlds are compared: a learner that freezes or dies does not change the step
  times of others; steps continue without a syncer; the order of arrival changes no byte; tapes of
  hostile worlds replay (replay-bit-exact); snapshots delay no step and no merge
  (snapshot-does-not-stall). The bugs in ``mutations.py`` and ``mutations_pictures.py`` of
  ``tests/lab`` prove that each check can fail;
* not yet checked: identity and replay-attack (keys), and disk-error-safe beyond what the tape does
  in live runs.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from clocks import INCARNATIONS_MAX, actor_of, number_of
from ddloco.job.protocol.messages import Contribution, DataShards, GlobalFragment, Resume
from ddloco.job.protocol.work import (
    FragmentDecoded,
    FragmentMerged,
    InstallState,
    MergeFragment,
    Overwrite,
    Recovered,
    RunStep,
    Share,
    StateInstalled,
    StepFinished,
)
from ddloco.machines.clients import after_step
from ddloco.machines.learner.machine import Learner
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import Effects, Incarnation, InvariantCheck, Stage
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Finish, Observe
from transport import Event, MessageArrived, Transmit


@dataclass
class PendingMerges:
    """The state of one syncer's merges: contributions by handle (see ``_place``), merges in
    progress by work, the newest incarnation of each learner, and whose contributions to a sync were
    refused, some of them when all had come."""

    newest: Counter[str]
    arrived: dict[str, tuple[str, Contribution, int]] = field(default_factory=dict[str, Any])
    merging: dict[int, MergeFragment] = field(default_factory=dict[int, MergeFragment])
    refused: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])


class Merging(InvariantCheck[Stage, Incarnation]):
    """merge-once, token-conservation, outer-monotone, weights-valid, staleness-bound,
    merge-order-canonical, no-zombie: what the syncer does with contributions."""

    invariants = (
        "merge-once", "token-conservation", "outer-monotone", "weights-valid", "staleness-bound",
        "merge-order-canonical", "no-zombie",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.merges: list[tuple[float, int, int, tuple[str, ...]]] = []
        """(seconds, t, fragment, learners) of every merge."""
        self.tokens: Counter[str] = Counter()
        """Tokens merged, by incarnation, counted once per fragment."""
        self.versions: Counter[int] = Counter()
        self._spent: set[tuple[str, int, int]] = set()
        self._pending: dict[str, PendingMerges] = {}

    def started(self, stage: Stage, role: Incarnation) -> None:
        """A new syncer has no merges in progress, and does not know what only the old one knew."""
        if role.actor_name in stage.job.syncer_names():
            before = self._pending.get(role.actor_name)
            self._pending[role.actor_name] = PendingMerges(before.newest if before else Counter())

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Effects) -> None:
        """Check the events of a syncer; only syncers merge."""
        if not isinstance(role.actor.machine, Syncer):
            return
        pending = self._pending[role.actor_name]
        if isinstance(event, MessageArrived) and isinstance(event.body, Contribution):
            self._contribution(pending, event, event.body, role.actor)
        elif isinstance(event, FragmentMerged):
            self._merged(stage, pending, event)
        elif isinstance(event, Recovered):
            pending.merging.clear()
        for effect in effects:
            if isinstance(effect, MergeFragment):
                self._merge(stage, pending, effect)
            elif isinstance(effect, Observe) and effect.event == "refused" and "t" in effect.fields:
                pending.refused.add((effect.fields.get("learner", ""), effect.fields["t"]))
            elif isinstance(effect, Observe) and effect.event == "joined":
                actor, number = actor_of(effect.fields["learner"]), effect.fields["learner"]
                pending.newest[actor] = max(pending.newest[actor], number_of(number))

    def _contribution(
        self, pending: "PendingMerges", event: MessageArrived[Any], said: Contribution, actor: Actor
    ) -> None:
        """Note a contribution unless its array is released at once or held only for a snapshot:
        then it was refused, or its sender is not a member. If a relay has its array, whether it is
        taken shows only in the merge."""
        holders = actor.handles.held().get(event.handle, 0)
        elsewhere = said.relay is not UNSET
        if elsewhere or holders > actor.snapshots.holding().count(event.handle):
            newest = pending.newest[actor_of(event.sender)]
            place = f"{event.sender} {said.t}" if elsewhere else event.handle
            pending.arrived[place] = (event.sender, said, newest)

    def _merge(self, stage: Stage, pending: "PendingMerges", merge: MergeFragment) -> None:
        names = [share.name for share in merge.shares]
        sync = stage.job.sync
        in_order = sorted(set(names), key=str.encode) == names
        self.hold(in_order, "merge-order-canonical", f"merge {merge.t} sums in the order {names}")
        taken = {
            place
            for place, (sender, said, _) in pending.arrived.items()
            if said.t == merge.t and said.relay is UNSET
            if (sender, merge.t) not in pending.refused
        }
        given = {_place(merge, share) for share in merge.shares}
        lost = sorted(pending.arrived[each][0] for each in taken - given)
        said_of = f"contributions of {lost} were taken and are not in merge {merge.t}"
        self.hold(not lost, "token-conservation", said_of)
        for share in merge.shares:
            place = _place(merge, share)
            known = place in pending.arrived
            self.hold(known, "token-conservation", f"merge {merge.t}: no message brought {place}")
            sender, said, newest = pending.arrived[place]
            alive = number_of(sender) >= newest
            self.hold(alive, "no-zombie", f"{sender} in merge {merge.t}, {newest} had joined")
            told = (sender, said.t, said.fragment)
            meant = told == (share.name, merge.t, merge.fragment)
            self.hold(meant, "merge-once", f"{told} in {merge}")
            weight = WEIGHTS[stage.job.outer.weight](said.tokens, said.steps)
            self.hold(share.weight == weight, "weights-valid", f"{share.weight} for {weight}")
            lag = self.versions[merge.fragment] - said.base
            late = lag > sync.staleness * sync.interval
            self.hold(not late, "staleness-bound", f"{sender} lags {lag} in merge {merge.t}")
        pending.merging[merge.work] = merge

    def _merged(self, stage: Stage, pending: "PendingMerges", event: FragmentMerged) -> None:
        merge = pending.merging.pop(event.work)
        pending.refused = {each for each in pending.refused if each[1] > merge.t}
        come = {share.name: pending.arrived.pop(_place(merge, share)) for share in merge.shares}
        for place in [each for each, (_, said, _) in pending.arrived.items() if said.t == merge.t]:
            del pending.arrived[place]  # Its relay has left it out.
        fates = sorted([*event.accepted, *(name for name, _ in event.refused)], key=str.encode)
        each_one = fates == list(come)
        self.hold(each_one, "token-conservation", f"merge {merge.t} of {list(come)}, fates {fates}")
        for name in event.accepted:
            _, said, _ = come[name]
            spent = (name, said.fragment, said.base)
            again = spent in self._spent
            self.hold(not again, "merge-once", f"tokens of {spent} at t {merge.t} again")
            self._spent.add(spent)
            self.tokens[name] += said.tokens
        if not event.accepted:
            return
        ones = abs(sum(event.weights) - 1.0) < 1e-12 and min(event.weights) > 0.0
        self.hold(ones, "weights-valid", f"weights {event.weights} of merge {merge.t}")
        before = self.versions[merge.fragment]
        self.hold(before < merge.t, "outer-monotone", f"version {merge.t} after {before}")
        self.versions[merge.fragment] = merge.t
        self.merges.append((stage.now, merge.t, merge.fragment, event.accepted))


def _place(merge: MergeFragment, share: Share) -> str:
    """Return where a contribution is among those that arrived: its handle, or whose it is and its
    global step where a relay has its array."""
    return f"{share.name} {merge.t}" if share.handle in merge.sums else share.handle


WEIGHTS: dict[str, Callable[[int, int], float]] = {
    "rate": lambda tokens, steps: tokens * (tokens / steps),
    "tokens": lambda tokens, _: float(tokens),
    "equal": lambda *_: 1.0,
}
"""What a contribution of so many tokens and steps counts, by ``outer.weight``."""


@dataclass
class TrainedSteps:
    """What one learner has trained on, derived from its steps alone."""

    held: list[int]
    """Per fragment the version that its parameters started from, -1 for none."""
    tokens: list[int] = field(default_factory=lambda: [0])
    """Cumulative tokens after each step, from step 0 on."""
    starts: dict[tuple[int, int], set[int]] = field(default_factory=dict[tuple[int, int], Any])
    """The steps after which a version of a fragment was installed. All are kept: an encoding that
    takes long may come after any number of versions, and there are fewer of them than steps."""
    coming: tuple[Overwrite, ...] = ()
    carries: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment, the step after which what is coming carries over steps."""
    installing: tuple[int, ...] = ()
    position: int = 0
    """With ``sync.blocking``, the global step that it has come to."""
    began: int | None = None
    """The position at which it began."""

    def take(self, fragment: int, version: int, step: int) -> None:
        self.held[fragment] = version
        self.starts.setdefault((fragment, version), set()).add(step)

    def finish(self, tokens: int) -> None:
        """A step is finished, with the overwrites requested before it."""
        for each in self.coming:
            own = len(self.tokens) - 1
            step = self.carries[each.fragment] if each.since else own
            self.take(each.fragment, each.version, step)
        self.coming = ()
        self.tokens.append(self.tokens[-1] + tokens)

    def install(self, *, sound: bool) -> None:
        for fragment, version in enumerate(self.installing if sound else ()):
            self.take(fragment, version, 0)

    def agrees(self, said: Contribution) -> bool:
        """Whether a contribution counts exactly what was trained since its base."""
        if said.step >= len(self.tokens):
            return False
        return any(
            said.steps == said.step - start > 0
            and said.tokens == self.tokens[said.step] - self.tokens[start]
            for start in self.starts.get((said.fragment, said.base), ())
        )


class Learning(InvariantCheck[Stage, Incarnation]):
    """no-learner-waits-on-learner, inner-steps-never-block, outer-monotone, no-unhealed-donor, and
    token-conservation of what learners report to have trained on. With ``sync.blocking`` learners
    wait, and in place of the first two it holds that none runs ahead (in-step): when a step begins,
    each fragment that was due ``sync.overlap`` steps ago, and since the learner began, has the
    version of that global step; and none is installed earlier."""

    invariants = (
        "no-learner-waits-on-learner", "inner-steps-never-block", "outer-monotone",
        "no-unhealed-donor", "token-conservation", "in-step",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.steps: dict[str, list[float]] = {}
        """When each incarnation finished its steps."""
        self._trained: dict[str, TrainedSteps] = {}
        self._instead: set[tuple[str, int, int]] = set()

    def died(self, stage: Stage, role: Incarnation) -> None:
        self._trained.pop(role.incarnation, None)

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Effects) -> None:
        if not isinstance(role.actor.machine, Learner):
            return
        name = role.incarnation
        steps = self.steps.setdefault(name, [])
        if name not in self._trained:
            self._trained[name] = TrainedSteps([-1] * len(stage.plan.fragments))
        trained = self._trained[name]
        if isinstance(event, MessageArrived):
            if isinstance(event.body, GlobalFragment) and event.body.instead:
                self._instead.add((name, event.body.fragment, event.body.version))
                trained.position = 0  # It starts over from its newest version.
        elif isinstance(event, StepFinished):
            for _, each in event.steps():
                steps.append(stage.now)
                trained.finish(each.tokens)
            goes_on = any(isinstance(effect, RunStep | Finish) for effect in effects)
            goes_on = goes_on or stage.job.sync.blocking
            self.hold(goes_on, "inner-steps-never-block", f"{name} waits after step {event.step}")
        elif isinstance(event, StateInstalled):
            trained.install(sound=event.sound)
        for effect in effects:
            match effect:
                case RunStep():
                    running = role.actor.machine.running
                    carries = running.carries if running is not None else {}
                    trained.carries = {p: each.step for p, each in carries.items()}
                    self._run(stage, name, event, effect)
                case Transmit(body=Contribution() as said):
                    what = f"{name} did not train what {said} says"
                    self.hold(trained.agrees(said), "token-conservation", what)
                case InstallState() if isinstance(event, MessageArrived):
                    trained.installing = role.actor.machine.recovery.versions
                case _:
                    pass

    def _run(self, stage: Stage, name: str, event: Event, run: RunStep) -> None:
        trained, done = self._trained[name], len(self.steps[name])
        self.hold(run.step == done + 1, "outer-monotone", f"{name}: step {run.step}")
        if run.step == 1:
            mended = [each.fragment for each in run.overwrites]
            held = [p for p, version in enumerate(trained.held) if version >= 0]
            whole = len({*mended, *held}) == len(stage.plan.fragments)
            self.hold(whole, "no-unhealed-donor", f"{name} begins with {mended} and {held}")
            self.hold(
                begins(event, blocking=stage.job.sync.blocking),
                "no-learner-waits-on-learner",
                f"{name} begins at {event}",
            )
        else:
            own = isinstance(event, StepFinished) or stage.job.sync.blocking
            self.hold(own, "no-learner-waits-on-learner", f"{name}: step {run.step} at {event}")
        for each in run.overwrites:
            held_now = trained.held[each.fragment]
            again = (name, each.fragment, each.version) in self._instead
            said = f"{name} overwrites {held_now} with {each.version}"
            self.hold(held_now < each.version + again, "outer-monotone", said)
        trained.coming = run.overwrites
        if stage.job.sync.blocking:
            self._in_step(stage, name, trained)

    def _in_step(self, stage: Stage, name: str, trained: TrainedSteps) -> None:
        held, overlap = list(trained.held), stage.job.sync.overlap
        for each in trained.coming:
            held[each.fragment] = each.version
            early = each.version <= trained.position < each.version + overlap
            early = early and trained.began is not None
            early = early and (name, each.fragment, each.version) not in self._instead
            said = f"{name} installs version {each.version} at {trained.position}"
            self.hold(not early, "in-step", said)
        position, plan = max(trained.position, *held), stage.plan
        trained.position = after_step(stage.job, actor_of(name), position)
        trained.began = began = position if trained.began is None else trained.began
        said = f"{name} begins a step at {position}, after the last one"
        self.hold(position < stage.job.job.last_step, "in-step", said)
        for p, offset in enumerate(plan.offsets):
            late = position - overlap
            due = late - (late - offset) % plan.interval
            said = f"{name} begins a step at {position} with version {held[p]} of fragment {p}"
            self.hold(held[p] >= due or due <= began, "in-step", said)


def begins(event: Event, *, blocking: bool) -> bool:
    """Whether a learner may begin at this event: its parameters, or the position to resume at, have
    arrived. With ``sync.blocking`` it may be a later version, of the first round that it is in."""
    if isinstance(event, MessageArrived):
        return isinstance(event.body, GlobalFragment | Resume | DataShards)
    return isinstance(event, StateInstalled) or (blocking and isinstance(event, FragmentDecoded))


class Causal(InvariantCheck[Stage, Incarnation]):
    """clock-causal: an actor's own entry counts its events; other entries only grow, and are not
    smaller than those of any message it accepts. Only messages of the current session count. A late
    Welcome of a lost session is answered but not merged into the clock: its sender may since have
    retired entries that it contains, and this actor may never have had them."""

    invariants = ("clock-causal",)

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, dict[str, int]] = {}

    def started(self, stage: Stage, role: Incarnation) -> None:
        self._before[role.incarnation] = {}

    def died(self, stage: Stage, role: Incarnation) -> None:
        self._before.pop(role.incarnation, None)

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Effects) -> None:
        me, clock, floors = role.incarnation, role.actor.clock, role.actor.floors
        before = self._before[me]
        number = before.get(me, 0) + 1
        self.hold(clock.number == number, "clock-causal", f"{me} counts {clock.number}, {number}")
        if not isinstance(event, MessageArrived):
            before[me] = number
            return
        mine = event.clock.get(me, 0)
        said = f"{me}:{number} is told of its event {mine}, which has not happened"
        self.hold(mine < number, "clock-causal", said)
        known = clock[event.sender] >= event.clock.get(event.sender, 0)
        believed = known and role.actor.links.stands(event)
        told = event.clock if believed else {}
        for name, count in {**before, **told}.items():
            least = max(count, before.get(name, 0))
            kept = clock[name] >= least or number_of(name) < floors.get(actor_of(name), 0)
            kept = kept or _displaced(name, clock.others())
            self.hold(kept, "clock-causal", f"{me}:{number} has {name}:{clock[name]}, not {least}")
        self._before[me] = {me: number, **{name: clock[name] for name in clock.others()}}


def _displaced(name: str, known: Sequence[str]) -> bool:
    """Whether newer incarnations of the same actor have replaced an entry in a clock."""
    actor, number = actor_of(name), number_of(name)
    newer = [each for each in known if actor_of(each) == actor and number_of(each) > number]
    return len(newer) >= INCARNATIONS_MAX


class Durable(InvariantCheck[Stage, Incarnation]):
    """ack-after-durable: a restarted syncer has every version that any learner has received. It is
    not promised of ``from_copies``, the incarnations that began with a copy of the folder of the
    one before, or without it."""

    invariants = ("ack-after-durable",)

    def __init__(self, from_copies: Collection[str] = ()) -> None:
        super().__init__()
        self._from_copies = from_copies
        self._found: dict[str, dict[int, dict[int, int]]] = {}
        """By actor and incarnation number, the version of each fragment that was found on disk."""
        self._told: dict[str, dict[int, dict[int, tuple[int, str]]]] = {}
        """By actor and incarnation number, the newest version of each fragment that was sent, and
        to whom."""

    def see(self, stage: Stage, role: Incarnation, event: Event, effects: Effects) -> None:
        """Check when a syncer has recovered, and when a learner receives a version. These may be
        seen in either order, because tapes are processed one by one."""
        if isinstance(event, Recovered):
            if role.incarnation in self._from_copies:
                return
            kept = {each.fragment: each.version for each in event.kept}
            actor, number = actor_of(role.incarnation), number_of(role.incarnation)
            self._found.setdefault(actor, {})[number] = kept
            for teller, told in self._told.get(actor, {}).items():
                for p, (version, who) in told.items() if teller < number else ():
                    self._agree(number, p, kept, version, who)
        elif isinstance(event, MessageArrived) and isinstance(event.body, GlobalFragment):
            actor, teller = actor_of(event.sender), number_of(event.sender)
            p, version = event.body.fragment, event.body.version
            told = self._told.setdefault(actor, {}).setdefault(teller, {})
            if version > told.get(p, (-1, ""))[0]:
                told[p] = version, role.incarnation
            for number, kept in self._found.get(actor, {}).items():
                if teller < number:
                    self._agree(number, p, kept, version, role.incarnation)

    def _agree(self, number: int, p: int, kept: dict[int, int], version: int, who: str) -> None:
        found = kept.get(p, 0)
        said = f"{who} has had version {version} of {p}, incarnation {number} found {found}"
        self.hold(version <= found, "ack-after-durable", said)
