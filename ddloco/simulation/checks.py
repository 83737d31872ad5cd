"""What must hold in every world, checked beside it: merging, learning, clocks, durability.

Each check has the stable name of its invariant. A check looks at events, effects and contents, and
keeps books of its own; where it reads a machine's state, it is to bound it, not to believe it.

Which invariant is looked at where:

* here: merge-once, token-conservation (of what is said to be merged), outer-monotone,
  weights-valid, staleness-bound, merge-order-canonical, no-zombie, no-unhealed-donor,
  no-learner-waits-on-learner, inner-steps-never-block, data-cursor, clock-causal, clock-vs-truth,
  ack-after-durable, optimizer-with-params;
* ``launches``: quorum-or-grace, overlap. ``bounds``: bounded-memory, control-not-starved.
  ``oracle``: model-oracle, finite. ``belief``: wrong-refused, honest-believed, starts-over.
  ``hostile``: heal-progress, participation, and by running a
  world again determinism-check and record-is-inert;
* in tests, because two worlds are compared: that a learner that is frozen, or dies, changes no
  other's step times; that steps go on without a syncer; that the order of arrival changes no byte;
  that the tapes of hostile worlds replay (replay-bit-exact). Each check is proved able to fail by
  the bugs in ``tests/ddloco/simulation/mutations.py``;
* not yet, for want of what they are about: cut-consistent (snapshots), identity and
  replay-attack (keys), disk-error-safe beyond what the tape does live.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash
from msgspec.msgpack import Encoder

from clocks import actor_of, number_of
from ddloco.effects import Finish, MergeFragment, Observe, RunStep
from ddloco.events import FragmentMerged, Recovered, StateInstalled, StepFinished
from ddloco.learner import Learner
from ddloco.messages import Contribution, GlobalFragment, Resume
from ddloco.simulation.labour import TOKENS
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.syncer import Syncer
from ddloco.syncs import names
from transport import Effect, Event, LaneBroken, MessageArrived, Transmit

Effects = Sequence[Effect]


class Violation(Exception):  # noqa: N818, it is the field's word
    """An invariant does not hold; the text begins with its name."""

    def __init__(self, invariant: str, said: str) -> None:
        super().__init__(f"{invariant}: {said}")
        self.invariant = invariant


def hold(condition: object, invariant: str, said: str) -> None:
    """Raise a violation unless ``condition`` holds."""
    if not condition:
        raise Violation(invariant, said)


class Books:
    """A check that does nothing when actors come and go."""

    def started(self, world: World, node: Node) -> None:
        """An actor is about to take its first event."""

    def died(self, world: World, node: Node) -> None:
        """An actor is gone."""

    def observed(self, node: Node, what: Observe) -> None:
        """An actor has observed something."""

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """An event was handled."""


@dataclass
class Desk:
    """What one syncer has before it: contributions by handle, merges under way by work, and the
    newest incarnation that it has heard of each learner."""

    newest: Counter[str]
    arrived: dict[str, tuple[str, Contribution, int]] = field(default_factory=dict[str, Any])
    merging: dict[int, MergeFragment] = field(default_factory=dict[int, MergeFragment])


class Merging(Books):
    """merge-once, token-conservation, outer-monotone, weights-valid, staleness-bound,
    merge-order-canonical, no-zombie: what the syncer does with contributions."""

    def __init__(self) -> None:
        self.merges: list[tuple[float, int, int, tuple[str, ...]]] = []
        """(seconds, t, fragment, learners) of every merge."""
        self.tokens: Counter[str] = Counter()
        """Tokens merged, by incarnation, every fragment counted."""
        self.versions: Counter[int] = Counter()
        self._spent: set[tuple[str, int, int]] = set()
        self._desks: dict[str, Desk] = {}

    def started(self, world: World, node: Node) -> None:
        """A new syncer has nothing under way, and must not need what only the old one knew."""
        if node.actor_name in world.vaults:
            newest = self._desks[node.actor_name].newest if node.actor_name in self._desks else None
            self._desks[node.actor_name] = Desk(newest or Counter())

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Only syncers merge."""
        if not isinstance(node.actor.machine, Syncer):
            return
        desk = self._desks[node.actor_name]
        if isinstance(event, MessageArrived) and isinstance(event.body, Contribution):
            self._contribution(desk, node, event, event.body)
        elif isinstance(event, FragmentMerged):
            self._merged(world, desk, event)
        elif isinstance(event, Recovered):
            desk.merging.clear()
        for effect in effects:
            if isinstance(effect, MergeFragment):
                self._merge(world, desk, effect)
            elif isinstance(effect, Observe) and effect.event == "joined":
                actor, number = actor_of(effect.fields["learner"]), effect.fields["learner"]
                desk.newest[actor] = max(desk.newest[actor], number_of(number))

    def _contribution(
        self, desk: "Desk", node: Node, event: MessageArrived[Any], said: Contribution
    ) -> None:
        number = node.actor.number
        what = node.contents[event.handle].what if event.handle else None
        told = (said.fragment, said.base, said.steps, said.step)
        said_by = f"contribution of {event.sender} at event {number}"
        hold(what == told, "token-conservation", f"{said_by} says {told}, its array is {what}")
        hold(said.tokens == said.steps * TOKENS, "token-conservation", f"{said_by}: {said.tokens}")
        newest = desk.newest[actor_of(event.sender)]
        desk.arrived[event.handle] = (event.sender, said, newest)

    def _merge(self, world: World, desk: "Desk", merge: MergeFragment) -> None:
        names = [share.name for share in merge.shares]
        sync = world.job.sync
        in_order = sorted(set(names), key=str.encode) == names
        hold(in_order, "merge-order-canonical", f"merge {merge.t} sums in the order {names}")
        for share in merge.shares:
            sender, said, newest = desk.arrived[share.handle]
            alive = number_of(sender) >= newest
            hold(alive, "no-zombie", f"{sender} in merge {merge.t}, {newest} had joined")
            told = (sender, said.t, said.fragment)
            hold(told == (share.name, merge.t, merge.fragment), "merge-once", f"{told} in {merge}")
            weight = said.tokens * (said.tokens / said.steps)
            hold(share.weight == weight, "weights-valid", f"{share.weight} for {weight}")
            lag = self.versions[merge.fragment] - said.base
            late = lag > sync.staleness * sync.interval
            hold(not late, "staleness-bound", f"{sender} lags {lag} in merge {merge.t}")
        desk.merging[merge.work] = merge

    def _merged(self, world: World, desk: "Desk", event: FragmentMerged) -> None:
        merge = desk.merging.pop(event.work)
        shares = {share.name: share for share in merge.shares}
        for name in event.accepted:
            _, said, _ = desk.arrived.pop(shares[name].handle)
            spent = (name, said.fragment, said.base)
            hold(spent not in self._spent, "merge-once", f"tokens of {spent} at t {merge.t} again")
            self._spent.add(spent)
            self.tokens[name] += said.tokens
        if not event.accepted:
            return
        ones = abs(sum(event.weights) - 1.0) < 1e-12 and min(event.weights) > 0.0
        hold(ones, "weights-valid", f"weights {event.weights} of merge {merge.t}")
        before = self.versions[merge.fragment]
        hold(before < merge.t, "outer-monotone", f"version {merge.t} after {before}")
        self.versions[merge.fragment] = merge.t
        self.merges.append((world.now, merge.t, merge.fragment, event.accepted))


class Learning(Books):
    """no-learner-waits-on-learner, inner-steps-never-block, outer-monotone, no-unhealed-donor."""

    def __init__(self) -> None:
        self.steps: dict[str, list[float]] = {}
        """When each incarnation finished its steps."""
        self._instead: set[tuple[str, int, int]] = set()
        self._batches: Counter[str] = Counter()

    def _data(self, node: Node, run: RunStep) -> None:
        """Who comes back goes on in its data: it leaves out nothing but what was used."""
        used = self._batches[node.actor_name]
        said = f"{node.incarnation} leaves out {run.skip} batches, {used} were used"
        hold(run.skip <= used, "data-cursor", said)

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Only learners learn."""
        if not isinstance(node.actor.machine, Learner):
            return
        name = node.incarnation
        steps = self.steps.setdefault(name, [])
        runs = [effect for effect in effects if isinstance(effect, RunStep)]
        if isinstance(event, MessageArrived) and isinstance(event.body, GlobalFragment):
            if event.body.instead:
                self._instead.add((name, event.body.fragment, event.body.version))
        elif isinstance(event, StepFinished):
            steps.append(world.now)
            drawn = int.from_bytes(event.batch, "little")
            self._batches[node.actor_name] = max(drawn, self._batches[node.actor_name])
            goes_on = runs or any(isinstance(effect, Finish) for effect in effects)
            hold(goes_on, "inner-steps-never-block", f"{name} waits after step {event.step}")
        for run in runs:
            hold(run.step == len(steps) + 1, "outer-monotone", f"{name}: step {run.step}")
            if run.step == 1:
                mended = [each.fragment for each in run.overwrites]
                held = [p for p, version in enumerate(node.labour.versions) if version >= 0]
                whole = len({*mended, *held}) == len(world.plan.fragments)
                hold(whole, "no-unhealed-donor", f"{name} begins with {mended} and {held}")
                hold(begins(event), "no-learner-waits-on-learner", f"{name} begins at {event}")
                self._data(node, run)
            else:
                own = isinstance(event, StepFinished)
                hold(own, "no-learner-waits-on-learner", f"{name}: step {run.step} at {event}")
            for each in run.overwrites:
                held = node.labour.versions[each.fragment]
                again = (name, each.fragment, each.version) in self._instead
                hold(
                    held < each.version + again,
                    "outer-monotone",
                    f"{name} overwrites {held} with {each.version}",
                )


def begins(event: Event) -> bool:
    """Whether a learner may begin at this: its parameters have come, or where to go on."""
    if isinstance(event, MessageArrived):
        return isinstance(event.body, GlobalFragment | Resume)
    return isinstance(event, StateInstalled)


class PerSyncer(Books):
    """A check with books of its own for each syncer.

    Args:
        make: makes the books.
    """

    def __init__(self, make: Callable[[], Books]) -> None:
        self._make = make
        self._books: dict[str, Books] = {}

    def started(self, world: World, node: Node) -> None:
        """A syncer's books know that it has started; learners have none."""
        if node.actor_name in world.vaults:
            if node.actor_name not in self._books:
                self._books[node.actor_name] = self._make()
            self._books[node.actor_name].started(world, node)

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """It is for the syncer's own books."""
        if node.actor_name in self._books:
            self._books[node.actor_name].see(world, node, event, effects)


class Clocks(Books):
    """clock-causal, clock-vs-truth: vector clocks against the happened-before that really was."""

    def __init__(self) -> None:
        self.lossless = True
        """Until something was lost; after that a clock may know less than the truth, never more."""
        self._truth: dict[str, dict[str, int]] = {}
        self._said: dict[int, tuple[dict[str, int], dict[str, int]]] = {}

    def started(self, world: World, node: Node) -> None:
        """Whoever starts knows nothing."""
        self._truth[node.incarnation] = {}

    def died(self, world: World, node: Node) -> None:
        """What was on its way to or from it may be lost."""
        self.lossless = False

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Keep the truth, and compare."""
        me, clock = node.incarnation, node.actor.clock
        truth = self._truth[me]
        self.lossless = self.lossless and not isinstance(event, LaneBroken)
        number = truth.get(me, 0) + 1
        hold(clock.number == number, "clock-causal", f"{me} counts {clock.number} for {number}")
        truth[me] = number
        if isinstance(event, MessageArrived):
            _, theirs = self._said[id(event.clock)]
            for name, count in theirs.items():
                if count > truth.get(name, 0):
                    truth[name] = count
        floors = node.actor.floors
        counts = clock.wire()
        for name, count in counts.items():
            known = truth.get(name, 0)
            hold(count <= known, "clock-vs-truth", f"{me}:{number} has {name}:{count}, not {known}")
        if self.lossless and not floors:
            hold(counts == truth, "clock-vs-truth", f"{me}:{number} has {counts}, truth is {truth}")
        frozen: dict[str, int] | None = None
        for effect in effects:
            if isinstance(effect, Transmit):
                frozen = frozen or dict(truth)
                self._said[id(effect.clock)] = (effect.clock, frozen)


class Durable(Books):
    """ack-after-durable: what any learner has received, a syncer that starts again still has."""

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Look when a syncer has found what was kept."""
        if not isinstance(event, Recovered):
            return
        kept = {each.fragment: each.version for each in event.kept}
        for other in world.nodes.values():
            if other.actor_name in world.vaults:
                continue
            for p, version in enumerate(other.labour.versions):
                if world.job.syncer_of(p) != node.actor_name:
                    continue
                found = kept.get(p, 0)
                said = f"{other.incarnation} has version {version} of {p}, kept was {found}"
                hold(version <= found, "ack-after-durable", said)


class Optimizer(Books):
    """optimizer-with-params: momentum has the version of the parameters that it belongs to."""

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Look at what is to be merged, and at what was kept."""
        if isinstance(event, Recovered):
            for each in event.kept:
                self._agree(node, *names(each.fragment, each.version))
        for effect in effects:
            if isinstance(effect, MergeFragment):
                self._agree(node, effect.theta, effect.momentum)

    def _agree(self, node: Node, theta: str, *others: str) -> None:
        belongs = node.contents[theta].what
        first = (belongs[0], 0, 0, 0)
        for handle in others:
            what = node.contents[handle].what if handle else first
            said = f"{handle or 'zeros'}: of {what}, the parameters of {belongs}"
            hold(what == belongs, "optimizer-with-params", said)


class Trail(Books):
    """One value for all that happened, to compare two runs of the same world."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()
        self._encode = Encoder(order="deterministic").encode

    def see(self, world: World, node: Node, event: Event, effects: Effects) -> None:
        """Take in an event and what it led to."""
        self._digest.update(f"{world.now!r} {node.incarnation} ".encode())
        self._digest.update(self._encode((event, list(effects))))

    def value(self) -> str:
        """The value so far."""
        return self._digest.hexdigest()
