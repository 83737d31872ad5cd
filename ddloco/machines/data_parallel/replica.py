"""The replica machine: one worker of a data-parallel job.

A replica receives the parameters, computes the gradient of its next batch, sends it, and waits for
the next parameters. At every step it therefore waits for the slowest replica; a learner does not.
"""

import math
from dataclasses import dataclass
from typing import Any

from ddloco.job.config import Job
from ddloco.job.protocol.effects import Differentiate
from ddloco.job.protocol.events import Started, StepFinished
from ddloco.job.protocol.messages import (
    Contribution,
    GlobalFragment,
    LastStep,
    Progress,
    Roster,
    Stop,
)
from ddloco.job.protocol.time_spent import TimeSpent, of_step
from ddloco.machines.syncer.estimates import Recent
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.events import LeaveRequested, StopRequested, WorkFailed
from ddloco.stage.files.faults import SYNCER
from transport import (
    BULK,
    CONTROL,
    Dial,
    Drop,
    Effect,
    Event,
    Hangup,
    Keep,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Retire,
    Send,
)


@dataclass(slots=True)
class Computing:
    """A gradient that is being computed, or the parameters for the next one.

    Attributes:
        version: the version of the parameters.
        handle: the array that holds them.
        since: seconds; when the computation started.
    """

    version: int
    handle: str
    since: float = 0.0


class Replica:
    """The state machine of one replica.

    Args:
        job: the resolved job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._step = 0
        self._work = WorkNumbers()
        self._computing: Computing | None = None
        self._next: Computing | None = None
        self._stopping: str | None = None
        self._step_s = Recent()
        self._idle_at: float | None = None
        """Since when it has waited for parameters, in seconds."""
        self._trained = 0
        self._spent = TimeSpent()
        self._last: LastStep | None = None

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Handle one event at ``at`` seconds; returns the effects to perform, in order."""
        match event:
            case Started():
                agreement = self._job.agreement(self._job.plan(event.leaves))
                waiting = Observe("waiting", {"for": "the parameters", "fragments": 1})
                return [Dial(SYNCER, agreement), waiting]
            case StepFinished():
                return self._finished(at, event)
            case MessageArrived():
                return self._message(at, event)
            case PeerJoined():
                if self._computing is None and self._idle_at is None:
                    self._idle_at = at
                return [self._report()]
            case PeerLost(_, reason):
                return [Observe("syncer lost", {"reason": reason, "step": self._step})]
            case PeerRefused(peer, reason):
                return self._finish("bad-input", f"{peer} refuses this learner: {reason}")
            case WorkFailed(_, kind, reason):
                return self._finish("bad-input" if kind == "task" else "failed", reason)
            case StopRequested(reason):
                return self._stop(reason)
            case LeaveRequested(reason):
                return self._finish("left", reason)
            case _:
                return []

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        match event.body:
            case GlobalFragment(_, version) if event.handle:
                return self._receive(at, version, event.handle)
            case Roster(_, floors):
                return [Retire(floors)]
            case Stop(_, reason):
                return self._stop(reason)
            case _:
                return []

    def _receive(self, at: float, version: int, handle: str) -> list[Effect]:
        """Take new parameters; the averager resends a version whose gradient was lost."""
        computing = self._computing
        if computing is not None and computing.version == version:
            return []
        effects: list[Effect] = [Keep(handle)]
        if self._next is not None:
            effects.append(Drop(self._next.handle))
        self._next = Computing(version, handle)
        return effects if computing is not None else effects + self._compute(at)

    def _compute(self, at: float) -> list[Effect]:
        if self._stopping is not None:
            return self._finish("done", self._stopping)
        if self._next is None:
            return []
        self._computing, self._next = self._next, None
        self._computing.since = at
        if self._idle_at is not None:
            self._spent += TimeSpent(parameters=at - self._idle_at)
            self._idle_at = None
        step = self._step + 1
        out = f"out/{step}"
        return [Keep(out), Differentiate(self._work.next(), step, self._computing.handle, out)]

    def _finished(self, at: float, event: StepFinished) -> list[Effect]:
        computing, self._computing = self._computing, None
        assert computing is not None, "a gradient came that was not asked for"
        self._step = event.step
        effects: list[Effect] = [Drop(computing.handle)]
        out = f"out/{event.step}"
        if event.step == 1 and not math.isfinite(event.loss):
            reason = f"task {self._job.job.task}: loss is {event.loss} at the first step"
            return [*effects, Drop(out), *self._finish("bad-input", reason)]
        took_s = at - computing.since
        self._take_account(event, took_s)
        t, tokens, self._idle_at = computing.version + 1, event.tokens, at
        said = Contribution(t, 0, computing.version, event.step, 1, tokens)
        effects += [Send(SYNCER, BULK, said, out, key="gradient"), Drop(out), self._report()]
        step_s = round(took_s, 6)
        observed: dict[str, Any] = {
            "step": event.step,
            "loss": event.loss,
            "tokens": tokens,
            "step_s": step_s,
        }
        if event.metrics:
            observed["metrics"] = event.metrics
        return [*effects, *self._compute(at), Observe("step", observed)]

    def _take_account(self, event: StepFinished, took_s: float) -> None:
        apart = event.data_s, event.compiling_s
        self._spent += of_step(event.step, took_s, *apart, self._step_s.value)
        if event.step > 1:  # The first step includes compilation.
            self._step_s.add(took_s)
        self._trained += event.tokens
        self._last = LastStep(event.loss, event.metrics)

    def _report(self) -> Effect:
        """What it has done, for the job's numbers; its gradients say of which step they are."""
        said = Progress(
            step=self._step,
            step_s=self._step_s.value or 0.0,
            versions=(self._step,),
            steps=(0,),
            tokens=(0,),
            batches=self._step,
            last=self._last,
            trained=self._trained,
            spent=self._spent,
        )
        return Send(SYNCER, CONTROL, said, key="progress")

    def _stop(self, reason: str) -> list[Effect]:
        self._stopping = self._stopping or reason
        return [] if self._computing is not None else self._finish("done", self._stopping)

    def _finish(self, status: Status, reason: str) -> list[Effect]:
        return [Hangup(SYNCER, reason), Finish(status, reason)]
