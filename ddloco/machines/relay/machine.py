"""The relay machine: an actor between the learners of a site and the syncers. Learners send it
their payloads and tell the syncer about them; what is merged, and how often, is decided and
recorded by the syncer alone. A relay leaves out only what is not finite or an outlier. If it dies,
its learners are asked again without it."""

from typing import Any

from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from clocks import actor_of, number_of
from ddloco.job.config import Job
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import (
    Contribution,
    ContributionSum,
    GlobalFragment,
    RelayReport,
    Roster,
    Spread,
    Stop,
    SumWanted,
    WantedShare,
)
from ddloco.job.protocol.timers import RelayReportDue, SumDeadline
from ddloco.job.protocol.work import (
    ContributionsSummed,
    DecodeFragment,
    FragmentDecoded,
    Share,
    SumContributions,
)
from ddloco.machines.syncer.shards import REPORT_S
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.actor import OwnMachine
from ddloco.stage.actors.effects import Finish, Observe, Status
from ddloco.stage.actors.events import LeaveRequested, StopRequested, WorkFailed
from transport import (
    BULK,
    CONTROL,
    CancelTimer,
    Dial,
    Drop,
    Effect,
    Event,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Retire,
    Send,
    SetTimer,
    TimerFired,
)


class HeldVersion(Struct, frozen=True):
    """A version of a fragment, as learners hold it, and its handle; -1 and empty for none."""

    version: int = -1
    handle: str = ""


class Arrived(Struct, frozen=True):
    """A learner's contribution and the handle of its payload."""

    said: Contribution
    handle: str


class Sum(Struct, forbid_unknown_fields=True):
    """A sum that a syncer has asked for: who asked and for what. Once it is computed under number
    ``work``, the handles that this needs are held, and ``missing`` has what was left out before;
    ``later`` is what was asked for meanwhile."""

    syncer: str
    said: SumWanted
    work: int = 0
    needed: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    later: SumWanted | None = None


class Decoding(Struct, frozen=True):
    """A version that is being made from a compressed difference: the handles of the version before,
    the difference and the result."""

    fragment: int
    version: int
    base: str
    source: str
    out: str

    def handles(self) -> tuple[str, ...]:
        return self.base, self.source, self.out


class Relay(OwnMachine):
    """The state machine of one relay.

    Attributes:
        learners: the linked learners, each with the number of its link.
        links: the links of learners so far.
        newest: for each learner, the highest known incarnation number.
    """

    job: Job
    name: str = ""
    work: WorkNumbers = field(default_factory=WorkNumbers)
    plan: FragmentPlan | None = None
    syncers: dict[str, bool] = {}
    learners: dict[str, int] = {}
    links: int = 0
    newest: dict[str, int] = {}
    held: list[HeldVersion] = []
    arrived: dict[str, dict[int, Arrived]] = {}
    sums: dict[int, Sum] = {}
    decoding: dict[int, Decoding] = {}

    def handle(self, at: float, event: Event) -> list[Effect]:
        match event:
            case MessageArrived():
                return self._message(at, event)
            case ContributionsSummed():
                return self._summed(at, event)
            case FragmentDecoded():
                return self._decoded(event)
            case Started():
                return self._started(at, event)
            case PeerJoined(peer, incarnation):
                return self._joined(peer, incarnation)
            case PeerLost(peer, reason):
                return self._lost(peer, reason)
            case PeerRefused(peer, reason, again):
                status: Status = "left" if again else "bad-input"
                return self._finish(status, f"{peer} refuses this relay: {reason}")
            case TimerFired(RelayReportDue()):
                return [*self._report(), SetTimer(RelayReportDue(), at + REPORT_S)]
            case TimerFired(SumDeadline(fragment)) if fragment in self.sums:
                return self._compute(fragment)
            case WorkFailed(_, kind, reason):
                return self._finish("failed", reason, again=kind == "worker")
            case StopRequested(reason):
                return self._finish("done", reason)
            case LeaveRequested(reason):
                return self._finish("left", reason)
            case _:
                return []

    def references(self) -> int:
        held = sum(bool(each.handle) for each in self.held)
        arrived = sum(len(each) for each in self.arrived.values())
        decoding = sum(len(each.handles()) for each in self.decoding.values())
        return held + arrived + decoding + sum(len(each.needed) for each in self.sums.values())

    def _started(self, at: float, event: Started) -> list[Effect]:
        plan = self.plan = self.job.plan(event.leaves)
        self.name = actor_of(event.incarnation)
        self.syncers = dict.fromkeys(self.job.syncer_names(), False)
        self.held = [HeldVersion() for _ in plan.fragments]
        agreement = self.job.agreement(plan)
        return [
            Listen(agreement),
            *(Dial(syncer, agreement) for syncer in self.syncers),
            SetTimer(RelayReportDue(), at + REPORT_S),
            Observe("relaying", {"learners": list(self.job.relay[self.name].learners)}),
        ]

    def _message(self, at: float, event: MessageArrived[Any]) -> list[Effect]:
        peer, said = event.peer, event.body
        match said:
            case GlobalFragment() if event.handle and self._owns(peer, said.fragment):
                return self._spread(said, event.handle)
            case SumWanted() if self._owns(peer, said.fragment):
                return self._asked(at, peer, said)
            case Spread() if peer in self.syncers:
                return self._send_held(said)
            case Contribution() if event.handle and peer in self.learners:
                return self._contributed(peer, said, event.handle)
            case Roster(_, floors) if peer in self.syncers:
                return [Retire(floors)]
            case Stop(_, reason) if peer == self.job.syncer_names()[0]:
                return self._finish("done", reason)
            case _:
                return []

    def _owns(self, peer: str, fragment: int) -> bool:
        return fragment < len(self.held) and self.job.syncer_of(fragment) == peer

    # Links.

    def _joined(self, peer: str, incarnation: str) -> list[Effect]:
        if peer in self.syncers:
            self.syncers[peer] = True
            return [self._told(peer)]
        actor, number = actor_of(incarnation), number_of(incarnation)
        if actor not in self.job.relay[self.name].learners:
            reason = f"{actor} is no learner of {self.name}"
            return [Hangup(peer, reason, final=True)]
        newest = self.newest.get(actor, 0)
        if number < newest:
            reason = f"a newer incarnation, {actor}.{newest}, has the place of {incarnation}"
            return [Hangup(peer, reason, final=True)]
        effects: list[Effect] = []
        for other in [each for each in self.learners if actor_of(each) == actor and each != peer]:
            del self.learners[other]
            reason = f"a newer incarnation, {incarnation}, has joined"
            effects += [*self._forget(other), Hangup(other, reason, final=True)]
        if number > max(newest, 1):
            effects.append(Retire({actor: number}))
        self.newest[actor] = number
        self.links += 1
        self.learners[peer] = self.links
        seen = Observe("learner linked", {"learner": incarnation})
        return [*effects, seen, *self._report(), *self._complete()]

    def _lost(self, peer: str, reason: str) -> list[Effect]:
        if peer in self.syncers:
            self.syncers[peer] = False
            mine = [p for p, each in self.sums.items() if each.syncer == peer and not each.work]
            for p in mine:
                del self.sums[p]
            seen = Observe("syncer lost", {"syncer": peer, "reason": reason})
            return [*(CancelTimer(SumDeadline(p)) for p in mine), seen]
        if self.learners.pop(peer, None) is None:
            return []
        seen = Observe("learner lost", {"learner": peer, "reason": reason})
        return [seen, *self._report(), *self._complete()]

    def _report(self) -> list[Effect]:
        return [self._told(syncer) for syncer, linked in self.syncers.items() if linked]

    def _told(self, syncer: str) -> Send[RelayReport]:
        versions = tuple(each.version for each in self.held)
        learners = dict(sorted(self.learners.items()))
        return Send(syncer, CONTROL, RelayReport(versions, learners), key="relay")

    # Global fragments.

    def _spread(self, said: GlobalFragment, handle: str) -> list[Effect]:
        """Send a version on to learners, and keep it as what changes are measured from."""
        to = () if said.to is UNSET else said.to
        spents = (UNSET,) * len(to) if said.spents is UNSET else said.spents
        key = f"global/{said.fragment}"
        effects: list[Effect] = [
            Send(learner, BULK, replace(said, to=UNSET, spents=UNSET, spent=spent), handle, key)
            for learner, spent in zip(to, spents, strict=False)
            if learner in self.learners
        ]
        p, held = said.fragment, self.held[said.fragment]
        if said.version <= held.version:
            return effects
        if said.form is UNSET:
            return [*effects, Keep(handle), *self._install(p, HeldVersion(said.version, handle))]
        if held.version != said.base or said.form != self.job.compress.down:
            reason = f"version {said.version} is a difference to {said.base}, which is not here"
            seen = {"what": f"global fragment {p}", "reason": reason}
            return [*effects, Observe("refused", seen), *self._report()]
        work, out = self.work.next(), f"global/{p}/{said.version}"
        made = self.decoding[work] = Decoding(p, said.version, held.handle, handle, out)
        kept = (Keep(each) for each in made.handles())
        return [*effects, *kept, DecodeFragment(work, p, held.handle, handle, out)]

    def _send_held(self, said: Spread) -> list[Effect]:
        spents = (UNSET,) * len(said.fragments) if said.spents is UNSET else said.spents
        asked = zip(said.fragments, said.versions, spents, strict=False)
        found = [(p, spent) for p, version, spent in asked if self._holds(p, version)]
        return [
            Send(
                said.to,
                BULK,
                GlobalFragment(p, self.held[p].version, spent=spent),
                self.held[p].handle,
                f"global/{p}",
            )
            for p, spent in found
            if said.to in self.learners
        ]

    def _holds(self, p: int, version: int) -> bool:
        return p < len(self.held) and self.held[p].version >= max(version, 0)

    def _decoded(self, event: FragmentDecoded) -> list[Effect]:
        made = self.decoding.pop(event.work)
        released: list[Effect] = [Drop(made.base), Drop(made.source)]
        if made.version <= self.held[made.fragment].version:
            return [*released, Drop(made.out)]
        return [*released, *self._install(made.fragment, HeldVersion(made.version, made.out))]

    def _install(self, p: int, newer: HeldVersion) -> list[Effect]:
        """Hold a version; contributions to the syncs before it are of no more use."""
        before, self.held[p] = self.held[p], newer
        effects: list[Effect] = [Drop(before.handle)] if before.handle else []
        for given in self.arrived.values():
            if p in given and given[p].said.t <= newer.version:
                effects += [Drop(given.pop(p).handle)]
        # So that nothing stays of incarnations that are gone.
        self.arrived = {learner: given for learner, given in self.arrived.items() if given}
        return [*effects, *self._report(), *self._complete()]

    # Contributions and their sums.

    def _contributed(self, peer: str, said: Contribution, handle: str) -> list[Effect]:
        if said.fragment >= len(self.held):
            return [Observe("refused", {"learner": peer, "reason": "no such fragment"})]
        given = self.arrived.setdefault(peer, {})
        before = given.get(said.fragment)
        given[said.fragment] = Arrived(said, handle)
        dropped = [Drop(before.handle)] if before is not None else []
        return [Keep(handle), *dropped, *self._complete()]

    def _forget(self, learner: str) -> list[Effect]:
        return [Drop(each.handle) for each in self.arrived.pop(learner, {}).values()]

    def _asked(self, at: float, syncer: str, said: SumWanted) -> list[Effect]:
        p = said.fragment
        before = self.sums.get(p)
        if before is not None and before.work:
            before.later = said
            return []
        self.sums[p] = Sum(syncer, said)
        return [SetTimer(SumDeadline(p), at + said.within_s), *self._complete()]

    def _complete(self) -> list[Effect]:
        """Compute the sums for which everything has arrived that can."""
        ready = [p for p, each in self.sums.items() if not each.work and self._is_complete(each)]
        return [effect for p in ready for effect in self._compute(p)]

    def _is_complete(self, wanted: Sum) -> bool:
        said = wanted.said
        if self.held[said.fragment].version < said.version:
            return False
        return all(
            each.name not in self.learners or self._of(each.name, said) is not None
            for each in said.shares
        )

    def _of(self, learner: str, said: SumWanted) -> Arrived | None:
        given = self.arrived.get(learner, {}).get(said.fragment)
        return given if given is not None and given.said.t == said.t else None

    def _compute(self, p: int) -> list[Effect]:
        wanted = self.sums[p]
        said, held = wanted.said, self.held[p]
        if wanted.work:
            return []
        given = {each.name: self._of(each.name, said) for each in said.shares}
        missing = {each.name: self._objection(given[each.name], each, said) for each in said.shares}
        wanted.missing = tuple((name, why) for name, why in missing.items() if why)
        shares = tuple(
            Share(
                each.name, found.handle, each.weight, each.base, each.steps, each.usual, each.moved
            )
            for each in said.shares
            if (found := given[each.name]) is not None and not missing[each.name]
        )
        cancelled = CancelTimer(SumDeadline(p))
        if not shares:
            return [cancelled, self._answer(p, ContributionSum(said.t, p, said.number, ()))]
        wanted.work = self.work.next()
        out = f"sum/{wanted.work}"
        wanted.needed = (held.handle, *(each.handle for each in shares), out)
        differences = tuple(
            each.name
            for each in shares
            if (found := given[each.name]) is not None and found.said.form is not UNSET
        )
        work = SumContributions(
            wanted.work, said.t, p, held.handle, shares, out, differences, said.band, said.cosine
        )
        return [cancelled, *(Keep(each) for each in wanted.needed), work]

    def _objection(self, given: Arrived | None, share: WantedShare, said: SumWanted) -> str:
        """Why a contribution cannot be in a sum; empty if it can."""
        held = self.held[said.fragment].version
        if held != said.version:
            return f"{self.name} holds version {held}, and the sum is of {said.version}"
        if given is None:
            return f"it did not reach {self.name} in time"
        body = given.said
        if (body.base, body.steps) != (share.base, share.steps):
            return f"it told {self.name} otherwise than the syncer"
        if body.form is UNSET:
            return ""
        if body.form != self.job.compress.up:
            return f"compressed as {body.form}, this job has {self.job.compress.up}"
        if body.base != held:
            return f"a difference to version {body.base}, which {self.name} does not have"
        return ""

    def _summed(self, at: float, event: ContributionsSummed) -> list[Effect]:
        p = next(p for p, each in self.sums.items() if each.work == event.work)
        wanted = self.sums[p]
        body = ContributionSum(
            wanted.said.t,
            p,
            wanted.said.number,
            event.accepted,
            event.lengths if event.accepted else (),
            event.refused,
            event.measured,
            self.job.compress.up,
        )
        out = wanted.needed[-1]
        done: list[Effect] = [self._answer(p, body, out), *(Drop(each) for each in wanted.needed)]
        later = wanted.later
        return done if later is None else [*done, *self._asked(at, wanted.syncer, later)]

    def _answer(self, p: int, body: ContributionSum, out: str = "") -> Send[ContributionSum]:
        wanted = self.sums.pop(p)
        body = replace(body, missing=wanted.missing)
        return Send(wanted.syncer, BULK, body, out if body.names else "", key=f"sum/{p}")

    def _finish(self, status: Status, reason: str, *, again: bool = False) -> list[Effect]:
        peers = [*self.syncers, *self.learners]
        return [*(Hangup(peer, reason) for peer in peers), Finish(status, reason, again)]
