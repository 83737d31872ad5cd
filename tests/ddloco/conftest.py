"""The heap world: the real machines in virtual time, with links, fake work and faults.

A plain loop over a heap, no event loop and no arrays: what a handle points to is a small tuple that
says what the real array would hold, so that the world notices a wrong one, a freed one and a
forgotten one. After every event the world checks what must always hold; see ``Watch``.
"""

import hashlib
import heapq
import math
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import pytest

from ddloco.actor import Actor
from ddloco.config import job_from
from ddloco.effects import (
    EncodeFragment,
    Evaluate,
    Finish,
    MakeParameters,
    MergeFragment,
    Observe,
    RunStep,
    SaveModel,
    Work,
)
from ddloco.events import (
    Evaluated,
    FragmentEncoded,
    FragmentMerged,
    ModelSaved,
    ParametersMade,
    Started,
    StepFinished,
    StopRequested,
)
from ddloco.fragments import Leaf
from ddloco.learner import Learner
from ddloco.messages import Contribution, GlobalFragment, Pull
from ddloco.syncer import Syncer
from transport import (
    CancelTimer,
    Free,
    LaneBroken,
    MessageArrived,
    SetTimer,
    TimerFired,
    Transmit,
    actor_of,
)

SYNCER = "syncer.1"
LEAVES = tuple(Leaf(f"layer/{index}/w", (4,), "float32") for index in range(6))
TOKENS = 8


def make_job(learners=2, fragments=3, interval=3, steps=12, **sync):
    """A job with small numbers; more keys go to its ``[sync]`` table."""
    table = {"fragments": fragments, "interval": interval, "fragmentation": "tensor", **sync}
    return job_from(
        {"job": {"task": "none:none", "steps": steps, "learners": learners}, "sync": table}, "test"
    )


@dataclass
class Node:
    """One actor of the world."""

    actor: Actor
    step_s: float
    device: list[tuple[int, int]]
    alive: bool = True
    stalled: bool = False
    frozen: bool = False
    finish: Finish | None = None
    nan: bool = False
    held: list = field(default_factory=list)
    arrays: dict = field(default_factory=dict)
    pending: dict = field(default_factory=dict)
    timers: dict = field(default_factory=dict)


class Watch:
    """What must hold after every event, and counts that tests ask for.

    Merge-once, versions grow, quorum, overlap, canonical shares and weights, learners wait for
    nobody, an older version is never installed, no array is used after it was freed or kept after
    its last holder.
    """

    def __init__(self, job):
        self.job = job
        self.contributions = {}
        self.merging = {}
        self.merged = Counter()
        self.based = Counter()
        self.versions = Counter()
        self.under_way = {}
        self.merges = []
        self.launches = []
        self.steps = {}

    def see(self, at, node, event, effects):
        """Check one handled event."""
        name = node.actor.incarnation
        if name == SYNCER:
            self._syncer(at, event, effects)
        else:
            self._learner(at, node, event, effects)
        self._handles(node)

    def _learner(self, at, node, event, effects):
        name, runs = node.actor.incarnation, [e for e in effects if isinstance(e, RunStep)]
        before = self.steps.setdefault(name, [])
        if isinstance(event, StepFinished):
            assert event.step == len(before) + 1
            before.append(at)
            assert runs or any(isinstance(e, Finish) for e in effects), "a learner waits"
        for run in runs:
            first = isinstance(event, MessageArrived) and isinstance(event.body, GlobalFragment)
            assert first if run.step == 1 else isinstance(event, StepFinished), event
            assert len(before) + 1 == run.step
            for each in run.overwrites:
                assert node.device[each.fragment][0] < each.version, "an older version"

    def _syncer(self, at, event, effects):
        if isinstance(event, MessageArrived) and isinstance(event.body, Contribution):
            self.contributions[event.handle] = (event.sender, event.body)
        if isinstance(event, FragmentMerged):
            self._merged(event)
        pulls = {}
        for effect in effects:
            match effect:
                case Observe("sync repeated", fields):
                    del self.under_way[fields["t"]]
                case Transmit(body=Pull(t, fragment)):
                    pulls.setdefault((t, fragment), []).append(effect.peer)
                case MergeFragment():
                    self._merging(effect)
        for (t, fragment), peers in pulls.items():
            assert fragment not in self.under_way.values(), "two syncs of one fragment"
            self.under_way[t] = fragment
            assert len(self.under_way) <= self.job.sync.overlap
            assert len(set(peers)) == len(peers) >= self.job.sync.quorum
            self.launches.append((at, t, fragment, tuple(peers)))

    def _merging(self, merge):
        names = [share.name for share in merge.shares]
        assert sorted(set(names), key=str.encode) == names, "shares in learner order"
        for share in merge.shares:
            sender, said = self.contributions[share.handle]
            assert (sender, said.t, said.fragment) == (share.name, merge.t, merge.fragment)
            assert share.weight == said.tokens * (said.tokens / said.steps)
        self.merging[merge.work] = merge

    def _merged(self, event):
        merge = self.merging.pop(event.work)
        for share in merge.shares:
            if share.name not in event.accepted:
                continue
            sender, said = self.contributions.pop(share.handle)
            self.merged[sender, said.fragment, said.base, said.step] += 1
            self.based[sender, said.fragment, said.base] += 1
            assert self.based[sender, said.fragment, said.base] == 1, "tokens merged twice"
        if event.accepted:
            assert self.versions[merge.fragment] < merge.t, "versions grow"
            self.versions[merge.fragment] = merge.t
            self.merges.append((merge.t, merge.fragment, event.accepted))
            del self.under_way[merge.t]

    def _handles(self, node):
        if node.finish is not None:
            return
        held, stored = node.actor.handles._holders, node.arrays
        made = {handle for outs in node.pending.values() for handle in outs}
        assert stored.keys() <= held.keys(), "an array that nobody holds"
        assert held.keys() - stored.keys() <= made, "a handle to nothing"
        assert sum(held.values()) == holders(node.actor), "holders are counted exactly"
        name, sync, learners = node.actor.incarnation, self.job.sync, self.job.job.learners
        parts = sync.fragments
        bound = 3 * parts + sync.overlap * (learners + 3) + parts * learners
        assert len(held) <= (bound if name == SYNCER else 3 * parts + 4 * sync.overlap + 4)


def holders(actor):
    """How many holders of arrays an actor's state accounts for."""
    machine, links = actor.machine, actor.links._links.values()
    waiting = [w for link in links for lane in link.lanes.values() for w in lane.outbox.waiting]
    total = sum(bool(w.payload) for w in waiting)
    if isinstance(machine, Syncer):
        total += sum(bool(h) for g in machine._globals for h in (g.theta, g.momentum, g.wire))
        return total + sum(len(s.parts) + 3 * bool(s.work) for s in machine._syncs.values())
    running = machine._running
    total += bool(machine._host) + 2 * len(machine._answers) + len(machine._incoming)
    return total + (1 + len(running.overwrites) if running is not None else 0)


class World:
    """Actors, links and faults in virtual time.

    Args:
        job: as ``make_job`` makes it.
        step_s: seconds of one learner's step, by name; one second for the others.
        delay_s: one-way delay of every message.
    """

    def __init__(self, job, step_s=None, delay_s=0.01, merge_s=0.05, encode_s=0.01):
        self.job = job
        self.now = 0.0
        self.watch = Watch(job)
        self.trace = []
        self.nodes = {}
        self.refuse = lambda name, t: None
        self.lose = lambda sender, said: False
        self.delays = {}
        self._delay_s, self._merge_s, self._encode_s = delay_s, merge_s, encode_s
        self._step_s = step_s or {}
        self._heap = []
        self._order = count()
        self._due = {}
        self.start(SYNCER)
        for name in job.learner_names():
            self.start(f"{name}.1")

    def start(self, incarnation):
        """A new actor takes its first event."""
        machine = Syncer(self.job) if incarnation == SYNCER else Learner(self.job)
        step_s = self._step_s.get(actor_of(incarnation), 1.0)
        fragments = len(self.job.plan(LEAVES).fragments)
        self.nodes[incarnation] = Node(Actor(incarnation, machine), step_s, [(-1, 0)] * fragments)
        self.post(0.0, incarnation, Started(incarnation, LEAVES))

    def newest(self, actor):
        """The newest incarnation of an actor."""
        return max((n for n in self.nodes if actor_of(n) == actor), key=lambda n: int(n[-1]))

    # Faults.

    def stall(self, name):
        """Its running step does not finish any more; it still talks."""
        self.nodes[name].stalled = True

    def freeze(self, name):
        """Nothing happens to it any more, as after a SIGSTOP."""
        self.nodes[name].frozen = True

    def resume(self, name):
        """It goes on; whatever waited happens now, in order."""
        node = self.nodes[name]
        node.stalled = node.frozen = False
        held, node.held = node.held, []
        for happening in held:
            self.post(0.0, name, happening)

    def kill(self, name):
        """It is gone, and whatever is said to it breaks the lane at the sender."""
        self.nodes[name].alive = False

    def break_lane(self, name, peer, lane="bulk"):
        """An actor's own end of a lane breaks."""
        self.post(0.0, name, LaneBroken(peer, lane, "test"))

    def stop(self, reason="enough"):
        """Somebody outside asks the syncer to end."""
        self.post(0.0, SYNCER, StopRequested(reason))

    # The loop.

    def post(self, after_s, name, happening):
        """Let something happen to an actor a little later."""
        heapq.heappush(self._heap, (self.now + after_s, next(self._order), name, happening))

    def run(self, seconds=math.inf, until=lambda: False, events_max=200_000):
        """Let time pass; stops early when everybody has finished or ``until`` holds."""
        end = self.now + seconds
        for _ in range(events_max):
            if until() or self.over or not self._heap or self._heap[0][0] > end:
                break
            self.now, _, name, happening = heapq.heappop(self._heap)
            self._happen(self.nodes[name], name, happening)
        else:
            raise AssertionError("it never ends")
        if seconds < math.inf:
            self.now = end

    @property
    def over(self):
        """Whether every actor that lives has finished."""
        return all(node.finish is not None for node in self.nodes.values() if node.alive)

    def _happen(self, node, name, happening):
        if not node.alive or node.finish is not None:
            return
        if node.frozen or (node.stalled and isinstance(happening, StepFinished)):
            node.held.append(happening)
            return
        event = happening() if callable(happening) else happening
        if isinstance(event, TimerFired):
            if node.timers.get(event.timer, math.inf) > self.now:
                return
            del node.timers[event.timer]
        if hasattr(event, "work"):
            for handle, content in self._outcome(node, event).items():
                assert handle in node.actor.handles._holders, f"nobody holds {handle}"
                node.arrays[handle] = content
        number = node.actor.number
        effects = node.actor.handle(self.now, event)
        assert number + 1 == node.actor.number
        self.trace.append((self.now, name, event, effects))
        for effect in effects:
            if isinstance(effect, Work):
                node.pending[effect.work] = self._outputs(effect)
            if isinstance(effect, Free):
                del node.arrays[effect.handle]
            if isinstance(effect, Finish):
                node.finish = effect
            if isinstance(effect, Transmit):
                self._transmit(node, name, effect)
        self.watch.see(self.now, node, event, effects)
        for effect in effects:
            self._perform(node, name, effect)

    def _perform(self, node, name, effect):
        match effect:
            case SetTimer(timer, at):
                node.timers[timer] = at
                self.post(max(at - self.now, 0.0), name, TimerFired(timer))
            case CancelTimer(timer):
                node.timers.pop(timer, None)
            case Work():
                self._work(node, name, effect)

    def _transmit(self, node, name, said):
        target = SYNCER if said.peer == "syncer" else said.peer
        content = node.arrays[said.payload] if said.payload else None
        receiver = self.nodes.get(target)
        if receiver is None or not receiver.alive or receiver.finish is not None:
            if name == SYNCER:
                self.post(0.0, name, LaneBroken(said.peer, said.lane, "nobody is there"))
            return
        if self.lose(name, said):
            return
        key = (name, target, said.lane)
        delay_s = self.delays.get(actor_of(target if name == SYNCER else name), self._delay_s)
        due = self._due[key] = max(self._due.get(key, 0.0), self.now + delay_s)

        def arrive():
            handle = f"in/{receiver.actor.number + 1}" if content else ""
            if content:
                receiver.arrays[handle] = content
            if isinstance(said.body, Contribution):
                body = said.body
                assert (body.fragment, body.base, body.steps, body.step) == content, "counters"
                assert body.tokens == body.steps * TOKENS
            digest = hashlib.md5(repr(content).encode()).digest() if content else b""
            peer = "syncer" if name == SYNCER else name
            body, clock = said.body, said.clock
            return MessageArrived(
                peer, said.lane, name, said.session, said.seq, clock, body, digest, handle
            )

        self.post(due - self.now, target, arrive)

    # Work.

    def _outputs(self, work):
        match work:
            case MakeParameters():
                parts = range(len(self.job.plan(LEAVES).fragments))
                return {h: ("global", p, 0) for p in parts for h in (f"theta/{p}/0", f"wire/{p}/0")}
            case MergeFragment():
                return dict.fromkeys(work.out, ("global", work.fragment, work.t))
            case RunStep() | EncodeFragment():
                return {work.out: work}
            case _:
                return {}

    def _outcome(self, node, event):
        """What finished work leaves behind; what it read must still be there."""
        outputs, stored = node.pending.pop(event.work), node.arrays
        work = next(iter(outputs.values()), None)
        if isinstance(work, RunStep):
            for each in work.overwrites:
                assert ("global", each.fragment, each.version) == stored[each.handle]
                node.device[each.fragment] = (each.version, 0)
            node.device = [(version, steps + 1) for version, steps in node.device]
            return {work.out: (work.step, tuple(node.device))}
        if isinstance(work, EncodeFragment):
            step, device = stored[work.source]
            return {work.out: (work.fragment, *device[work.fragment], step)}
        return (
            outputs
            if not isinstance(event, FragmentMerged) or event.accepted
            else dict.fromkeys(outputs, ("nothing",))
        )

    def _work(self, node, name, work):
        match work:
            case RunStep():
                loss = math.nan if node.nan else 1.0 / work.step
                done = StepFinished(work.work, work.step, loss, TOKENS, b"batch")
                self.post(node.step_s, name, done)
            case EncodeFragment():
                self.post(self._encode_s, name, FragmentEncoded(work.work, b"digest"))
            case MergeFragment():
                self.post(self._merge_s, name, self._merge(node, work))
            case MakeParameters():
                self.post(0.1, name, ParametersMade(work.work, b"digest"))
            case Evaluate():
                self.post(0.2, name, Evaluated(work.work, 2.5))
            case SaveModel():
                self.post(0.1, name, ModelSaved(work.work, b"digest"))

    def _merge(self, node, work):
        assert work.theta in node.arrays
        assert not work.momentum or work.momentum in node.arrays
        assert all(share.handle in node.arrays for share in work.shares)
        reasons = {share.name: self.refuse(share.name, work.t) for share in work.shares}
        accepted = tuple(name for name, reason in reasons.items() if reason is None)
        refused = tuple((name, why) for name, why in reasons.items() if why is not None)
        weights = tuple(1 / len(accepted) for _ in accepted)
        return FragmentMerged(work.work, accepted, weights, refused, b"t", b"m", b"w")

    # What tests ask.

    def observed(self, event, name=None):
        """The fields of every observation of a kind, with their times."""
        return [
            (at, effect.fields)
            for at, actor, _, effects in self.trace
            for effect in effects
            if isinstance(effect, Observe) and effect.event == event and name in {None, actor}
        ]

    def digest(self):
        """One value for everything that happened."""
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()


@pytest.fixture(name="World")
def world_class():
    """The class of heap worlds."""
    return World


@pytest.fixture(name="make_job")
def job_maker():
    """Makes jobs with small numbers."""
    return make_job


@pytest.fixture
def leaves():
    """The leaves of six tensors that the heap world's task has."""
    return LEAVES
