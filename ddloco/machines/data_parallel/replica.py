"""The replica machine: one worker of a data-parallel job. At every step it waits for the slowest
replica, which a learner does not. One that joins later goes to the place in its data of those that
were there from the start."""

import math
from typing import Any

from msgspec import Struct, field

from ddloco.job.config import Job
from ddloco.job.protocol.events import Started, WorkerBusy
from ddloco.job.protocol.messages import (
    Contribution,
    GlobalFragment,
    LastStep,
    Progress,
    Roster,
    Stop,
)
from ddloco.job.protocol.time_spent import TimeSpent, of_step
from ddloco.job.protocol.timers import STOP_S_MAX, LeaveDeadline
from ddloco.job.protocol.work import Differentiate, StepFinished
from ddloco.machines.syncer.estimates import Recent
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.actor import OwnMachine
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.events import LeaveRequested, Restored, StopRequested, WorkFailed
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
    SetTimer,
    TimerFired,
)


class Computing(Struct, forbid_unknown_fields=True):
    """A gradient that is being computed, from the parameters of ``version``, or will be next;
    ``since`` is when that began, in seconds."""

    version: int
    handle: str
    since: float = 0.0


class Replica(OwnMachine):
    """The state machine of one replica.

    Attributes:
        drawn: its place in its data, in batches.
        idle_at: since when it has waited for parameters, in seconds; None if it does not wait.
        busy: the call in which its worker has been for long, and for how long then.
    """

    job: Job
    work: WorkNumbers = field(default_factory=WorkNumbers)
    step: int = 0
    drawn: int = 0
    computing: Computing | None = None
    next: Computing | None = None
    stopping: str | None = None
    step_s: Recent = field(default_factory=Recent)
    idle_at: float | None = None
    trained: int = 0
    spent: TimeSpent = TimeSpent()
    last: LastStep | None = None
    busy: str = ""

    @property
    def standing(self) -> str:
        """What it waits for before its next step, in words; empty if it trains."""
        return "" if self.idle_at is None else "the syncer's parameters"

    def handle(self, at: float, event: Event) -> list[Effect]:
        match event:
            case Started():
                agreement = self.job.agreement(self.job.plan(event.leaves))
                waiting = Observe("waiting", {"for": "the parameters", "fragments": 1})
                return [Dial(SYNCER, agreement), waiting]
            case StepFinished():
                return self._finished(at, event)
            case MessageArrived():
                return self._message(at, event)
            case PeerJoined():
                if self.computing is None and self.idle_at is None:
                    self.idle_at = at
                return [self._report()]
            case PeerLost(_, reason):
                return [Observe("syncer lost", {"reason": reason, "step": self.step})]
            case PeerRefused(peer, reason):
                return self._finish("bad-input", f"{peer} refuses this learner: {reason}")
            case WorkFailed(_, kind, reason):
                if kind == "task":
                    return self._finish("bad-input", reason)
                return self._finish("failed", f"{reason}, at batch {self.drawn}", again=True)
            case WorkerBusy():
                self.busy = event.words
                return [self._report(), event.observed()]
            case StopRequested(reason):
                return self._stop(at, reason)
            case TimerFired(LeaveDeadline()) if self.stopping is not None:
                return self._finish("done", self.stopping)
            case LeaveRequested(reason):
                return self._finish("left", reason)
            case Restored():
                self.stopping = None  # The stop belonged to an earlier run.
                return []
            case _:
                return []

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        match event.body:
            case GlobalFragment(_, version) if event.handle:
                return self._receive(at, version, event.handle)
            case Roster(_, floors):
                return [Retire(floors)]
            case Stop(_, reason):
                return self._stop(at, reason)
            case _:
                return []

    def _receive(self, at: float, version: int, handle: str) -> list[Effect]:
        """Take new parameters; the averager resends a version whose gradient was lost."""
        computing = self.computing
        if computing is not None and computing.version == version:
            return []
        effects: list[Effect] = [Keep(handle)]
        if self.next is not None:
            effects.append(Drop(self.next.handle))
        self.next = Computing(version, handle)
        return effects if computing is not None else effects + self._compute(at)

    def _compute(self, at: float) -> list[Effect]:
        if self.stopping is not None:
            return self._finish("done", self.stopping)
        if self.next is None:
            return []
        self.computing, self.next = self.next, None
        self.computing.since = at
        if self.idle_at is not None:
            self.spent += TimeSpent(parameters=at - self.idle_at)
            self.idle_at = None
        # No batch is drawn twice: not for a version that is asked for again, nor after a return.
        self.drawn = max(self.drawn, self.computing.version) + 1
        step, source = self.step + 1, self.computing.handle
        out = f"out/{step}"
        return [Keep(out), Differentiate(self.work.next(), step, source, out, self.drawn)]

    def _finished(self, at: float, event: StepFinished) -> list[Effect]:
        computing, self.computing = self.computing, None
        assert computing is not None, "a gradient came that was not asked for"
        self.step, self.busy = event.step, ""
        effects: list[Effect] = [Drop(computing.handle)]
        out = f"out/{event.step}"
        if event.step == 1 and not math.isfinite(event.loss):
            reason = f"task {self.job.job.task}: loss is {event.loss} at the first step"
            return [*effects, Drop(out), *self._finish("bad-input", reason)]
        took_s = at - computing.since
        self._take_account(event, took_s)
        t, tokens, self.idle_at = computing.version + 1, event.tokens, at
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
        self.spent += of_step(event.step, took_s, *apart, self.step_s.value)
        if event.step > 1:  # The first step includes compilation.
            self.step_s.add(took_s)
        self.trained += event.tokens
        self.last = LastStep(event.loss, event.metrics, event.shapes).after(self.last)

    def _report(self) -> Effect:
        """What it has done, for the job's numbers; its gradients say of which step they are."""
        said = Progress(
            step=self.step,
            step_s=self.step_s.value or 0.0,
            versions=(self.step,),
            steps=(0,),
            tokens=(0,),
            batches=self.drawn,
            last=self.last,
            trained=self.trained,
            spent=self.spent,
            busy=self.busy,
        )
        return Send(SYNCER, CONTROL, said, key="progress")

    def _stop(self, at: float, reason: str) -> list[Effect]:
        """Stop after the running step, or in the midst of it if that takes too long."""
        self.stopping = self.stopping or reason
        if self.computing is None:
            return self._finish("done", self.stopping)
        return [SetTimer(LeaveDeadline(), at + STOP_S_MAX)]

    def _finish(self, status: Status, reason: str, *, again: bool = False) -> list[Effect]:
        return [Hangup(SYNCER, reason), Finish(status, reason, again)]
