"""The learner machine (paper: Algorithm 1). It waits only for its first parameters; after that it
requests the next ``RunStep`` while handling its own ``StepFinished``, and answers pulls from host
copies. Only with ``sync.blocking`` it waits; see ``lockstep``."""

import math
from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from clocks import actor_of, number_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Started, WorkerBusy
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import (
    TOGETHER_MAX,
    Contribution,
    DataShards,
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
from ddloco.job.protocol.timers import STOP_S_MAX, CopyUnused, LeaveDeadline, RelayLook, ReportDue
from ddloco.job.protocol.work import (
    EncodeFragment,
    FragmentDecoded,
    FragmentEncoded,
    InstallState,
    Overwrite,
    PieceEncoded,
    RunStep,
    StateCopied,
    StateInstalled,
    StepFinished,
)
from ddloco.machines.clients import after_step
from ddloco.machines.learner.compression import LearnerCompression
from ddloco.machines.learner.data_turns import DataTurns
from ddloco.machines.learner.host_copies import HostCopies, host_copies
from ddloco.machines.learner.late_steps import Contributed, LateSteps
from ddloco.machines.learner.lockstep import Lockstep, Stand
from ddloco.machines.learner.state_donor import StateDonor
from ddloco.machines.learner.state_recovery import StateRecovery
from ddloco.machines.syncer.estimates import Recent
from ddloco.machines.syncer.shards import REPORT_S
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.actor import OwnMachine
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

SPAN_SHARE = 8
"""Of the steps between two versions of a fragment, at most one in so many is taken together."""

WAITING_S = 5.0
"""Seconds between progress messages while a learner waits for its first parameters, or between two
steps for a version. It sends nothing else then, so without them it would not notice that the syncer
has closed the link."""


LEAVE_S_MAX = 1.5
"""Seconds that a learner waits for the running step when its process must exit. The process exits
at most five seconds later, which is before any container engine kills it."""


class Answer(Struct, forbid_unknown_fields=True):
    """A pull that is being answered, with the counters of the host copy that is encoded. The
    payload goes to ``relay``, if there is one."""

    peer: str
    body: Contribution
    source: str
    out: str
    relay: str = ""


class Running(Struct, forbid_unknown_fields=True):
    """The steps that are running, ``count`` of them: their work number, their start in seconds, and
    their overwrites; by fragment, the contributions from which they carry over steps; and the
    handle of the copy of all parameters after them, if there is one."""

    work: int
    since: float
    overwrites: tuple[Overwrite, ...] = ()
    carries: dict[int, Contributed] = {}
    out: str = ""
    count: int = 1


class Learner(OwnMachine):
    """The state machine of one learner.

    Attributes:
        versions: for each fragment, the installed version; -1 before the first.
        step_at: for each fragment, the step at which that version was installed. Progress since
            then is a difference, so a step updates no counter per fragment.
        tokens_at: for each fragment, the token count at which that version was installed.
        joined_at: when it was first linked to a syncer, in seconds; from then on its time counts.
        incoming: the global fragments that will be installed at the next step boundary.
        corrupt: how many of its steps had two results when they were run twice.
        not_finite: whether it has said that a number of a result was not finite.
        empty: how many of its batches had no tokens.
        busy: the call in which its worker has been for long, and for how long then.
        cursor: the position of its data stream after that.
        linked: the syncers, each with whether it is linked; the first one leads. Empty before the
            start.
        relayed: whether that is linked.
        leaving: it stops because its process must exit, and will be started again.
        first: this is the actor's first incarnation, so that no batch of its shard is used.
        installing: the work number of the installation of that state; 0 if there is none.
        brought: what its last step brought, if it tells.
        together: how many steps the worker was asked for at once, the last time.
        span: how many steps there were between the version of a fragment that was installed last
            and the one before.
    """

    job: Job
    work: WorkNumbers = field(default_factory=WorkNumbers)
    plan: FragmentPlan | None = None
    versions: list[int] = []
    step_at: list[int] = []
    tokens_at: list[int] = []
    tokens: int = 0
    spent: TimeSpent = TimeSpent()
    joined_at: float | None = None
    incoming: dict[int, Overwrite] = {}
    compression: LearnerCompression = field(default_factory=LearnerCompression)
    answers: dict[int, Answer] = {}
    running: Running | None = None
    step: int = 0
    corrupt: int = 0
    not_finite: bool = False
    empty: int = 0
    busy: str = ""
    cursor: bytes = b""
    counters: tuple[int, ...] = ()
    step_s: Recent = field(default_factory=Recent)
    host: str = ""
    copies: HostCopies | None = None
    lockstep: Lockstep | None = None
    late: LateSteps = field(default_factory=LateSteps)
    linked: dict[str, bool] = {}
    relay: str = ""
    relayed: bool = False
    stopping: str | None = None
    leaving: bool = False
    first: bool = True
    name: str = ""
    data: DataTurns = field(default_factory=DataTurns)
    recovery: StateRecovery = field(default_factory=StateRecovery)
    installing: int = 0
    lending: StateDonor = field(default_factory=StateDonor)
    tells: bool = False
    brought: LastStep | None = None
    together: int = 1
    span: int = 0

    @property
    def lead(self) -> str:
        return self.job.syncer_names()[0]

    def status(self, at: float) -> LearnerStatus:
        running = self.running
        return LearnerStatus(
            step=self.step,
            step_s=self.step_s.value,
            running_s=at - running.since if running is not None else None,
            versions=tuple(self.versions),
            incoming={str(p): each.version for p, each in sorted(self.incoming.items())},
            linked=tuple(name for name, linked in self.linked.items() if linked),
            stopping=self.stopping or "",
        )

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Handle one event; types of events that a learner does not know are ignored."""
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
                return self.lending.copied(at, event, self.lead, self.work)
            case PieceEncoded():
                return self.lending.encoded(event, self.lead)
            case StateInstalled():
                return self._installed(at, sound=event.sound)
            case PeerJoined(peer) | PeerLost(peer) if peer == self.relay:
                return self._relay_linked(at, event)
            case TimerFired(RelayLook()):
                return self._look_at_relay(at)
            case PeerJoined(peer):
                self.linked[peer] = True
                self.joined_at = at if self.joined_at is None else self.joined_at
                report = Send(peer, CONTROL, self._state(), key="progress")
                return [report, *self._ask_again(at)]
            case TimerFired(ReportDue()):
                again = self._ask_again(at)
                return [*self._report(), *again] if again else []
            case TimerFired(CopyUnused()):
                return self.lending.expire()
            case PeerLost(peer, reason):
                return self._syncer_lost(peer, reason)
            case PeerRefused(peer, reason, again):
                status: Status = "left" if again else "bad-input"
                return self._finish(status, f"{peer} refuses this learner: {reason}")
            case WorkFailed() | WorkerBusy():
                return self._worker_told(event)
            case StopRequested(reason):
                return self._stop(at, reason)
            case LeaveRequested(reason):
                self.leaving = True
                return self._stop(at, reason)
            case TimerFired(LeaveDeadline()) if self.stopping is not None:
                return self._leave()
            case Restored():
                return self._restored(at)
            case _:
                return []

    def _worker_told(self, event: WorkFailed | WorkerBusy) -> list[Effect]:
        """Handle what its worker cannot do, or has been doing for long."""
        match event:
            case WorkerBusy():
                self.busy = event.words
                return [*self._report(), event.observed()]
            case WorkFailed(kind="task", reason=reason):
                return self._finish("bad-input", reason)
            case WorkFailed(reason=reason):
                return self._finish("failed", f"{reason}, at batch {self.drawn}", again=True)

    def _restored(self, at: float) -> list[Effect]:
        self.stopping, self.leaving = None, False  # The stop belonged to an earlier run.
        if self.lockstep is not None and self._waits:
            self.lockstep.waits_since = at
        former, self.relay = self.relay, self.job.relay_of(self.name)
        if former == self.relay or self.plan is None:
            return []
        self.relayed = False
        agreement = self.job.agreement(self.plan)
        left = [Hangup(former, "this run has other relays")] if former else []
        return [*left, *([Dial(self.relay, agreement)] if self.relay else [])]

    def _syncer_lost(self, peer: str, reason: str) -> list[Effect]:
        self.linked[peer] = False
        if self.copies is not None:
            self.copies.lost(peer)
        return [Observe("syncer lost", {"syncer": peer, "reason": reason, "step": self.step})]

    def _relay_linked(self, at: float, event: PeerJoined | PeerLost) -> list[Effect]:
        self.relayed = isinstance(event, PeerJoined)
        if isinstance(event, PeerLost):
            return [Observe("relay lost", {"relay": event.peer, "reason": event.reason})]
        number = number_of(event.incarnation)
        retired = [Retire({event.peer: number})] if number > 1 else []
        return [*retired, SetTimer(RelayLook(), at + REPORT_S)]

    def _look_at_relay(self, at: float) -> list[Effect]:
        """Send the relay a sign of life: without one it would not be noticed that it was restarted,
        because the side that dials detects a lost peer only when it sends."""
        if not self.relayed:
            return []
        sign = Send(self.relay, CONTROL, self._state(), key="progress")
        return [sign, SetTimer(RelayLook(), at + REPORT_S)]

    def _started(self, event: Started) -> list[Effect]:
        self.first = number_of(event.incarnation) == 1
        self.tells = event.tells
        plan = self.plan = self.job.plan(event.leaves)
        self.name = actor_of(event.incarnation)
        if self.job.sync.blocking:
            self.lockstep = Lockstep()
        elif event.copies:
            self.copies = host_copies(plan, self.job.syncer_of)
        count = len(plan.fragments)
        self.versions, self.step_at, self.tokens_at = [-1] * count, [0] * count, [0] * count
        agreement, syncers = self.job.agreement(plan), self.job.syncer_names()
        self.linked = dict.fromkeys(syncers, False)
        self.relay = self.job.relay_of(self.name)
        return [
            *(self.recovery.bring(event.state) if event.state else ()),
            *(Dial(other, agreement) for other in (*syncers, self.relay) if other),
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
            case StateWanted() if event.peer == self.lead:
                return [*self.lending.wanted(at, event.body, self.work), *self._lend_waiting()]
            case Resume() | StatePiece() if event.peer == self.lead and not self._begun:
                return self._recover(at, event.body, event.handle)
            case DataShards() if event.peer == self.lead and self._shares_data:
                self.data.hear(event.body)
                return [*self._install(), *self._begin(at)]
            case Stop(_, reason) if event.peer == self.lead:
                return self._stop(at, reason)
            case _:
                return []

    # Global fragments: the newest version is kept until the next step boundary.

    def _receive(self, at: float, peer: str, said: GlobalFragment, handle: str) -> list[Effect]:
        fragment, version = said.fragment, said.version
        syncer = self.job.syncer_of(fragment) if fragment < len(self.versions) else ""
        if not syncer or peer not in {syncer, self.relay} or not handle:
            return [Observe("refused", {"what": f"global fragment {fragment} of {peer}"})]
        if self.copies is not None:
            self.copies.see(syncer, version, self.step)
        waiting = self.incoming.get(fragment)
        newest = self._newest(fragment)
        forgotten = self.compression.settle(said)
        if said.instead:
            forgotten += [*self.compression.forget(fragment), *self.late.forget(fragment)]
            if self.lockstep is not None:
                forgotten += [Drop(handle) for handle in self.lockstep.start_over()]
        if version < newest or (version == newest and (waiting or not said.instead)):
            installed, settings = self.versions[fragment], self.job.compress
            known = self.compression.complete(said, installed, handle, settings)
            return [*forgotten, *known]
        if said.form is UNSET:
            newer = Overwrite(fragment, version, handle, self._mixing(instead=said.instead))
            return [*forgotten, Keep(handle), *self._take_in(at, newer)]
        work, last = self.work.next(), self._last(fragment)
        decode = self.compression.decode(work, said, handle, last, self.job.compress)
        if decode is None:
            reason = f"version {version} is a difference to {said.base}, which is not here"
            seen = {"what": f"global fragment {fragment}", "reason": reason}
            return [*forgotten, Observe("refused", seen)]
        return [*forgotten, *decode]

    def _decoded(self, at: float, event: FragmentDecoded) -> list[Effect]:
        made, released = self.compression.decoded(event)
        if made.version <= self._newest(made.fragment):
            return [*released, Drop(made.handle)]
        return [*released, *self._take_in(at, replace(made, mixing=self._mixing()))]

    def _mixing(self, *, instead: bool = False) -> float:
        """How much of its own parameters stays when a version is installed."""
        sync = self.job.sync
        return sync.mixing if sync.late == "blend" and self.step and not instead else 0.0

    def _take_in(self, at: float, newer: Overwrite) -> list[Effect]:
        waiting = self.incoming.get(newer.fragment)
        self.incoming[newer.fragment] = newer
        dropped: list[Effect] = [] if waiting is None else [Drop(waiting.handle)]
        resumed = self._go_on(at) if self._waits else self._begin(at)
        return [*dropped, *resumed]

    @property
    def _waits(self) -> bool:
        return self.lockstep is not None and self.lockstep.waits_since is not None

    def _last(self, fragment: int) -> Overwrite | None:
        """The version that waits to be installed, or that the running step installs."""
        running = self.running.overwrites if self.running is not None else ()
        installing = (each for each in running if each.fragment == fragment)
        return self.incoming.get(fragment) or next(installing, None)

    @property
    def standing(self) -> str:
        if self._waits:
            return "newer parameters of the syncer"
        return "" if self._begun else "the syncer's parameters"

    @property
    def _begun(self) -> bool:
        """Whether the first step, or the installation of a peer's state, has been started."""
        return self.step > 0 or self.running is not None or self.installing > 0

    @property
    def _shares_data(self) -> bool:
        return self.job.job.shards is not None

    @property
    def _has_data(self) -> bool:
        return self.data.known or not self._shares_data

    def _begin(self, at: float) -> list[Effect]:
        """Start the first step once all parameters and the position in the data are known."""
        known = self.first or self.recovery.batches is not None
        known = known and self._has_data
        if self._begun or not known or len(self.incoming) < len(self.versions):
            return []
        return [*self.recovery.drop(), *self._go_on(at)]

    # Recovery of a restarted learner from the state of a donor.

    def _recover(self, at: float, said: Resume | StatePiece, handle: str) -> list[Effect]:
        recovery = self.recovery
        if isinstance(said, Resume):
            before = recovery.batches
            effects = recovery.resume(said, self.lead)
            if not said.donor and not recovery.own:
                if said.batches and said.batches != before:
                    effects.append(Observe("state lost", {"batches": said.batches}))
                # The syncer sends the global fragments that this report shows to be missing.
                return [*effects, *self._report(), *self._begin(at)]
        elif len(said.versions) != len(self.versions) or not all(v >= 0 for v in said.versions):
            return [Observe("refused", {"what": f"state of {said.who}, versions {said.versions}"})]
        else:
            effects = recovery.take(said, handle, self.lead)
        return [*effects, *self._install()]

    def _install(self) -> list[Effect]:
        if self._begun or not self.recovery.complete or not self._has_data:
            return []
        self.installing = self.work.next()
        return [InstallState(self.installing, self.recovery.handles())]

    def _installed(self, at: float, *, sound: bool) -> list[Effect]:
        """Start training from the donor's state, with the newer global fragments received since."""
        recovery, self.installing = self.recovery, 0
        if not sound:
            refused = recovery.refused("it holds NaN or Inf", self.lead)
            return [*refused, *recovery.give_up(), *self._begin(at), *self._ask_again(at)]
        effects: list[Effect] = []
        for fragment, incoming in list(self.incoming.items()):
            held = recovery.versions[fragment]
            if incoming.version <= held:
                del self.incoming[fragment]
                same = incoming.version == held
                effects += (
                    self.compression.install(fragment, held, incoming.handle, self.job.compress)
                    if same
                    else [Drop(incoming.handle)]
                )
        self.versions = list(recovery.versions)
        effects += [Observe("state taken over", recovery.seen), *recovery.drop(), *self._go_on(at)]
        return effects + self._report()

    def _newest(self, fragment: int) -> int:
        """The newest version that is installed, pending, or installed by the running step."""
        waiting = self.incoming.get(fragment)
        known = [self.versions[fragment], waiting.version if waiting else -1]
        known.append(self.compression.under_way(fragment))
        if self.running is not None:
            known += [o.version for o in self.running.overwrites if o.fragment == fragment]
        return max(known)

    def _ask_again(self, at: float) -> list[Effect]:
        """Set the timer that repeats the progress report, unless it trains."""
        return [] if self._begun and not self._waits else [SetTimer(ReportDue(), at + WAITING_S)]

    # Steps.

    def _go_on(self, at: float) -> list[Effect]:
        lockstep, plan = self.lockstep, self.plan
        if lockstep is None or plan is None or self.stopping is not None:
            return self._run(at)
        there = {each.fragment: each.version for each in self.incoming.values()}
        newest = [max(held, there.get(p, -1)) for p, held in enumerate(self.versions)]
        if lockstep.must_wait(self.job, plan, self.name, newest):
            if lockstep.waits_since is not None:
                return []
            lockstep.waits_since = at
            return [*self._lend_waiting(), *self._ask_again(at)]
        since, lockstep.waits_since = lockstep.waits_since, None
        self.spent += TimeSpent(versions=at - since if since is not None else 0.0)
        return self._run(at)

    def _lend_waiting(self) -> list[Effect]:
        """While it waits, it is between two steps: its state can be copied for others."""
        if not self._waits:
            return []
        return self.lending.between_steps(self.step, tuple(self.versions), self.work)

    def _run(self, at: float) -> list[Effect]:
        if self.stopping is not None:
            return self._leave()
        overwrites, carries = self._carrying(self._due_now())
        if self.step == 0 and self.joined_at is not None:
            self.spent = TimeSpent(parameters=at - self.joined_at)
        lent = self.lending.between_steps(self.step, tuple(self.versions), self.work)
        work = self.work.next()
        step, count = self.step + 1, self._count()
        copies, to_copy = self.copies, ()
        if copies is not None and self.plan is not None:
            to_copy = copies.between_steps(self.step, self.linked, self.plan, count)
        out = f"host/{self.step + count}" if self._copies_all(overwrites) else ""
        self.running = Running(work, at, overwrites, carries, out, count)
        self.together = count
        kept = [Keep(handle) for handle in (out, *(each.handle for each in to_copy)) if handle]
        data = self.data.take_turn() if self._shares_data else None
        skip, cursor = 0, b""
        if data is not None and data.opens:
            skip, cursor = self.data.skip
        elif data is None and step == 1:
            skip, cursor = self.recovery.batches or 0, self.recovery.cursor
        t = max((*self.versions, *(each.version for each in overwrites))) if self.tells else 0
        run = RunStep(work, step, overwrites, out, skip, cursor, t, to_copy, data, count)
        return [*lent, *kept, run, *self._answer_waiting()]

    def _count(self) -> int:
        """How many steps the worker is asked for at once: as many as fit ``worker.together_s``, at
        most twice as many as the last time, and few of those between two versions of a fragment,
        because a version overwrites what is trained from the copy until it is installed."""
        job, step_s = self.job, self.step_s.value
        if step_s is None or self.lockstep is not None or self._shares_data:
            return 1
        span = max(self.span, self.step - min(self.step_at))
        most = min(2 * self.together, span // SPAN_SHARE, TOGETHER_MAX)
        every = job.worker.check_every
        if every:  # The first of them is the one that is run twice.
            most = min(most, every - (self.step + 1) % every)
        fitting = job.worker.together_s / step_s if step_s else math.inf
        return max(int(min(fitting, most)), 1)

    def _due_now(self) -> list[Overwrite]:
        """Take the versions that are installed before the next step."""
        lockstep, overlap = self.lockstep, self.job.sync.overlap
        due = [
            each
            for _, each in sorted(self.incoming.items())
            if lockstep is None or lockstep.installs(each.version, overlap)
        ]
        for each in due:
            del self.incoming[each.fragment]
        return due

    def _carrying(
        self, overwrites: list[Overwrite]
    ) -> tuple[tuple[Overwrite, ...], dict[int, Contributed]]:
        """Return the overwrites, some with the copy from which they carry over steps, and those
        contributions."""
        carries = {each.fragment: self.late.carry(each) for each in overwrites}
        found = {p: given for p, given in carries.items() if given is not None}
        done = (
            replace(each, since=found[each.fragment].handle) if each.fragment in found else each
            for each in overwrites
        )
        return tuple(done), found

    def _copies_all(self, overwrites: tuple[Overwrite, ...]) -> bool:
        """Whether all parameters are copied after the next step, which installs these versions."""
        lockstep = self.lockstep
        if lockstep is None or self.plan is None:
            return self.copies is None
        lockstep.begin_step([*self.versions, *(each.version for each in overwrites)])
        after = after_step(self.job, self.name, lockstep.position)
        return lockstep.copies(self.job, self.plan, after)

    def _step_finished(self, at: float, event: StepFinished) -> list[Effect]:
        running, self.running = self.running, None
        assert running is not None, "a step finished that was not running"
        before, count = self.step, running.count
        assert (event.work, event.step) == (running.work, before + count), "steps are in order"
        effects: list[Effect] = []
        self.step, self.cursor, self.busy = event.step, event.cursor, ""
        self.counters = event.counters
        if self._shares_data:
            self.data.drew(event.cursor)
        took_s = at - running.since
        apart = event.data_s, event.compiling_s
        usual_s = self.step_s.value
        usual_s = count * usual_s if usual_s is not None else None
        self.spent += of_step(event.step, took_s, *apart, usual_s)
        if event.step > 1:  # The first step includes compilation.
            self.step_s.add(took_s / count)
        for overwrite in running.overwrites:
            p = overwrite.fragment
            self.versions[p] = overwrite.version
            since = running.carries.get(p)
            self.span = before - self.step_at[p]
            self.step_at[p], self.tokens_at[p] = before, self.tokens
            if since is not None:
                self.step_at[p], self.tokens_at[p] = since.step, since.tokens
                effects.append(Drop(since.handle))
            effects += self.late.outdated(overwrite)
            installed, settings = overwrite.version, self.job.compress
            effects += self.compression.install(p, installed, overwrite.handle, settings)
        tokens = sum(each.tokens for _, each in event.steps())
        self.tokens += tokens
        effects += self._count_empty(event)
        effects += self._look_for_nan(event)
        self.corrupt += bool(event.corrupt)
        if self.tells:
            brought = LastStep(event.loss, event.metrics, event.shapes)
            self.brought = brought.after(self.brought)
        effects += self._release_host(running.out)
        if event.step == 1 and not math.isfinite(event.loss):
            reason = f"task {self.job.job.task}: loss is {event.loss} at the first step"
            return [*effects, *self._finish("bad-input", reason)]
        # The worker gets its next step before the last one is reported, so that it never idles.
        effects += self._go_on(at)
        if self.stopping is None:
            effects += self._report()
        observed = {"step": event.step, "loss": event.loss, "tokens": tokens}
        if count > 1:
            observed["together"] = count
        if event.corrupt:
            effects.append(Observe("silent corruption", {"step": before + 1, "in": event.corrupt}))
        step_s = round(took_s / count, 6)
        metrics = {"metrics": event.metrics} if event.metrics else {}
        return [*effects, Observe("step", {**observed, "step_s": step_s, **metrics})]

    def _count_empty(self, event: StepFinished) -> list[Effect]:
        """Count the batches that had no tokens, so that their steps have no weight; said when it is
        the first, and when they are twice as many as were said."""
        empty = sum(not each.tokens for _, each in event.steps())
        before, self.empty = self.empty, self.empty + empty
        if self.empty.bit_length() == before.bit_length():
            return []
        return [Observe("no tokens", {"step": event.step, "batches": self.empty})]

    def _look_for_nan(self, event: StepFinished) -> list[Effect]:
        """Say once of this incarnation that a loss, or a state, has a number that is not finite."""
        wrong = [step for step, each in event.steps() if not math.isfinite(each.loss)]
        if self.not_finite or not (wrong or event.nan):
            return []
        self.not_finite = True
        what = "its loss" if wrong else ", ".join(event.nan)
        return [Observe("not finite", {"step": [*wrong, event.step][0], "what": what})]

    def _release_host(self, out: str) -> list[Effect]:
        """A step is done: release the host copies of the step before."""
        if self.copies is not None:
            return [Drop(handle) for handle in self.copies.release()]
        lockstep, plan = self.lockstep, self.plan
        if lockstep is not None and plan is not None:
            after = after_step(self.job, self.name, lockstep.position)
            useless = lockstep.finish(after, Stand(out, self.step, self.tokens))
            return [Drop(h) for h in (*useless, *lockstep.release(self.versions, plan))]
        previous, self.host = self.host, out
        return [Drop(previous)] if previous else []

    def _report(self) -> list[Effect]:
        said = self._state()
        linked = (syncer for syncer, there in self.linked.items() if there)
        return [Send(syncer, CONTROL, said, key="progress") for syncer in linked]

    def _state(self) -> Progress:
        return Progress(
            step=self.step,
            step_s=self.step_s.value or 0.0,
            versions=tuple(self.versions),
            steps=tuple([self.step - each for each in self.step_at]),
            tokens=tuple([self.tokens - each for each in self.tokens_at]),
            batches=(self.recovery.batches or 0) + self.step,
            cursor=self.cursor,
            last=self.brought,
            trained=self.tokens,
            spent=self.spent,
            follows=self.data.follows,
            drawing=self.data.drawing(),
            returned=self.data.given_back(),
            corrupt=self.corrupt,
            together=self.together,
            busy=self.busy,
            counters=self.counters,
            position=max(self.lockstep.position, 0) if self.lockstep is not None else 0,
        )

    # Pulls are answered from host copies of the last finished step while the next step runs.

    def _answer(self, peer: str, pull: Pull) -> list[Effect]:
        p = pull.fragment
        if p >= len(self.versions) or len(self.answers) >= ANSWERS_MAX:
            return [Observe("refused", {"what": f"pull of fragment {pull.fragment}"})]
        if self.copies is not None:
            self.copies.see(peer, pull.t, self.step)
        copied = self._copied(peer, pull)
        if copied is None:
            return []
        source, step, tokens = copied.handle, copied.step, copied.tokens
        if step <= self.step_at[p]:
            return []  # Nothing trained yet; the syncer's deadline passes without this learner.
        work = self.work.next()
        out = f"out/{work}"
        body = Contribution(
            t=pull.t,
            fragment=pull.fragment,
            base=self.versions[p],
            step=step,
            steps=step - self.step_at[p],
            tokens=tokens - self.tokens_at[p],
        )
        encode, needed = EncodeFragment(work, p, source, out), []
        compressed = None
        if pull.whole is UNSET:
            settings = self.job.compress
            compressed = self.compression.encode(
                work, body, source=source, out=out, settings=settings
            )
        if compressed is not None:
            encode, needed = compressed
            body = replace(body, form=self.job.compress.up)
        relay = self.relay if self.relayed and pull.relay == self.relay else ""
        if relay:
            body = replace(body, relay=relay)
        self.answers[work] = Answer(peer, body, source, out, relay)
        if self.job.sync.late == "carry":
            needed = [*self.late.contribute(p, Contributed(pull.t, source, step, tokens)), *needed]
        return [Keep(source), Keep(out), *needed, encode]

    def _copied(self, peer: str, pull: Pull) -> Stand | None:
        """The host copy that answers a pull; None if there is none, or the pull waits for one."""
        if self.lockstep is not None:
            return self.lockstep.at(pull.t, self.job.job.last_step)
        handle = self.host if self.copies is None else self.copies.of(pull.fragment)
        nothing = self.step <= self.step_at[pull.fragment]
        if not handle and not nothing and self.copies is not None:
            self.copies.wait(peer, pull)
        return Stand(handle, self.step, self.tokens) if handle else None

    def _answer_waiting(self) -> list[Effect]:
        waiting = self.copies.answerable() if self.copies is not None else []
        return [effect for peer, pull in waiting for effect in self._answer(peer, pull)]

    def _encoded(self, event: FragmentEncoded) -> list[Effect]:
        answer = self.answers.pop(event.work)
        key = f"contribution/{answer.body.fragment}"
        sends: list[Effect] = [
            Send(answer.relay or answer.peer, BULK, answer.body, answer.out, key)
        ]
        if answer.relay:
            sends.append(Send(answer.peer, BULK, answer.body, key=key))
        released = [Drop(answer.source), Drop(answer.out)]
        return [*sends, *released, *self.compression.encoded(event.work)]

    @property
    def drawn(self) -> int:
        """Number of batches that the worker will have drawn once the running step is done. The
        first step skips the batches of earlier incarnations, so they count from then on."""
        steps, _ = self.stands
        return (self.recovery.batches or 0) + steps if steps else 0

    @property
    def stands(self) -> tuple[int, tuple[int, ...]]:
        """The step count, and the version of each fragment, once the running step is done."""
        running = self.running
        new = {each.fragment: each.version for each in running.overwrites} if running else {}
        held = (new.get(fragment, version) for fragment, version in enumerate(self.versions))
        return self.step + (running.count if running else 0), tuple(held)

    # Stopping.

    def _stop(self, at: float, reason: str) -> list[Effect]:
        """Stop after the running step, or in the midst of it if that takes too long: nobody needs
        what it brings."""
        self.stopping = self.stopping or reason
        if self.running is None:
            return self._leave()
        wait_s = LEAVE_S_MAX if self.leaving else STOP_S_MAX
        return [SetTimer(LeaveDeadline(), at + wait_s)]

    def _leave(self) -> list[Effect]:
        status: Status = "left" if self.leaving else "done"
        # Whoever draws from its data shards next begins where it has ended.
        last = self._report() if self._shares_data else []
        return [*last, *self._finish(status, self.stopping or "done")]

    def _finish(self, status: Status, reason: str, *, again: bool = False) -> list[Effect]:
        syncers = self.job.syncer_names()
        self.linked = dict.fromkeys(syncers, False)
        others = (other for other in (*syncers, self.relay) if other)
        return [*(Hangup(other, reason) for other in others), Finish(status, reason, again)]
