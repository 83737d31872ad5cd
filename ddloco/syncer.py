"""The syncer machine (paper: Algorithm 2).

It owns the global fragments. For every global step at which a fragment is due it waits for a quorum
and a grace window, pulls the fragment from those who have something new, merges what arrives before
the deadline, and tells everybody the result. Several syncs are under way at once, each of another
fragment. Whoever is slow or dead is simply not among them.
"""

from typing import Any

from ddloco.config import Job
from ddloco.effects import (
    Evaluate,
    Finish,
    MakeParameters,
    MergeFragment,
    Observe,
    SaveModel,
    Share,
    Status,
)
from ddloco.events import (
    Evaluated,
    FragmentMerged,
    ModelSaved,
    ParametersMade,
    Started,
    StopRequested,
    WorkFailed,
)
from ddloco.fragments import FragmentPlan
from ddloco.members import Member
from ddloco.merging import merge_weight
from ddloco.messages import Contribution, GlobalFragment, Progress, Pull, Stop
from ddloco.pacing import Pacing, Waiting
from ddloco.syncs import Global, Part, Sync
from transport import (
    BULK,
    CONTROL,
    CancelTimer,
    Drop,
    Effect,
    Event,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Send,
    SetTimer,
    TimerFired,
)

FAREWELL_STEPS = 10
FAREWELL_S_MIN = 3.0
FAREWELL_S_MAX = 60.0
"""How long the syncer waits at the end for learners to finish their step and say goodbye: ten
steps of the median learner, within these bounds; whoever is later is left behind."""

LAUNCH = "launch"
FAREWELL = "farewell"


class Syncer:
    """One syncer's decisions.

    Args:
        job: the resolved job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plan: FragmentPlan | None = None
        self._globals: list[Global] = []
        self._members: dict[str, Member] = {}
        self._contributed: dict[str, list[int]] = {}
        self._pacing = Pacing(job.sync)
        self._t = 0
        self._again: list[int] = []
        self._waiting: Waiting | None = None
        self._look_at: float | None = None
        self._syncs: dict[int, Sync] = {}
        self._work = 0
        self._merges = 0
        self._stopping: tuple[Status, str] | None = None
        self._winding_up = False
        self._ready = False
        self._patient = True
        self._evaluating = 0
        self._evaluated = False
        self._saved = False

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event; see the module for what a syncer does."""
        effects = self._take(at, event)
        return effects + self._advance(at)

    def _take(self, at: float, event: Event) -> list[Effect]:
        match event:
            case Started():
                self._plan = self._job.plan(event.leaves)
                return [*self._keep_initial(), MakeParameters(self._next_work())]
            case ParametersMade():
                return self._parameters_made()
            case MessageArrived():
                return self._message(event)
            case FragmentMerged():
                return self._merged(at, event)
            case PeerJoined(peer, incarnation):
                self._members[peer] = self._member(peer, incarnation)
                stop = [self._stop(peer)] if self._winding_up else []
                return [Observe("joined", {"learner": incarnation}), *stop]
            case PeerLost(peer, reason):
                return self._lost(peer, reason)
            case TimerFired(timer):
                return self._timer(timer)
            case Evaluated(_, loss):
                return self._result(loss)
            case ModelSaved():
                self._saved = True
                return []
            case WorkFailed():
                return self._work_failed(event)
            case StopRequested(reason):
                if not self._winding_up:
                    self._stopping = self._stopping or ("stopped", reason)
                    self._waiting = None  # Its quorum may never come.
                return []
            case _:
                return []

    # Beginning.

    def _keep_initial(self) -> list[Effect]:
        assert self._plan is not None
        for p in range(len(self._plan.fragments)):
            self._globals.append(Global(0, f"theta/{p}/0", "", f"wire/{p}/0"))
        return [Keep(h) for each in self._globals for h in (each.theta, each.wire)]

    def _parameters_made(self) -> list[Effect]:
        assert self._plan is not None
        self._ready = True
        return [
            Listen(self._job.agreement(self._plan)),
            Observe("listening", {"fragments": len(self._globals), "steps": self._job.job.steps}),
        ]

    # What learners say.

    def _message(self, event: MessageArrived[Any]) -> list[Effect]:
        member = self._members.get(event.peer)
        if member is None:
            return []
        match event.body:
            case Progress():
                return self._progress(member, event.body)
            case Contribution():
                return self._contribution(member, event.body, event.handle)
            case _:
                return []

    def _progress(self, member: Member, progress: Progress) -> list[Effect]:
        problem = member.report(progress)
        if problem is not None:
            return [Observe("refused", {"learner": member.incarnation, "reason": problem})]
        times = [m.progress.step_s for m in self._members.values() if m.progress is not None]
        self._pacing.observe_steps(times)
        effects: list[Effect] = []
        if self._winding_up:
            return effects
        for p, each in enumerate(self._globals):
            if member.lacks(p, each.version):
                effects.append(self._tell(member, p))
        return effects

    def _tell(self, member: Member, p: int) -> Send[GlobalFragment]:
        each = self._globals[p]
        member.sent[p] = each.version
        said = GlobalFragment(p, each.version)
        return Send(member.peer, BULK, said, each.wire, key=f"global/{p}")

    def _contribution(self, member: Member, said: Contribution, handle: str) -> list[Effect]:
        sync = self._syncs.get(said.t)
        if sync is None or sync.work or member.peer not in sync.pulled:
            return self._refuse(member, said, "it came after its sync was closed")
        if said.fragment != sync.fragment or member.peer in sync.parts or not handle:
            return self._refuse(member, said, "it does not answer the pull")
        problem = member.objection(said, self._globals[sync.fragment].version)
        if problem is not None:
            return self._refuse(member, said, problem)
        sync.parts[member.peer] = Part(said, handle, member.merged)
        return [Keep(handle)]

    def _refuse(self, member: Member, said: Contribution, reason: str) -> list[Effect]:
        fields = {"learner": member.incarnation, "t": said.t, "fragment": said.fragment}
        return [Observe("refused", {**fields, "reason": reason})]

    def _member(self, peer: str, incarnation: str) -> Member:
        """A joining learner; what was merged of this incarnation is known across sessions."""
        merged = self._contributed.setdefault(incarnation, [-1] * len(self._globals))
        return Member(peer, incarnation, [-1] * len(self._globals), merged)

    def _lost(self, peer: str, reason: str) -> list[Effect]:
        member = self._members.pop(peer)
        return [Observe("lost", {"learner": member.incarnation, "reason": reason})]

    # Launching: the one place that decides what comes next.

    def _advance(self, at: float) -> list[Effect]:
        if not self._ready or self._winding_up:
            return self._leave_if_done()
        effects: list[Effect] = []
        for sync in list(self._syncs.values()):
            if not sync.work and all(self._settled(sync, peer) for peer in sync.pulled):
                effects += self._close(sync)
        while self._waiting is not None or self._choose(at):
            waiting = self._waiting
            assert waiting is not None
            look = self._pacing.wait_until(
                at,
                waiting,
                able=len(self._able(waiting.fragment)),
                missing=sum(not member.fresh for member in self._members.values()),
            )
            if look is None or look > at:
                return effects + self._look_again(look)
            effects += self._launch(at, waiting)
        if not self._syncs and (self._stopping or self._next_t() is None):
            effects += self._wind_up(at)
        return effects

    def _settled(self, sync: Sync, peer: str) -> bool:
        return peer in sync.parts or peer not in self._members

    def _able(self, fragment: int) -> list[Member]:
        able = [m for m in self._members.values() if m.may_contribute(fragment)]
        return sorted(able, key=lambda member: member.peer.encode())

    def _next_t(self) -> int | None:
        """The global step of the next sync, None when the schedule is through."""
        assert self._plan is not None
        if self._again:
            return self._again[0]
        for t in range(self._t + 1, min(self._t + self._plan.interval, self._job.job.steps) + 1):
            if self._plan.fragment_due(t) is not None:
                return t
        return None

    def _choose(self, at: float) -> bool:
        """Begin to wait for the next sync, unless enough are under way."""
        t = self._next_t()
        if self._stopping or t is None or len(self._syncs) >= self._job.sync.overlap:
            return False
        assert self._plan is not None
        fragment = self._plan.fragment_due(t)
        assert fragment is not None
        if any(sync.fragment == fragment for sync in self._syncs.values()):
            return False
        self._waiting = self._pacing.await_sync(at, t, fragment)
        return True

    def _look_again(self, look: float | None) -> list[Effect]:
        if look == self._look_at:
            return []
        self._look_at = look
        return [CancelTimer(LAUNCH) if look is None else SetTimer(LAUNCH, look)]

    def _launch(self, at: float, waiting: Waiting) -> list[Effect]:
        t, fragment = waiting.t, waiting.fragment
        able = self._able(fragment)
        deadline = self._pacing.launch(at, waiting)
        self._waiting = None
        self._again = [each for each in self._again if each != t]
        self._t = max(self._t, t)
        pulled = tuple(member.peer for member in able)
        self._syncs[t] = Sync(t, fragment, pulled, waiting.grace_s, at)
        for member in self._members.values():
            member.fresh = False
        pulls = [Send(peer, CONTROL, Pull(t, fragment)) for peer in pulled]
        return [*self._look_again(None), SetTimer(f"pull/{t}", deadline), *pulls]

    # Closing, merging, telling.

    def _timer(self, timer: str) -> list[Effect]:
        if timer.startswith("pull/"):
            sync = self._syncs.get(int(timer.removeprefix("pull/")))
            return self._close(sync) if sync is not None and not sync.work else []
        if timer == LAUNCH:
            self._look_at = None
        if timer == FAREWELL:
            self._patient = False
        return []

    def _close(self, sync: Sync) -> list[Effect]:
        """Merge what is there; with nothing there, this global step waits for a quorum again."""
        effects: list[Effect] = [CancelTimer(f"pull/{sync.t}")]
        if not sync.parts:
            return [*effects, *self._retry(sync, "no contribution before the deadline")]
        sync.work = self._next_work()
        shares = tuple(
            Share(peer, part.handle, merge_weight(part.said.tokens, part.said.steps))
            for peer, part in sorted(sync.parts.items(), key=lambda item: item[0].encode())
        )
        p, t = sync.fragment, sync.t
        out = (f"theta/{p}/{t}", f"momentum/{p}/{t}", f"wire/{p}/{t}")
        theirs = self._globals[p]
        merge = MergeFragment(sync.work, t, p, theirs.theta, theirs.momentum, shares, out)
        return [*effects, *(Keep(handle) for handle in out), merge]

    def _retry(self, sync: Sync, reason: str) -> list[Effect]:
        del self._syncs[sync.t]
        self._again.append(sync.t)
        self._again.sort()
        fields = {"t": sync.t, "fragment": sync.fragment, "reason": reason}
        return [Observe("sync repeated", fields)]

    def _merged(self, at: float, event: FragmentMerged) -> list[Effect]:
        sync = next(each for each in self._syncs.values() if each.work == event.work)
        p = sync.fragment
        out = (f"theta/{p}/{sync.t}", f"momentum/{p}/{sync.t}", f"wire/{p}/{sync.t}")
        effects: list[Effect] = [Drop(part.handle) for part in sync.parts.values()]
        for learner, reason in event.refused:
            fields = {"learner": learner, "t": sync.t, "fragment": p, "reason": reason}
            effects.append(Observe("refused", fields))
        if not event.accepted:
            effects += [Drop(handle) for handle in out]
            return effects + self._retry(sync, "every contribution was refused")
        del self._syncs[sync.t]
        self._pacing.sync_s.add(at - sync.launched_at)
        old = self._globals[p]
        assert sync.t > old.version, "versions only grow"
        self._globals[p] = Global(sync.t, *out)
        effects += [Drop(h) for h in (old.theta, old.momentum, old.wire) if h]
        for part in (sync.parts[learner] for learner in event.accepted):
            part.merged[p] = part.said.base
        self._merges += 1
        effects += [self._tell(member, p) for member in self._members.values()]
        return [*effects, self._merge_seen(sync, event)]

    def _merge_seen(self, sync: Sync, event: FragmentMerged) -> Observe:
        fields = {
            "t": sync.t,
            "fragment": sync.fragment,
            "learners": list(event.accepted),
            "weights": [round(weight, 6) for weight in event.weights],
            "grace_s": round(sync.grace_s, 6),
            "live": len(self._members),
            "taking_part": len(sync.pulled),
            "averaged": len(event.accepted),
            "sync_s": round(self._pacing.sync_s.value or 0.0, 6),
        }
        return Observe("merge", fields)

    # The end.

    def _wind_up(self, at: float) -> list[Effect]:
        """Nothing is under way any more: tell everybody, score the model, keep it."""
        self._winding_up = True
        self._waiting = None
        stops = [self._stop(peer) for peer in sorted(self._members, key=str.encode)]
        fragments = tuple(each.theta for each in self._globals)
        evaluate = Evaluate(self._next_work(), fragments)
        self._evaluating = evaluate.work
        save = SaveModel(self._next_work(), fragments)
        patience = min(FAREWELL_STEPS * (self._pacing.step_s or FAREWELL_S_MAX), FAREWELL_S_MAX)
        timer = SetTimer(FAREWELL, at + max(patience, FAREWELL_S_MIN))
        return [*self._look_again(None), *stops, evaluate, save, timer]

    def _stop(self, peer: str) -> Send[Stop]:
        reason = self._stopping[1] if self._stopping else f"global step {self._job.job.steps}"
        return Send(peer, CONTROL, Stop(self._t, reason), key="stop")

    def _result(self, loss: float | None) -> list[Effect]:
        fields: dict[str, Any] = {
            "held_out_loss": loss,
            "t": self._t,
            "merges": self._merges,
        }
        self._evaluated = True
        return [Observe("result", fields)]

    def _leave_if_done(self) -> list[Effect]:
        if not (self._winding_up and self._saved and self._evaluated):
            return []
        if self._members and self._patient:
            return []
        status, reason = self._stopping or ("done", f"global step {self._t}")
        return [CancelTimer(FAREWELL), Finish(status, reason)]

    def _work_failed(self, event: WorkFailed) -> list[Effect]:
        if self._winding_up and event.work == self._evaluating:
            return [Observe("not evaluated", {"reason": event.reason}), *self._result(None)]
        status: Status = "bad-input" if event.kind == "task" else "failed"
        farewells = [Hangup(peer, event.reason) for peer in sorted(self._members, key=str.encode)]
        return [*farewells, Finish(status, event.reason)]

    def _next_work(self) -> int:
        self._work += 1
        return self._work
