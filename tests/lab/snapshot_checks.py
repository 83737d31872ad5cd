"""Checks of snapshots in simulated worlds, where all messages and events are known.

A cut is at the end of an event: everything that an actor sent and received up to that event's
number is before the cut.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from clocks import number_of
from ddloco.job.config import Job
from ddloco.job.protocol.messages import Contribution
from ddloco.job.protocol.work import FragmentMerged, MergeFragment
from ddloco.machines.learner.machine import Learner
from ddloco.machines.registry import states_for
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import Effects, InvariantCheck
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import CommitSnapshot, Observe, Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.actors.observations import BEGUN, DISCARDED, TAKEN
from ddloco.stage.actors.timers import MarkerDeadline, PartDeadline
from ddloco.workers.simulated.snapshot_sink import CapturedPart, SnapshotMemory
from snapshot import Part
from snapshot.participant import REFUSED, UNDER_WAY_MAX
from transport import LANES, Event, LaneBroken, MessageArrived, Transmit
from transport.message import GREETINGS, Bye

TERMINATES = "snapshot-terminates"
CONCURRENT = "concurrent-snapshots"

QUIET_S = 10.0
"""This long after the last fault every link that can be open is open: redials are 8 s apart."""

Lane = tuple[str, str, str, int]
"""The sender, the receiver under the name that its link was dialled with, the lane, the session."""


@dataclass
class SentNumbers:
    """One direction of one lane in one session: in the order of the messages, their sequence
    numbers, and the numbers of the events at which they were sent and received."""

    seqs: list[int] = field(default_factory=list[int])
    said: list[int] = field(default_factory=list[int])
    heard: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By receiver, the numbers of its events at which messages arrived; if the receiver has died
    meanwhile, later messages may reach its next incarnation."""

    def between(self, sender: int, receiver: Part) -> list[int]:
        """Sequence numbers of messages sent before the sender's cut and not received before the
        receiver's; the last ones are the markers of the cut."""
        come = bisect_right(self.heard[receiver.who], receiver.number)
        before = bisect_right(self.said, sender)
        return self.seqs[come:before]

    def too_early(self, sender: int, receiver: Part) -> int:
        """How many messages were received before the receiver's cut but sent after the sender's."""
        come = bisect_right(self.heard[receiver.who], receiver.number)
        return max(come - bisect_right(self.said, sender), 0)


@dataclass(frozen=True)
class Seen:
    """One participant of a snapshot, as written."""

    part: Part
    actor: Actor
    state: CapturedPart
    flight: CapturedPart
    messages: list[MessageArrived[Any]]


def seen(snapshots: SnapshotMemory, part: Part, job: Job) -> Seen:
    """Read what one participant wrote."""
    parts = [snapshots.parts[name] for name in part.contents]
    state = next(each for each in parts if each.worker is not None)
    flight = next(each for each in parts if each.worker is None)
    states = states_for(job, part.who)
    actor, messages = states.read(state.frozen), states.read_flight(flight.frozen)
    return Seen(part, actor, state, flight, messages)


def received(role: Node, event: MessageArrived[Any]) -> bool:
    """Whether the actor has received the message that it has just handled.

    A message of a session that its links have given up, or do not know yet, is dropped: it changes
    neither the machine nor the clock, and belongs to no cut (seeds 1938, 7783, 8310, 9614). Where
    the message itself ended the session, as a Bye does, the clock tells.
    """
    if type(event.body) in GREETINGS:
        return False
    links: Any = role.actor.links
    link = links.links.get(event.peer)
    if link is not None and link.carries(event.lane, event.session, event.body):
        return link.lanes[event.lane].incoming.expected > event.seq
    return role.actor.clock[event.sender] >= event.clock[event.sender]


class SnapshotContents(InvariantCheck[World, Node]):
    """cut-consistent, channel-complete, data-cursor, optimizer-with-params, merge-once: compares
    committed snapshots with what really happened before them."""

    def __init__(self) -> None:
        super().__init__()
        self._lanes: dict[Lane, SentNumbers] = defaultdict(SentNumbers)
        self._of: dict[tuple[str, str], set[Lane]] = defaultdict(set)
        """The lanes from one incarnation to another, or to an actor."""
        self._merging: dict[tuple[str, int], MergeFragment] = {}
        self._merged: dict[str, list[tuple[str, int, str, int, int]]] = defaultdict(list)
        """By syncer, its merged contributions: (its incarnation, event, sender, fragment, base)."""

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Record messages and merges; check a snapshot when it is committed."""
        number = role.actor.number
        if isinstance(event, MessageArrived) and received(role, event):
            dialled = event.peer != event.sender
            lane = (event.sender, role.incarnation if dialled else role.actor_name)
            self._heard((*lane, event.lane, event.session), event.seq, role)
        elif isinstance(event, FragmentMerged):
            merge = self._merging.pop((role.incarnation, event.work))
            self._merged[role.actor_name] += [
                (role.incarnation, number, share.name, merge.fragment, share.base)
                for share in merge.shares if share.name in event.accepted
            ]  # fmt: skip
        for effect in effects:
            match effect:
                case Transmit() if type(effect.body) not in GREETINGS:
                    lane = (role.incarnation, effect.peer, effect.lane, effect.session)
                    self._said(lane, effect, number)
                case MergeFragment():
                    self._merging[role.incarnation, effect.work] = effect
                case Observe(event=what, fields=fields) if what == TAKEN:
                    self._look(stage, stage.snapshots.committed[fields["snapshot"]])
                case _:
                    pass

    def _said(self, lane: Lane, said: Transmit[Any], number: int) -> None:
        known = self._lanes[lane]
        self._of[lane[:2]].add(lane)
        known.seqs.append(said.seq)
        known.said.append(number)

    def _heard(self, lane: Lane, seq: int, node: Node) -> None:
        """Record a received message; after a gap nothing is received, because the link breaks."""
        known = self._lanes[lane]
        heard = known.heard[node.incarnation]
        if known.seqs[len(heard)] == seq:
            heard.append(node.actor.number)

    def _look(self, world: World, commit: CommitSnapshot) -> None:
        found = {part.who: seen(world.snapshots, part, world.job) for part in commit.parts}
        for each in found.values():
            right = each.actor.number == each.part.number
            said = f"{commit.snapshot}: {each.part} is of event {each.actor.number}"
            self.hold(right, "cut-consistent", said)
            for other in found.values():
                if each is not other:
                    self._channels(commit.snapshot, each, other)
            machine = each.actor.machine
            if isinstance(machine, Learner):
                self._learner(commit.snapshot, each, machine)
            elif isinstance(machine, Syncer):
                self._syncer(commit.snapshot, world, each, machine)

    def _channels(self, snapshot: str, one: Seen, other: Seen) -> None:
        """Check the messages from ``one`` to ``other``."""
        sender, receiver = one.part.who, other.part.who
        cuts = one.part.number, other.part
        between = f"{snapshot}: {sender} at {cuts[0]}, {receiver} at {other.part.number}"
        links: Any = other.actor.links
        names = [receiver, receiver.rpartition(".")[0]]
        for lane in [each for name in names for each in self._of.get((sender, name), ())]:
            early = self._lanes[lane].too_early(*cuts)
            self.hold(not early, "cut-consistent", f"{between}: {early} came too early in {lane}")
        recorded: dict[tuple[str, int], list[int]] = {(lane, 0): [] for lane in LANES}
        for event in other.messages:
            if event.sender == sender:
                recorded.setdefault((event.lane, event.session), []).append(event.seq)
        peers = [link for link in links.links.values() if link.incarnation == sender]
        expected: dict[tuple[str, int], list[int]] = {(lane, 0): [] for lane in LANES}
        for link in peers:
            target = receiver if link.peer != sender else names[1]
            for lane in LANES:
                known = self._lanes.get((sender, target, lane, link.session))
                if known is not None and known.between(*cuts):
                    expected[lane, link.session] = known.between(*cuts)
        said = f"{between}: {recorded} in flight, it was {expected}"
        self.hold(recorded == expected, "channel-complete", said)

    def _learner(self, snapshot: str, each: Seen, learner: Any) -> None:
        """The worker's state must match the frozen machine at the end of the current step."""
        assert each.state.worker is not None, "a state has one"
        device, batches, _ = each.state.worker
        drawn = learner.drawn
        if learner.data.held:
            opened = {each.shard for each in learner.data.held if each.opened}
            after = learner.data.after(runs=learner.running is not None)
            drawn = tuple(sorted((n, used) for n, used, _ in after if n in opened)) or 0
            batches = tuple(each for each in batches or () if each[0] in opened) or 0
        said = f"{snapshot}: {each.part.who} has drawn {drawn}, its worker {batches}"
        self.hold(batches == drawn, "data-cursor", said)
        versions = list(learner.versions)
        for overwrite in learner.running.overwrites if learner.running else ():
            versions[overwrite.fragment] = overwrite.version
        theirs = [version for version, _ in device]
        said = f"{snapshot}: {each.part.who} holds {versions}, its worker {theirs}"
        self.hold(theirs == (versions or theirs), "optimizer-with-params", said)
        self._arrays(snapshot, each)

    def _syncer(self, snapshot: str, world: World, each: Seen, syncer: Any) -> None:
        """No contribution that is still to be merged may have been merged already."""
        self._arrays(snapshot, each)
        who, number = each.part.who, each.part.number
        actor = who.rpartition(".")[0]
        spent = {
            (name, fragment, base)
            for by, at, name, fragment, base in self._merged[actor]
            if number_of(by) < number_of(who) or (by == who and at <= number)
        }
        syncs = syncer.rounds.syncs if syncer.rounds else {}
        coming = [(peer, part.said) for sync in syncs.values() for peer, part in sync.parts.items()]
        flight = [event for event in each.messages if isinstance(event.body, Contribution)]
        coming += [(event.sender, event.body) for event in flight if event.body.t in syncs]
        for name, said in coming:
            again = (name, said.fragment, said.base) in spent
            self.hold(not again, "merge-once", f"{snapshot}: {name}'s {said} is merged already")
        known = syncer.rounds.membership.merged if syncer.rounds else {}
        for name, fragment, base in spent:
            forgotten = name in known and known[name][fragment] < base
            what = f"{snapshot}: {who} has forgotten that {base} of {name} is spent"
            self.hold(not forgotten, "merge-once", what)

    def _arrays(self, snapshot: str, each: Seen) -> None:
        """Every array that is held must be written, with the contents that its name implies."""
        who = each.part.who
        for handle, content in each.state.contents.items():
            kind, _, rest = handle.partition("/")
            if kind in {"theta", "outer", "wire"}:
                named = (*map(int, rest.split("/")), 0, 0)
                said = f"{snapshot}: {handle} of {who} is {content.what}"
                self.hold(content.what == named, "optimizer-with-params", said)
        for event in each.messages:
            there = not event.handle or event.handle in each.flight.contents
            said = f"{snapshot}: {who} has not written what {event} brought"
            self.hold(there, "channel-complete", said)


class SnapshotEndings(InvariantCheck[World, Node]):
    """snapshot-terminates, concurrent-snapshots: each snapshot in progress waits for something that
    will happen, and without faults all participants are included.

    Args:
        heal_at: the time after which there are no more faults.
    """

    def __init__(self, heal_at: float) -> None:
        super().__init__()
        self._trouble_at = heal_at
        self._begun: dict[str, float] = {}
        self._full: dict[str, float] = {}
        """When each incarnation last had the maximum number of snapshots in progress."""
        self._works: dict[str, set[int]] = defaultdict(set)
        self.settled: dict[str, str] = {}
        """By snapshot why it was discarded; empty if it was committed."""

    def started(self, stage: World, role: Node) -> None:
        """A new actor may be missing in snapshots in progress."""
        self._trouble_at = max(stage.now, self._trouble_at)

    def died(self, stage: World, role: Node) -> None:
        """An actor may now be missing in snapshots, and those that it initiated end."""
        self._trouble_at = max(stage.now, self._trouble_at)
        for snapshot in [s for s in self._begun if s.startswith(f"{role.incarnation}:")]:
            del self._begun[snapshot]

    def see(self, stage: World, role: Node, event: Event, effects: Effects) -> None:
        """Check the snapshots in progress, and those that have ended."""
        broken = isinstance(event, MessageArrived) and type(event.body) in GREETINGS | {Bye}
        if broken or isinstance(event, LaneBroken):
            self._trouble_at = max(stage.now, self._trouble_at)
        if isinstance(event, WorkResult):
            self._works[role.incarnation].discard(event.work)
        for effect in effects:
            if isinstance(effect, Work):
                self._works[role.incarnation].add(effect.work)
        self._under_way(stage, role)
        for effect in effects:
            if isinstance(effect, Observe) and effect.event in {BEGUN, TAKEN, DISCARDED}:
                self._observe(stage, role, effect.event, effect.fields)

    def _observe(self, world: World, node: Node, what: str, fields: dict[str, Any]) -> None:
        snapshot, absent = fields["snapshot"], fields.get("absent", {})
        if what == BEGUN:
            self._begun[snapshot] = world.now
            return
        self.hold(snapshot not in self.settled, TERMINATES, f"{snapshot} is settled twice")
        reason = self.settled[snapshot] = fields.get("reason", "")
        if reason == REFUSED:
            full = self._full.get(node.incarnation) == world.now
            self.hold(full, CONCURRENT, f"{snapshot}: {REFUSED}, and there are not as many")
            return
        begun = self._begun.pop(snapshot)
        refused = [who for who, why in absent.items() if why == REFUSED]
        early = [who for who in refused if self._full.get(who, -1.0) < begun]
        self.hold(not early, CONCURRENT, f"{snapshot}: {early} refused with less under way")
        if begun > self._trouble_at + QUIET_S and not refused:
            present = {each.incarnation: each for each in world.nodes.values() if each.present}
            # A learner in a long step may not have noticed that a syncer was replaced.
            known = {who for each in present.values() for who in each.actor.snapshots.peers()}
            lacking = sorted((known & present.keys()) - set(fields.get("parts", ())))
            said = f"{snapshot} lacks {lacking}, and nothing went wrong: {reason or absent}"
            self.hold(not lacking, TERMINATES, said)

    def _under_way(self, world: World, node: Node) -> None:
        """For each snapshot that an actor knows of, work must be in progress or a timer be set."""
        actor, cutting = node.actor, node.actor.snapshots
        participant = cutting.participant
        opened, own = participant.cuts.open, participant.own
        gatherings = participant.gatherings
        if not (own or opened or gatherings or cutting.held or cutting.flight or cutting.commits):
            return
        me = f"{node.incarnation}:{actor.number}"
        count = len(own.keys() | gatherings.keys())
        self.hold(count <= UNDER_WAY_MAX, CONCURRENT, f"{me}: {count} snapshots are under way")
        if count == UNDER_WAY_MAX:
            self._full[node.incarnation] = world.now
        there, timers = set(cutting.peers()), [timer for timer, _ in actor.timers]
        flight: list[str] = []
        for cut in opened.values():
            gone = sorted({peer for peer, _ in cut.awaited} - there)
            self.hold(not gone, TERMINATES, f"{me} awaits a marker of {gone}, who are not there")
            self.hold(MarkerDeadline(cut.snapshot) in timers, TERMINATES, f"{me} waits for ever")
            flight += [each.handle for said in cut.in_flight.values() for each in said]
        flight = sorted(handle for handle in flight if handle)
        held = sorted(handle for handle, n in cutting.flight.items() for _ in range(n))
        self.hold(held == flight, TERMINATES, f"{me} holds {held} of what was in flight: {flight}")
        writing = {snapshot for snapshot, _ in cutting.held.values()}
        idle = sorted(own.keys() - opened.keys() - writing)
        self.hold(not idle, TERMINATES, f"{me}: nothing will be written of {idle}")
        late = sorted(each for each in gatherings if PartDeadline(each) not in timers)
        self.hold(not late, TERMINATES, f"{me}: no timer is set after {late}")
        works = {*cutting.held, *cutting.commits} - self._works[node.incarnation]
        self.hold(not works, TERMINATES, f"{me} waits for work {sorted(works)}, which is over")

    def ended(self, world: World) -> None:
        """Every initiator that still runs must know what became of its snapshots."""
        self.hold(not self._begun, TERMINATES, f"at the end {sorted(self._begun)} are under way")
