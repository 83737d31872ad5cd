"""The simulated world: the real machines in virtual time, with links, simulated work and faults. It
is a plain loop over a heap. One seed determines everything: each learner and link has its own
random stream, so that a fault of one does not affect others. Events pass the same door as in a live
run."""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from ddloco.job.config import Job
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.work import Differentiate, RunStep, StepFinished
from ddloco.machines.registry import machine_for
from ddloco.simulation.network import Line
from ddloco.simulation.node import Node, Pace
from ddloco.simulation.physics import Check, Physics, WorldObserver
from ddloco.simulation.topology import Switch
from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Finish, Observe, Work
from ddloco.stage.actors.events import DismissRequested, StopRequested, WorkResult
from ddloco.stage.driver.door import admit
from ddloco.stage.files.faults import LINK_KINDS, Fault
from ddloco.workers.simulated.snapshot_sink import SnapshotMemory
from ddloco.workers.simulated.work import FragmentMemory, SimulatedWork
from transport import CancelTimer, Event, Free, SetTimer, TimerFired, Transmit

LEAVING_S = 0.5
"""Interval for checking whether an actor that leaves has ended, so that it may return."""


STEPS = frozenset({RunStep, Differentiate})
"""Work that takes as long as a learner's step."""


class EndlessError(Exception):
    """A world has not ended when it should have."""


class World:
    """A job in virtual time. ``now`` is in seconds since its start. ``may_act`` is asked before
    each event whether an incarnation may handle it."""

    def __init__(
        self,
        job: Job,
        physics: Physics,
        checks: Sequence[Check] = (),
        observers: Sequence[WorldObserver] = (),
        may_act: "Callable[[World, Node], bool] | None" = None,
    ) -> None:
        self.job = job
        self._may_handle = may_act
        self.physics = physics
        self.checks = list(checks)
        self._observers: list[WorldObserver] = [*checks, *observers]
        self.now = 0.0
        self.over = False
        """Whether the job has ended: the leading syncer has finished, and no actor is left."""
        self.events = 0
        self.plan: FragmentPlan = job.plan(physics.leaves)
        self.fragment_memories = {name: FragmentMemory() for name in job.syncer_names()}
        self.snapshots = SnapshotMemory()
        self.lead = job.syncer_names()[0]
        self.nodes: dict[str, Node] = {}
        """The newest incarnation of each actor, running or not, by actor."""
        self.switch = Switch(self)
        self._paces: dict[str, Pace] = {}
        self._heap: list[tuple[Any, ...]] = []
        self._order = 0
        self._doers: dict[type[Any], Callable[[Node, Any], None]] = {
            Transmit: self.switch.transmit,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            Free: self._free,
            Finish: self._finish,
            Observe: self._observe,
        }

    # Starting and ending actors.

    def begin(self, faults: Sequence[Fault] = ()) -> None:
        late = {fault.who for fault in faults if fault.what == "join"}
        for name in self.job.names():
            if name not in late:
                self.start(name)
        for fault in faults:
            self.call(fault.at_s, self._befall, fault)

    def paces(self) -> list[Pace]:
        return list(self._paces.values())

    def pace_of(self, actor: str) -> Pace | None:
        return self._paces.get(actor)

    def start(self, actor: str) -> Node:
        before = self.nodes.get(actor)
        incarnation = f"{actor}.{before.number + 1 if before else 1}"
        physics = self.physics
        if actor not in self._paces:
            self._paces[actor] = physics.pace(actor, random.Random(f"{physics.seed}/{actor}"))
        node = Node(
            incarnation=incarnation,
            actor_name=actor,
            actor=new_actor(incarnation, machine_for(self.job, incarnation)),
            simulated_work=SimulatedWork(
                self.job,
                incarnation,
                self.plan,
                self.fragment_memories.get(actor, FragmentMemory()),
                self.snapshots,
                arithmetic=physics.arithmetic,
            ),
            pace=self._paces[actor],
            recorder=physics.recorder(incarnation),
            log=physics.log(incarnation),
            zero=self.now,
        )
        self.nodes[actor] = node
        self.switch.plug(node)
        for observer in self._observers:
            observer.started(self, node)
        self.admit(node, Started(incarnation, physics.leaves, copies=True))
        self.switch.unpark(actor)
        return node

    def kill(self, actor: str) -> None:
        """End an actor at once; messages to it break the lane at the sender."""
        node = self.nodes[actor]
        if not node.present:
            return
        self.switch.reset(actor)
        self._gone(node)

    def end(self, node: Node, finish: Finish) -> None:
        """End an incarnation that may not act, without an event."""
        node.finish = finish
        self._gone(node)

    def succeed(self, actor: str) -> None:
        """Start the next incarnation of an actor whose last one sleeps; nobody hears it again."""
        node = self.nodes[actor]
        self.switch.reset(actor)
        self._report_end(node)
        self.start(actor)

    def _gone(self, node: Node) -> None:
        node.present = False
        node.pace.away(self.now)
        lead = self.nodes.get(self.lead)
        left = any(each.present for each in self.nodes.values())
        self.over = lead is not None and lead.finish is not None and not left
        if self.nodes[node.actor_name] is node:
            self._report_end(node)
        node.close()

    def _report_end(self, node: Node) -> None:
        for observer in self._observers:
            observer.died(self, node)
        self.switch.unplug(node)

    def close(self) -> None:
        for node in [each for each in self.nodes.values() if each.present]:
            node.close()

    def freeze(self, actor: str) -> None:
        """Stop handling events of an actor, as after SIGSTOP."""
        self.nodes[actor].frozen = True

    def thaw(self, node: Node) -> None:
        """Resume an actor: due timers are handled first, then held events, in order."""
        if not node.frozen:
            return
        node.frozen = False
        held, node.held = node.held, []
        for happen, item in sorted(held, key=lambda each: each[0] != self._timer):
            self._happen(node, happen, item)

    def dismiss(self, learner: str, back_s: float) -> None:
        """Ask the lead to let a learner leave for good, and start it again later all the same."""
        lead, node = self.nodes[self.lead], self.nodes.get(learner)
        if lead.present and node is not None and node.present:
            self.tell(lead, DismissRequested(learner))
            self.call(self.now + back_s, self._return, node)

    def stop(self, actor: str, reason: str = "enough") -> None:
        node = self.nodes[actor]
        if node.present:
            self.tell(node, StopRequested(reason))

    def _befall(self, fault: Fault) -> None:
        """Apply a fault; it has no effect on an actor that does not run."""
        node = self.nodes.get(fault.who)
        back = None if fault.for_s is None else self.now + fault.for_s
        if fault.what == "join":
            if node is None:
                self.start(fault.who)
        elif node is None or not node.present:
            return
        elif fault.what in LINK_KINDS:
            self._strain(node, fault, back)
        elif fault.what in {"crash", "leave"}:
            self.kill(fault.who) if fault.what == "crash" else self.stop(fault.who, "leaves")
            if back is not None:
                self.call(back, self._return, node)
        else:
            node.faults.append(fault)
            self._feel(node)
            if back is not None:
                self.call(back, self._recover, node, fault)

    def _recover(self, node: Node, fault: Fault) -> None:
        node.faults.remove(fault)
        self._feel(node)
        if fault.what == "stall" and not any(each.what == "stall" for each in node.faults):
            self.thaw(node)

    def _feel(self, node: Node) -> None:
        """Recompute whether the node is stalled, and how slow it is, from its active faults."""
        node.slow = math.prod(each.factor for each in node.faults if each.what == "slow")
        node.frozen = node.frozen or any(each.what == "stall" for each in node.faults)

    def _return(self, node: Node) -> None:
        """Start the actor again once its previous incarnation has ended."""
        if node.present:
            self.call(self.now + LEAVING_S, self._return, node)
        elif self.nodes[node.actor_name] is node:
            self.start(node.actor_name)

    def _strain(self, node: Node, fault: Fault, back: float | None) -> None:
        for line in self.switch.of(node):
            line.begin(fault)
            if back is not None and fault.what != "reset":
                self.call(back, self._relieve, line, fault)
        if fault.what == "reset":
            self.switch.cut_connections(node)

    def _relieve(self, line: Line, fault: Fault) -> None:
        for node, item in line.end(fault):
            self._happen(node, self.switch.arrive, item)

    def _happen(self, node: Node, happen: Callable[[Node, Any], None], item: Any) -> None:
        """Deliver a held message now, before others that may follow it in its lane."""
        if node.frozen:
            node.held.append((happen, item))
        elif node.present and self._may_act(node):
            happen(node, item)

    def _may_act(self, node: Node) -> bool:
        return self._may_handle is None or self._may_handle(self, node)

    # The event loop.

    def call(self, at: float, function: Callable[..., Any], *arguments: Any) -> None:
        """Schedule a call that is not an actor's event at time ``at``."""
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, None, function, arguments))

    def tell(self, node: Node, event: Event) -> None:
        """Schedule an event of an actor now, after what is already due."""
        self.push(self.now, node, self.admit, event)

    def push(self, at: float, node: Node, happen: Callable[[Node, Any], None], item: Any) -> None:
        """Schedule something for an actor at time ``at``."""
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, node, happen, item))

    def run(
        self,
        until_s: float = math.inf,
        *,
        events_max: float = math.inf,
        until: Callable[[], bool] | None = None,
    ) -> None:
        """Run until all actors have finished, until time ``until_s``, or until ``until`` holds.

        Raises:
            EndlessError: more events than ``events_max``.
        """
        heap, pop = self._heap, heapq.heappop
        limit = self.events + events_max
        while heap and heap[0][0] <= until_s:
            at, _, node, happen, item = pop(heap)
            self.now = at
            if node is None:
                happen(*item)
            elif node.frozen:
                node.held.append((happen, item))
            elif node.present and self._may_act(node):
                happen(node, item)
            if self.events > limit:
                raise EndlessError(f"more than {events_max} events in {self.now:.1f} s")
            if self.over or (until is not None and until()):
                return
        if until_s < math.inf:
            self.now = until_s

    def admit(self, node: Node, event: Event) -> None:
        # Never backwards: differences of times may be rounded up or down.
        at = node.at = max(self.now - node.zero, node.at)
        effects = admit(node.actor, node.recorder, at, event)
        self.events += 1
        for check in self.checks:
            check.see(self, node, event, effects)
        doers = self._doers
        for effect in effects:
            do = doers.get(type(effect))
            if do is not None:
                do(node, effect)
            elif isinstance(effect, Work):
                self._begin_work(node, effect)
        if node.finish is not None:
            self._gone(node)

    # Effects.

    def _set_timer(self, node: Node, effect: SetTimer) -> None:
        at = effect.at + node.zero
        node.timers[effect.timer] = at
        self.push(max(self.now, at), node, self._timer, (effect, at))

    def _timer(self, node: Node, item: tuple[SetTimer, float]) -> None:
        effect, at = item
        if node.timers.get(effect.timer) == at:  # Neither cancelled nor moved.
            del node.timers[effect.timer]
            node.at = max(node.at, effect.at)
            self.admit(node, TimerFired(effect.timer))

    def _cancel_timer(self, node: Node, effect: CancelTimer) -> None:
        node.timers.pop(effect.timer, None)

    def _free(self, node: Node, effect: Free) -> None:
        del node.contents[effect.handle]

    def _finish(self, node: Node, effect: Finish) -> None:
        node.finish = effect

    def _observe(self, node: Node, effect: Observe) -> None:
        for observer in self._observers:
            observer.observed(node, effect)
        if node.log is not None:
            node.log.observe(effect.event, node.at, node.actor.number, effect.fields)

    def _begin_work(self, node: Node, work: Work) -> None:
        node.simulated_work.begin(work, node.contents)
        if type(work) in STEPS:
            count = work.count if isinstance(work, RunStep) else 1
            seconds = node.pace.step(self.now, node.slow, count)
            node.step_until = self.now + seconds
        else:
            seconds = self.physics.costs.of(work)
        self.push(self.now + seconds, node, self._end_work, work)

    def _end_work(self, node: Node, work: Work) -> None:
        if not node.simulated_work.capture.ready(work):
            self.push(max(node.step_until, self.now), node, self._end_work, work)
            return
        result: WorkResult = node.simulated_work.do(work, node.contents)
        node.simulated_work.settle(result)
        if isinstance(result, StepFinished):
            node.pace.done(self.now, result.count)
        self.admit(node, result)
