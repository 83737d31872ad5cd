"""The learner machine (paper: Algorithm 1).

A learner trains, reports its progress after every step, answers pulls from host copies of its
last finished step, and overwrites fragments with newer global versions between steps. It waits
only once, for its first parameters, which come from the syncer or from a peer as a whole state.
After that it never waits: it requests the next ``RunStep`` while handling its own ``StepFinished``.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from clocks import number_of
from ddloco.job.config import Job
from ddloco.job.protocol.effects import EncodeFragment, InstallState, Overwrite, RunStep
from ddloco.job.protocol.events import (
    FragmentDecoded,
    FragmentEncoded,
    PieceEncoded,
    Started,
    StateCopied,
    StateInstalled,
    StepFinished,
)
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import (
    Contribution,
    GlobalFragment,
    LastStep,
    Progress,
    Pull,
    Resume,
    Roster,
    StatePiece,
    StateWanted,
    Stop,
)
from ddloco.job.protocol.status import LearnerStatus
from ddloco.job.protocol.time_spent import TimeSpent, of_step
from ddloco.machines.learner.compression import Incoming, LearnerCompression
from ddloco.machines.learner.host_copies import HostCopies
from ddloco.machines.learner.state_donor import LENDING, Lending
from ddloco.machines.learner.state_recovery import Recovery
from ddloco.machines.syncer.estimates import Recent
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.events import LeaveRequested, Restored, StopRequested, WorkFailed
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

ANSWERS_MAX = 64
"""Pulls answered at once. A syncer has at most ``overlap`` under way; more than this is abuse."""

WAITING = "waiting"
WAITING_S = 5.0
"""Seconds between progress messages while a learner waits for its first parameters. It sends
nothing else then, so without them it would not notice that the syncer has closed the link."""


LEAVING = "leaving"
LEAVE_S_MAX = 1.5
"""Seconds that a learner waits for the running step when its process must exit. The process exits
at most five seconds later, which is before any container engine kills it."""


@dataclass(slots=True)
class Answer:
    """A pull that is being answered, with the counters of the host copy that is encoded."""

    peer: str
    body: Contribution
    source: str
    out: str


@dataclass(slots=True)
class Running:
    """The step that is running: its work number, its start in seconds, and its overwrites."""

    work: int
    since: float
    overwrites: tuple[Overwrite, ...] = field(default=())


class Learner:
    """The state machine of one learner.

    Args:
        job: the resolved job.
    """

    _tells: bool = False
    """Whether it reports what its last step brought, and tells its worker the global step. States
    of earlier learners do not say so."""
    _brought: LastStep | None = None
    """What its last step brought, if it tells."""
    _copies: HostCopies | None = None
    """The host copies of fragments; None if it copies all parameters after each step, to ``_host``,
    as earlier learners did."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plan: FragmentPlan | None = None
        self._versions: list[int] = []
        """For each fragment, the installed version; -1 before the first."""
        self._step_at: list[int] = []
        self._tokens_at: list[int] = []
        """For each fragment, the step and the token count at which that version was installed.
        Progress since then is a difference, so a step updates no counter per fragment."""
        self._tokens = 0
        self._spent: TimeSpent = TimeSpent()
        self._joined_at: float | None = None
        """When it was first linked to a syncer, in seconds; from then on its time counts."""
        self._incoming: dict[int, Incoming] = {}
        self._compression = LearnerCompression(job.compress)
        self._answers: dict[int, Answer] = {}
        self._running: Running | None = None
        self._step = 0
        self._cursor = b""
        self._step_s = Recent()
        self._host = ""
        self._work = WorkNumbers()
        self._syncers: tuple[str, ...] = job.syncer_names()
        self._lead: str = self._syncers[0]
        self._linked: dict[str, bool] = dict.fromkeys(self._syncers, False)
        self._stopping: str | None = None
        self._leaving = False
        """Whether this learner stops because its process must exit, and will be started again."""
        self._first = True
        """Whether this is the actor's first incarnation, so that no batch of its shard is used."""
        self._recovery = Recovery(self._lead)
        self._installing = 0
        self._lending = Lending(self._lead, self._work)

    def status(self, at: float) -> LearnerStatus:
        """Return the status at ``at`` seconds."""
        running = self._running
        return LearnerStatus(
            step=self._step,
            step_s=self._step_s.value,
            running_s=at - running.since if running is not None else None,
            versions=tuple(self._versions),
            incoming={str(p): each.version for p, each in sorted(self._incoming.items())},
            linked=tuple(name for name, linked in self._linked.items() if linked),
            stopping=self._stopping or "",
        )

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Handle one event at ``at`` seconds; returns the effects to perform, in order.

        Types of events that a learner does not know are ignored.
        """
        match event:
            # The most frequent ones first.
            case MessageArrived():
                return self._message(at, event)
            case StepFinished():
                return self._step_finished(at, event)
            case Started():
                return self._started(event)
            case FragmentEncoded():
                return self._encoded(event)
            case FragmentDecoded():
                return self._decoded(at, event)
            case StateCopied():
                return self._lending.copied(at, event)
            case PieceEncoded():
                return self._lending.encoded(event)
            case StateInstalled():
                return self._installed(at, sound=event.sound)
            case PeerJoined(peer):
                self._linked[peer] = True
                self._joined_at = at if self._joined_at is None else self._joined_at
                report = Send(peer, CONTROL, self._state(), key="progress")
                return [report, *self._ask_again(at)]
            case TimerFired(timer) if timer == WAITING:
                again = self._ask_again(at)
                return [*self._report(), *again] if again else []
            case TimerFired(timer) if timer == LENDING:
                return self._lending.expire()
            case PeerLost(peer, reason):
                self._linked[peer] = False
                if self._copies is not None:
                    self._copies.lost(peer)
                seen = {"syncer": peer, "reason": reason, "step": self._step}
                return [Observe("syncer lost", seen)]
            case PeerRefused(peer, reason, again):
                status: Status = "left" if again else "bad-input"
                return self._finish(status, f"{peer} refuses this learner: {reason}")
            case WorkFailed(_, kind, reason):
                return self._finish("bad-input" if kind == "task" else "failed", reason)
            case StopRequested(reason):
                return self._stop(reason)
            case LeaveRequested(reason):
                self._leaving = True
                return [*self._stop(reason), SetTimer(LEAVING, at + LEAVE_S_MAX)]
            case TimerFired(timer) if timer == LEAVING and self._leaving:
                return self._leave()
            case Restored():
                self._stopping, self._leaving = None, False  # The stop belonged to an earlier run.
                return []
            case _:
                return []

    def _started(self, event: Started) -> list[Effect]:
        self._first = number_of(event.incarnation) == 1
        self._tells = event.tells
        plan = self._plan = self._job.plan(event.leaves)
        if event.copies:
            self._copies = HostCopies(plan, self._job.syncer_of)
        count = len(plan.fragments)
        self._versions, self._step_at, self._tokens_at = [-1] * count, [0] * count, [0] * count
        agreement = self._job.agreement(plan)
        return [
            *(self._recovery.bring(event.state) if event.state else ()),
            *(Dial(syncer, agreement) for syncer in self._syncers),
            Observe(
                "waiting", {"for": "the syncer's parameters", "fragments": len(plan.fragments)}
            ),
        ]

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        match event.body:
            case GlobalFragment():
                return self._receive(at, event.peer, event.body, event.handle)
            case Pull():
                return self._answer(event.peer, event.body)
            case Roster(_, floors):
                return [Retire(floors)]
            case StateWanted() if event.peer == self._lead:
                return self._lending.wanted(at, event.body)
            case Resume() | StatePiece() if event.peer == self._lead and not self._begun:
                return self._recover(at, event.body, event.handle)
            case Stop(_, reason) if event.peer == self._lead:
                return self._stop(reason)
            case _:
                return []

    # Global fragments: the newest version is kept until the next step boundary.

    def _receive(self, at: float, peer: str, said: GlobalFragment, handle: str) -> list[Effect]:
        fragment, version = said.fragment, said.version
        known = fragment < len(self._versions) and self._job.syncer_of(fragment) == peer
        if not known or not handle:
            return [Observe("refused", {"what": f"global fragment {fragment} of {peer}"})]
        if self._copies is not None:
            self._copies.see(peer, version, self._step)
        waiting = self._incoming.get(fragment)
        newest = self._newest(fragment)
        forgotten = self._compression.settle(said)
        forgotten += self._compression.forget(fragment) if said.instead else []
        if version < newest or (version == newest and (waiting or not said.instead)):
            known = self._compression.complete(said, self._versions[fragment], handle)
            return [*forgotten, *known]
        if said.form is UNSET:
            newer = Incoming(version, handle)
            return [*forgotten, Keep(handle), *self._take_in(at, fragment, newer)]
        decode = self._compression.decode(self._work.next(), said, handle, self._last(fragment))
        if decode is None:
            reason = f"version {version} is a difference to {said.base}, which is not here"
            seen = {"what": f"global fragment {fragment}", "reason": reason}
            return [*forgotten, Observe("refused", seen)]
        return [*forgotten, *decode]

    def _decoded(self, at: float, event: FragmentDecoded) -> list[Effect]:
        fragment, made, released = self._compression.decoded(event)
        if made.version <= self._newest(fragment):
            return [*released, Drop(made.handle)]
        return [*released, *self._take_in(at, fragment, made)]

    def _take_in(self, at: float, fragment: int, newer: Incoming) -> list[Effect]:
        """Have a version installed at the next step boundary, in place of one that waits."""
        waiting = self._incoming.get(fragment)
        self._incoming[fragment] = newer
        dropped: list[Effect] = [] if waiting is None else [Drop(waiting.handle)]
        return [*dropped, *self._begin(at)]

    def _last(self, fragment: int) -> Incoming | None:
        """The version that waits to be installed, or that the running step installs."""
        running = self._running.overwrites if self._running is not None else ()
        installing = (Incoming(o.version, o.handle) for o in running if o.fragment == fragment)
        return self._incoming.get(fragment) or next(installing, None)

    @property
    def _begun(self) -> bool:
        """Whether the first step, or the installation of a peer's state, has been started."""
        return self._step > 0 or self._running is not None or self._installing > 0

    def _begin(self, at: float) -> list[Effect]:
        """Start the first step once all parameters and the position in the data are known."""
        known = self._first or self._recovery.batches is not None
        if self._begun or not known or len(self._incoming) < len(self._versions):
            return []
        return [*self._recovery.drop(), *self._run(at)]

    # Recovery of a restarted learner from the state of a donor.

    def _recover(self, at: float, said: Resume | StatePiece, handle: str) -> list[Effect]:
        recovery = self._recovery
        if isinstance(said, Resume):
            effects = recovery.resume(said)
            if not said.donor and not recovery.own:
                # The syncer sends the global fragments that this report shows to be missing.
                return [*effects, *self._report(), *self._begin(at)]
        elif len(said.versions) != len(self._versions) or not all(v >= 0 for v in said.versions):
            return [Observe("refused", {"what": f"state of {said.who}, versions {said.versions}"})]
        else:
            effects = recovery.take(said, handle)
        if recovery.complete:
            self._installing = self._work.next()
            effects.append(InstallState(self._installing, recovery.handles()))
        return effects

    def _installed(self, at: float, *, sound: bool) -> list[Effect]:
        """Start training from the donor's state, with the newer global fragments received since."""
        recovery, self._installing = self._recovery, 0
        if not sound:
            refused = recovery.refused("it holds NaN or Inf")
            return [*refused, *recovery.give_up(), *self._begin(at), *self._ask_again(at)]
        effects: list[Effect] = []
        for fragment, incoming in list(self._incoming.items()):
            held = recovery.versions[fragment]
            if incoming.version <= held:
                del self._incoming[fragment]
                same = incoming.version == held
                effects += (
                    self._compression.install(fragment, held, incoming.handle)
                    if same
                    else [Drop(incoming.handle)]
                )
        self._versions = list(recovery.versions)
        effects += [Observe("state taken over", recovery.seen), *recovery.drop(), *self._run(at)]
        return effects + self._report()

    def _newest(self, fragment: int) -> int:
        """The newest version that is installed, pending, or installed by the running step."""
        waiting = self._incoming.get(fragment)
        known = [self._versions[fragment], waiting.version if waiting else -1]
        known.append(self._compression.under_way(fragment))
        if self._running is not None:
            known += [o.version for o in self._running.overwrites if o.fragment == fragment]
        return max(known)

    def _ask_again(self, at: float) -> list[Effect]:
        """Set the timer that repeats the progress report, unless the first step has started."""
        return [] if self._begun else [SetTimer(WAITING, at + WAITING_S)]

    # Steps.

    def _run(self, at: float) -> list[Effect]:
        """Start the next step with every newer fragment received so far, or stop if asked to."""
        if self._stopping is not None:
            return self._leave()
        overwrites = tuple(
            Overwrite(fragment, incoming.version, incoming.handle)
            for fragment, incoming in sorted(self._incoming.items())
        )
        self._incoming.clear()
        if self._step == 0 and self._joined_at is not None:
            self._spent = TimeSpent(parameters=at - self._joined_at)
        lent = self._lending.between_steps(self._step, tuple(self._versions))
        work = self._work.next()
        self._running = Running(work, at, overwrites)
        step = self._step + 1
        copies = self._copies
        to_copy = copies.between_steps(self._step, self._linked) if copies is not None else ()
        out = f"host/{step}" if copies is None else ""
        kept = [Keep(handle) for handle in (out, *(each.handle for each in to_copy)) if handle]
        skip, cursor = 0, b""
        if step == 1:
            skip, cursor = self._recovery.batches or 0, self._recovery.cursor
        t = max((*self._versions, *(each.version for each in overwrites))) if self._tells else 0
        run = RunStep(work, step, overwrites, out, skip, cursor, t, to_copy)
        return [*lent, *kept, run, *self._answer_waiting()]

    def _step_finished(self, at: float, event: StepFinished) -> list[Effect]:
        running, self._running = self._running, None
        assert running is not None, "a step finished that was not running"
        assert (event.work, event.step) == (running.work, self._step + 1), "steps are in order"
        effects: list[Effect] = []
        self._step, self._cursor = event.step, event.cursor
        took_s = at - running.since
        apart = event.data_s, event.compiling_s
        spent = of_step(event.step, took_s, *apart, self._step_s.value)
        self._spent += spent
        if event.step > 1:  # The first step includes compilation.
            self._step_s.add(took_s)
        for overwrite in running.overwrites:
            p = overwrite.fragment
            self._versions[p] = overwrite.version
            self._step_at[p], self._tokens_at[p] = event.step - 1, self._tokens
            effects += self._compression.install(p, overwrite.version, overwrite.handle)
        self._tokens += event.tokens
        if self._tells:
            self._brought = LastStep(event.loss, event.metrics)
        effects += self._release_host()
        if event.step == 1 and not math.isfinite(event.loss):
            reason = f"task {self._job.job.task}: loss is {event.loss} at the first step"
            return [*effects, *self._finish("bad-input", reason)]
        # The worker gets its next step before the last one is reported, so that it never idles.
        effects += self._run(at)
        if self._stopping is None:
            effects += self._report()
        observed = {"step": event.step, "loss": event.loss, "tokens": event.tokens}
        step_s = round(took_s, 6)
        metrics = {"metrics": event.metrics} if event.metrics else {}
        return [*effects, Observe("step", {**observed, "step_s": step_s, **metrics})]

    def _release_host(self) -> list[Effect]:
        """A step is done: release the host copies of the step before."""
        if self._copies is not None:
            return [Drop(handle) for handle in self._copies.release()]
        previous, self._host = self._host, f"host/{self._step}"
        return [Drop(previous)] if previous else []

    def _report(self) -> list[Effect]:
        """Send this learner's progress to every connected syncer."""
        said = self._state()
        linked = (syncer for syncer, there in self._linked.items() if there)
        return [Send(syncer, CONTROL, said, key="progress") for syncer in linked]

    def _state(self) -> Progress:
        return Progress(
            step=self._step,
            step_s=self._step_s.value or 0.0,
            versions=tuple(self._versions),
            steps=tuple([self._step - each for each in self._step_at]),
            tokens=tuple([self._tokens - each for each in self._tokens_at]),
            batches=(self._recovery.batches or 0) + self._step,
            cursor=self._cursor,
            last=self._brought,
            trained=self._tokens,
            spent=self._spent,
        )

    # Pulls are answered from host copies of the last finished step while the next step runs.

    def _answer(self, peer: str, pull: Pull) -> list[Effect]:
        p = pull.fragment
        if p >= len(self._versions) or len(self._answers) >= ANSWERS_MAX:
            return [Observe("refused", {"what": f"pull of fragment {pull.fragment}"})]
        steps = self._step - self._step_at[p]
        if self._copies is not None:
            self._copies.see(peer, pull.t, self._step)
        if self._step == 0 or steps == 0:
            return []  # Nothing trained yet; the syncer's deadline passes without this learner.
        source = self._host_copy(peer, pull)
        if not source:
            return []
        work = self._work.next()
        out = f"out/{work}"
        body = Contribution(
            t=pull.t,
            fragment=pull.fragment,
            base=self._versions[p],
            step=self._step,
            steps=steps,
            tokens=self._tokens - self._tokens_at[p],
        )
        encode, needed = EncodeFragment(work, p, source, out), []
        compressed = None
        if pull.whole is UNSET:
            compressed = self._compression.encode(work, body, source, out)
        if compressed is not None:
            encode, needed = compressed
            body = replace(body, form=self._job.compress.up)
        self._answers[work] = Answer(peer, body, source, out)
        return [Keep(source), Keep(out), *needed, encode]

    def _host_copy(self, peer: str, pull: Pull) -> str:
        """The handle of the host copy that answers a pull; empty if the pull must wait for one."""
        if self._copies is None:
            return self._host
        handle = self._copies.of(pull.fragment)
        if not handle:
            self._copies.wait(peer, pull)
        return handle

    def _answer_waiting(self) -> list[Effect]:
        """Answer the pulls that came when their fragments had no host copy."""
        waiting = self._copies.answerable() if self._copies is not None else []
        return [effect for peer, pull in waiting for effect in self._answer(peer, pull)]

    def _encoded(self, event: FragmentEncoded) -> list[Effect]:
        answer = self._answers.pop(event.work)
        key = f"contribution/{answer.body.fragment}"
        send = Send(answer.peer, BULK, answer.body, answer.out, key)
        released = [Drop(answer.source), Drop(answer.out)]
        return [send, *released, *self._compression.encoded(event.work)]

    @property
    def drawn(self) -> int:
        """Number of batches that the worker will have drawn once the running step is done.

        The first step skips the batches of earlier incarnations, so they count from then on.
        """
        steps, _ = self.stands
        return (self._recovery.batches or 0) + steps if steps else 0

    @property
    def stands(self) -> tuple[int, tuple[int, ...]]:
        """The step count, and the version of each fragment, once the running step is done."""
        running = self._running
        new = {each.fragment: each.version for each in running.overwrites} if running else {}
        held = (new.get(fragment, version) for fragment, version in enumerate(self._versions))
        return self._step + (running is not None), tuple(held)

    # Stopping.

    def _stop(self, reason: str) -> list[Effect]:
        self._stopping = self._stopping or reason
        return [] if self._running is not None else self._leave()

    def _leave(self) -> list[Effect]:
        status: Status = "left" if self._leaving else "done"
        return self._finish(status, self._stopping or "done")

    def _finish(self, status: Status, reason: str) -> list[Effect]:
        self._linked = dict.fromkeys(self._syncers, False)
        return [*(Hangup(syncer, reason) for syncer in self._syncers), Finish(status, reason)]
