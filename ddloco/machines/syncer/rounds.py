"""The rounds of a syncer (paper: Algorithm 2). A sync waits for a quorum and a grace window, is
launched, is closed when all learners have answered or its deadline has passed, and is merged."""

import math
from functools import partial
from typing import Any, NamedTuple

from msgspec import UNSET, Struct, field
from msgspec.structs import asdict

from clocks import actor_of
from ddloco.job.config import Compress, Job
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import Contribution, ContributionSum, Progress, Pull
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.timers import LaunchDue, PullDeadline, SumsDeadline
from ddloco.job.protocol.work import FragmentMerged
from ddloco.machines.clients import not_in_round
from ddloco.machines.syncer.accounts import LATE
from ddloco.machines.syncer.apart import own_batches
from ddloco.machines.syncer.global_fragments import (
    Global,
    GlobalFragments,
    Recipient,
    names,
    sent_names,
)
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.pacing import NextSync, Pacing
from ddloco.machines.syncer.schedule import Schedule, due_at
from ddloco.machines.syncer.sites import ReceivedSum, Sites
from ddloco.machines.syncer.syncs import ReceivedContribution, Sync
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Observe
from transport import CONTROL, CancelTimer, Drop, Effect, Keep, Send, SetTimer

BEYOND_INTERVALS = 2
"""So many intervals after the last global step, what was lost may have been taken from learners;
and so far is a learner ahead of what it holds, at most, where learners wait for each other."""

LAUNCHES_MAX = 256
"""Launches whose time is kept, to measure answer times; answers to older ones are not measured."""

SUM_WAIT = 0.5
"""The part of the time for a sum in which a relay waits for contributions; in the rest of it the
sum is computed and sent."""

HURRY_S = 1.0
"""How long, in seconds, a job that was asked to stop waits for answers to a pull."""

ALL_REFUSED = "every contribution was refused"
"""Why a sync with answers is repeated."""

NOT_FRESH = "has finished no step since the last launch"
"""Why a learner that may contribute does not count for a quorum (paper 3.3 b)."""

FRUITLESS_MAX = 512
"""Consecutive syncs without an accepted contribution after which the job fails. All learners have
started over from the global fragments by then. A model for which every step yields NaN does not
recover, and the job would never end. At one step per second this takes about ten minutes."""


class Shared(NamedTuple):
    """What the parts of a syncer have in common: each call that needs it is given it."""

    job: Job
    plan: FragmentPlan
    work: WorkNumbers


class Rounds(Struct, forbid_unknown_fields=True):
    """The next sync of one syncer, its syncs in flight, and all that they change.

    Attributes:
        waiting: the sync that will be launched next; None while enough are in flight.
        merged_at: the time of the newest merge, in seconds.
        seen: the fields of the log event of the newest merge.
        fruitless: the number of consecutive syncs without an accepted contribution.
        tokens: for each fragment, the tokens merged into it, if they are counted.
        look_at: when the timer ``LaunchDue`` is due, in seconds; None if it is not set.
        looked: the sync and the epoch for which ``able`` and ``done`` were last counted anew.
        able: learners that count for the quorum of the waiting sync; see ``_count_able``.
        done: learners that have done the steps that the waiting sync is after the last launch.
        launches: launch times of the newest syncs in seconds, by global step.
    """

    membership: Membership
    globals: GlobalFragments
    outliers: OutlierHistory
    schedule: Schedule = field(default_factory=Schedule)
    pacing: Pacing = field(default_factory=Pacing)
    waiting: NextSync | None = None
    syncs: dict[int, Sync] = {}
    merges: int = 0
    merged_at: float = 0.0
    seen: dict[str, Any] = {}
    fruitless: int = 0
    tokens: dict[int, int] = {}
    stopping: bool = False
    look_at: float | None = None
    looked: tuple[int, int, int, float, int] | None = None
    able: dict[str, None] = {}
    done: dict[str, None] = {}
    launches: dict[int, float] = {}
    sites: Sites = field(default_factory=Sites)

    def oldest(self, fragment: int) -> int:
        return self.globals.oldest(fragment)

    def over(self, job: Job, plan: FragmentPlan) -> bool:
        if self.syncs or self.waiting is not None:
            return False
        return self.stopping or self._next(job, plan) is None

    def _next(self, job: Job, plan: FragmentPlan) -> int | None:
        """The global step of the next sync; None when all syncs are launched. What learners hold
        and this syncer has lost, it takes from them, if need be after the last global step.
        Learners that wait for each other have no steps for that then."""
        t = self.schedule.next(plan, self.globals.owned, job.last_sync)
        if t is not None or job.sync.blocking:
            return t
        return self.schedule.next(plan, self._lost(), self.schedule.t + plan.interval)

    def _lost(self) -> list[int]:
        """The fragments of which a learner holds a newer version than this syncer."""
        members = self.membership.members.values()
        held = {p: max((m.holds(p) for m in members), default=0) for p in self.globals.owned}
        return [p for p in held if self.globals.newest(p, held[p]) > self.globals[p].version]

    def kept(self) -> list[tuple[int, int, dict[str, int], dict[str, int], int]]:
        """Return for every merged fragment its number, its version, the base version of the last
        merged contribution by incarnation, the batches drawn (see ``Membership.drawn``), and the
        tokens merged if they are counted."""
        merged = ((p, self.globals[p].version) for p in self.globals.owned)
        batches, spent = self.membership.drawn(), self.membership.spent
        return [(p, v, spent(p), batches, self.tokens.get(p, 0)) for p, v in merged if v]

    @property
    def merged_tokens(self) -> int:
        """The tokens that were merged, on average over the fragments of this syncer."""
        return sum(self.tokens.values()) // len(self.globals.owned)

    def numbers(self, at: float, job: Job) -> Numbers:
        return self.membership.accounts.numbers(
            at,
            live=len(self.membership.members),
            quorum=job.sync.quorum,
            merges=self.merges,
            fragments=len(self.globals.owned),
        )

    def recover_tokens(self, fragment: int, tokens: int) -> None:
        self.tokens = {**self.tokens, fragment: tokens}

    def stop(self) -> None:
        """Launch no more syncs, and drop the waiting one, whose quorum may never be reached."""
        self.stopping, self.waiting = True, None

    def hurry(self, at: float) -> list[Effect]:
        """Wait for answers to the syncs in flight for ``HURRY_S`` at most: somebody waits for the
        end."""
        soon = at + HURRY_S
        waiting = [sync for sync in self.syncs.values() if not sync.work]
        pulls = [s for s in waiting if not s.closed and s.deadline > soon]
        return [
            *(SetTimer(PullDeadline(sync.t), soon) for sync in pulls),
            *(SetTimer(SumsDeadline(sync.t), soon) for sync in waiting if sync.sums_awaited),
        ]

    def go_on(self) -> None:
        """Continue in a new run: a request to stop the earlier run no longer counts."""
        self.stopping, self.fruitless = False, 0

    def end(self) -> list[Effect]:
        self.waiting = None
        return self._look_again(None)

    def advance(self, at: float, shared: Shared) -> list[Effect]:
        """Launch every sync that may be launched now. No other method launches syncs."""
        job = shared.job
        effects = self._close_overdue(at, shared)
        again = self.schedule.again
        if job.sync.blocking and again and self.waiting is not None and again[0] < self.waiting.t:
            self.waiting = None  # Learners that wait for the one do not come to the other.
        while self.waiting is not None or self._choose(at, job, shared.plan):
            waiting = self.waiting
            assert waiting is not None
            oldest = self.globals.oldest(waiting.fragment)
            if job.sync.blocking or waiting.t > job.job.last_step:
                ready = self._ready(job, waiting, oldest)
                if not ready:
                    return effects + self._look_again(None)
                effects += self._launch(at, waiting, ready, job.compress)
                continue
            able = self._count_able(waiting, oldest)
            if waiting.floor_at is None:
                done, members = len(self.done), self.membership.members.values()
                waiting.floor_at = at if self.pacing.have_done(at, done, members) else None
            unmerged = job.sync.pull == "unmerged"
            missing = partial(self._missing, at, unmerged)
            look = self.pacing.wait_until(at, waiting, job.sync, able=able, missing=missing)
            if look is None or look > at:
                return effects + self._look_again(look)
            choose = self.membership.unmerged if unmerged else self.membership.able
            effects += self._launch(at, waiting, choose(waiting.fragment, oldest), job.compress)
        return effects

    def _ready(self, job: Job, waiting: NextSync, oldest: int) -> list[Member]:
        """Return whom a sync pulls that no pace decides; empty if it must wait. With
        ``sync.blocking`` it waits for a quorum of the round's learners that have come to its global
        step. After the last global step no learner is waited for."""
        unmerged = self.membership.unmerged(waiting.fragment, oldest)
        if waiting.t > job.job.last_step:
            return unmerged
        there = [m for m in self.membership.members.values() if not _out(job, waiting.t, m)]
        if len(there) < job.sync.quorum:
            return []
        return [member for member in unmerged if member in there]

    def absence(self, job: Job, member: Member, t: int, fragment: int) -> str | None:
        """Return in words why a member does not count for the sync of ``t``, or None if it does."""
        reason = _out(job, t, member) if job.sync.blocking else None
        if reason is None:
            reason = self.membership.absence(member, fragment, self.oldest(fragment))
        paced = not job.sync.blocking and t <= job.job.last_step
        return NOT_FRESH if reason is None and paced and not member.fresh else reason

    def _count_able(self, waiting: NextSync, oldest: int) -> int:
        """Return how many learners count for the quorum; notes those that have done its steps. This
        runs at every event, so only those that have reported since are checked, unless sync or
        epoch change."""
        membership = self.membership
        looked = (waiting.t, waiting.fragment, oldest, waiting.since, membership.epoch)
        if looked != self.looked:
            self.looked = looked
            self.able = {m.peer: None for m in membership.able(waiting.fragment, oldest)}
            members = membership.members.values()
            self.done = {m.peer: None for m in members if m.ahead >= waiting.steps}
        else:
            for peer in membership.reported:
                member = membership.members.get(peer)
                if member is None:
                    continue
                if member.ahead >= waiting.steps:
                    self.done[member.peer] = None
                if member.fresh and membership.may_be_pulled(member, waiting.fragment, oldest):
                    self.able[member.peer] = None
                else:
                    self.able.pop(member.peer, None)
        membership.reported.clear()
        return len(self.able)

    def _missing(self, at: float, unmerged: bool, until: float) -> bool:
        return self.membership.missing(at, until if unmerged else math.inf)

    def _choose(self, at: float, job: Job, plan: FragmentPlan) -> bool:
        if self.stopping or len(self.syncs) >= max(job.sync.overlap, 1):
            return False
        t = self._next(job, plan)
        if t is None:
            return False
        fragment = due_at(plan, t)
        if any(sync.fragment == fragment for sync in self.syncs.values()):
            return False
        self.pacing.observe(self.membership.members.values())
        self.waiting = self.pacing.await_sync(at, t, fragment)
        return True

    def _look_again(self, look: float | None) -> list[Effect]:
        if look == self.look_at:
            return []
        self.look_at = look
        return [CancelTimer(LaunchDue()) if look is None else SetTimer(LaunchDue(), look)]

    def _launch(
        self, at: float, waiting: NextSync, members: list[Member], compress: Compress
    ) -> list[Effect]:
        t, fragment = waiting.t, waiting.fragment
        answers_s = [m.answer_s.value for m in members if m.answer_s.value is not None]
        deadline = self.pacing.launch(at, waiting, answers_s)
        self._note_launch(t, at)
        self.waiting = None
        self.schedule.launched(t)
        pulled = tuple(member.peer for member in members)
        awaited = dict.fromkeys(pulled)
        spoken = {member.peer: member.spoken for member in members}
        self.syncs[t] = Sync(t, fragment, pulled, waiting, at, deadline, awaited, spoken)
        self.membership.launched(waiting.steps)
        pulls = [Send(m.peer, CONTROL, self._pull(t, fragment, m, compress)) for m in members]
        return [*self._look_again(None), SetTimer(PullDeadline(t), deadline), *pulls]

    def _pull(self, t: int, fragment: int, member: Member, compress: Compress) -> Pull:
        """Ask for a compressed contribution only of a version that this syncer still has; a relay
        has only the newest one."""
        held, relay = member.holds(fragment), self.sites.via(member, fragment, self.globals)
        known = bool(self.globals.anchor(fragment, held))
        if relay is not None:
            known = held == self.globals[fragment].version
        whole = compress.differences and not known
        to = actor_of(relay.peer) if relay is not None else UNSET
        return Pull(t, fragment, True if whole else UNSET, to)

    def _note_launch(self, t: int, at: float) -> None:
        """Note the time of the first launch of ``t``: a late answer still shows how long answers
        take."""
        self.launches.setdefault(t, at)
        while len(self.launches) > LAUNCHES_MAX:
            del self.launches[next(iter(self.launches))]

    # Closing and merging.

    def contribution(
        self, at: float, member: Member, said: Contribution, handle: str, shared: Shared
    ) -> list[Effect]:
        who = (member.incarnation, said.t, said.fragment)
        member.speak()
        if said.t in self.launches:
            member.answer_s.add(at - self.launches[said.t])
        sync = self.syncs.get(said.t)
        problem = LATE if sync is None else sync.objection(member.peer, said, handle)
        if sync is None or problem is not None:
            refused = self.membership.refuse(*who, problem or LATE)
            if sync is None or problem == LATE:
                return refused
            return [*refused, *self._answered(at, sync, member.peer, shared)]
        p = sync.fragment
        newest = min(self.globals.newest(p, member.holds(p)), sync.t - 1)
        merged, band = self.membership.merged[member.incarnation][p], shared.job.sync.band
        problem = member.objection(said, newest, self.globals.oldest(p), merged)
        doubt = None
        if problem is None and band:
            carries = shared.job.sync.late == "carry"
            problem = doubt = member.doubt(at, said, carries=carries)
        anchor, relay = "", ""
        if problem is None and said.relay is not UNSET:
            relay = self.sites.linked(said.relay)
            if not relay:
                problem = f"its payload is with {said.relay}, which is not linked"
        elif said.form is not UNSET:
            anchor = self.globals.anchor(p, said.base)
            up = shared.job.compress.up
            if problem is None and said.form != up:
                problem = f"compressed as {said.form}, this job has {up}"
            elif problem is None and not anchor:
                problem = f"a difference to version {said.base}, which this syncer does not have"
        if problem is not None:
            refused = self.membership.refuse(*who, problem)
            # What it holds is replaced, so that what is false here does not come again.
            anew = self._strike(at, p, member.peer, shared.job.compress) if doubt else []
            return [*refused, *anew, *self._answered(at, sync, member.peer, shared)]
        sync.awaited.pop(member.peer, None)
        part = sync.parts[member.peer] = ReceivedContribution(
            member.incarnation, said, handle, anchor, relay
        )
        return [*(Keep(each) for each in part.handles()), *self._close_if_settled(at, sync, shared)]

    def _answered(self, at: float, sync: Sync, peer: str, shared: Shared) -> list[Effect]:
        """Note an answer that was refused: the sync does not wait for another one."""
        sync.awaited.pop(peer, None)
        sync.refused[peer] = None
        return self._close_if_settled(at, sync, shared)

    def lost(self, at: float, peer: str, shared: Shared) -> list[Effect]:
        """Handle the loss of a member: its pulls may be lost with the link, and if it joins again,
        what it sends is counted from zero."""
        for sync in self.syncs.values():
            sync.spoken.pop(peer, None)
        return self.close_settled(at, shared)

    def close_settled(self, at: float, shared: Shared) -> list[Effect]:
        """Close the syncs that waited only for members that are no longer connected."""
        return [
            effect
            for sync in list(self.syncs.values())
            for effect in self._close_if_settled(at, sync, shared)
        ]

    def _close_overdue(self, at: float, shared: Shared) -> list[Effect]:
        """Close the syncs that hold up the next one, and wait only for learners that have gone
        silent, once the median live learner has done half an interval since the last launch. Their
        deadline may be ten seconds away, which are thousands of steps of a small model."""
        if self.waiting is not None or not self.syncs or shared.job.sync.blocking:
            return []
        overdue = [sync for sync in self.syncs.values() if not sync.closed]
        if not overdue or not self.pacing.looks(at):
            return []
        members, steps = self.membership.members, max(shared.job.sync.interval // 2, 1)
        done = sum(member.ahead >= steps for member in members.values())
        if not done or self.pacing.live(at, members.values()) > 2 * done:
            return []
        live = self.pacing.is_live
        return [
            effect
            for sync in overdue
            if not any(live(at, members[peer]) for peer in sync.awaited if peer in members)
            for effect in self._close(at, sync, shared)
        ]

    def _close_if_settled(self, at: float, sync: Sync, shared: Shared) -> list[Effect]:
        members = self.membership.members
        settled = not any(peer in members for peer in sync.awaited)
        return self._close(at, sync, shared) if settled and not sync.closed else []

    def late(self, at: float, t: int, shared: Shared) -> list[Effect]:
        sync = self.syncs.get(t)
        return self._close(at, sync, shared) if sync is not None and not sync.closed else []

    def _close(self, at: float, sync: Sync, shared: Shared) -> list[Effect]:
        """Merge the received contributions; without any, the sync is repeated."""
        effects: list[Effect] = [CancelTimer(PullDeadline(sync.t))]
        answers = {**sync.parts, **sync.refused}
        self.membership.note_unanswered(sync.spoken, answers)
        self.pacing.vain = 0 if answers else self.pacing.vain + 1
        effects += self._leave_out_odd_tokens(sync, shared.job)
        if not sync.parts:
            self.fruitless += bool(sync.refused)
            reason = ALL_REFUSED if sync.refused else "no contribution before the deadline"
            return [*effects, *self._retry(sync, reason)]
        effects += self._leave_behind(sync)
        relayed = sync.relayed()
        if not relayed:
            return [*effects, *self._merge(sync, shared)]
        return [*effects, *self._ask_for_sums(at, sync, relayed, shared)]

    def _ask_for_sums(
        self, at: float, sync: Sync, relayed: dict[str, list[str]], shared: Shared
    ) -> list[Effect]:
        sync.sums_wanted, sync.sums_awaited = shared.work.next(), dict.fromkeys(relayed)
        known = [each for each in map(self.sites.answer_s, relayed) if each is not None]
        deadline_s, version = self.pacing.deadline_s(known), self.globals[sync.fragment].version
        effects: list[Effect] = [SetTimer(SumsDeadline(sync.t), at + deadline_s)]
        within_s = SUM_WAIT * deadline_s
        for peer, learners in relayed.items():
            if peer in self.sites.relays:
                self.sites.relays[peer].ask(at, sync.sums_wanted)
                wanted = sync.sum_wanted(learners, self.outliers, version, shared.job, within_s)
                effects.append(Send(peer, CONTROL, wanted))
        gone = [peer for peer in relayed if peer not in self.sites.relays]
        return [*effects, *self._without_sums(sync, gone, shared)]

    def summed(
        self, at: float, peer: str, said: ContributionSum, handle: str, shared: Shared
    ) -> list[Effect]:
        """Handle a relay's sum: its contributions will be merged, but for those that it refuses."""
        sync = self.syncs.get(said.t)
        self.sites.relays[peer].answer(at, said.number)
        awaited = sync is not None and peer in sync.sums_awaited
        if sync is None or not awaited or said.number != sync.sums_wanted:
            return [Observe("refused", {"relay": peer, "t": said.t, "reason": LATE})]
        del sync.sums_awaited[peer]
        mine = sync.relayed()[peer]
        fates = [*said.names, *(name for name, _ in (*said.refused, *said.missing))]
        if sorted(fates) != sorted(mine) or bool(said.names) != bool(handle):
            reason = f"the sum of {actor_of(peer)} is not what was asked for"
            left = self._leave_out(sync, dict.fromkeys(mine, reason))
            return [*left, *self._merge_if_summed(sync, shared)]
        effects = self._leave_out(sync, dict((*said.refused, *said.missing)))
        for learner, _ in said.refused:
            effects += self._strike(at, sync.fragment, learner, shared.job.compress)
        if handle:
            sync.sums[peer] = ReceivedSum(said, handle)
            effects.append(Keep(handle))
        return [*effects, *self._merge_if_summed(sync, shared)]

    def _leave_out(self, sync: Sync, reasons: dict[str, str]) -> list[Effect]:
        effects: list[Effect] = []
        for learner, reason in reasons.items():
            effects += [Drop(handle) for handle in sync.parts.pop(learner).handles()]
            sync.refused[learner] = None
            effects += self.membership.refuse(learner, sync.t, sync.fragment, reason)
        return effects

    def _merge_if_summed(self, sync: Sync, shared: Shared) -> list[Effect]:
        """Merge once no relay's sum is awaited; without any contribution, repeat the sync."""
        if sync.sums_awaited or sync.work:
            return []
        cancelled = CancelTimer(SumsDeadline(sync.t))
        if not sync.parts:
            return [cancelled, *self._retry(sync, "no relay's sum before the deadline")]
        return [cancelled, *self._merge(sync, shared)]

    def sums_late(self, t: int, shared: Shared) -> list[Effect]:
        sync = self.syncs.get(t)
        return self._without_sums(sync, list(sync.sums_awaited), shared) if sync is not None else []

    def relay_lost(self, peer: str, shared: Shared) -> list[Effect]:
        waiting = [sync for sync in self.syncs.values() if peer in sync.sums_awaited]
        return [e for sync in waiting for e in self._without_sums(sync, [peer], shared)]

    def _without_sums(self, sync: Sync, relays: list[str], shared: Shared) -> list[Effect]:
        """Leave out what relays have whose sums do not come; their learners are pulled again."""
        relayed, effects = sync.relayed(), list[Effect]()
        for peer in relays:
            del sync.sums_awaited[peer]
            reason = f"the sum of {actor_of(peer)} did not come"
            effects += self._leave_out(sync, dict.fromkeys(relayed[peer], reason))
        return [*effects, *self._merge_if_summed(sync, shared)]

    def _merge(self, sync: Sync, shared: Shared) -> list[Effect]:
        job = shared.job
        sync.work = shared.work.next()
        theirs = self.globals[sync.fragment]
        tokens = self.tokens.get(sync.fragment, 0) if job.job.tokens is not None else None
        band, compress = job.sync.band, job.compress
        merge = sync.merge(
            theirs,
            self.membership,
            self.outliers,
            band,
            compress,
            tokens=tokens,
            weight=job.outer.weight,
        )
        return [*(Keep(handle) for handle in merge.makes), merge]

    def _leave_out_odd_tokens(self, sync: Sync, job: Job) -> list[Effect]:
        said = {peer: part.said for peer, part in sync.parts.items()}
        own = own_batches(job)
        return self._leave_out(sync, self.outliers.objections(said, job.sync.band, own))

    def _leave_behind(self, sync: Sync) -> list[Effect]:
        """Reject outdated contributions if learners hold a newer version than this syncer: the
        merge then starts from that."""
        p, mine = sync.fragment, self.globals[sync.fragment].version
        effects: list[Effect] = []
        for peer in sync.behind(mine):
            base = sync.parts[peer].said.base
            reason = f"trained from version {base}, others hold a newer one"
            effects += self._leave_out(sync, {peer: reason})
        if sync.adopts:
            base = max(part.said.base for part in sync.parts.values())
            outer = f"goes on from version {mine}" if mine else "begins anew"
            reason = (
                f"version {base} of fragment {p}, where this syncer has {mine}: what was merged "
                f"between is on no tape here, and the outer optimizer {outer}"
            )
            fields = {"t": sync.t, "fragment": p, "learners": list(sync.parts), "reason": reason}
            effects.append(Observe("goes on from learners", fields))
        return effects

    def repeat_unmerged(self, plan: FragmentPlan) -> None:
        """Repeat the syncs that were launched and not merged, for which learners wait."""
        for p in self.globals.owned:
            due = self.schedule.t - (self.schedule.t - plan.offsets[p]) % plan.interval
            if due > 0 and self.globals[p].version < due:
                self.schedule.repeat(due)

    def beyond(self, said: Progress, shared: Shared) -> str | None:
        """Return which version or global step a learner reports that cannot be, or None. A version
        that this syncer may have lost was merged at a global step at which its fragment is due."""
        versions, ahead = said.versions, BEYOND_INTERVALS * shared.plan.interval
        last = shared.job.last_sync + ahead
        newest = max(versions, default=0)
        if said.position > newest + ahead:
            return f"report of global step {said.position} with versions up to {newest}"
        if len(versions) != len(self.globals):
            return None  # Of another plan; see ``Member.report``.
        for p, mine in self.globals.newest_of.items():
            held = versions[p]
            if held <= mine.version:
                continue
            lost = self.globals.newest(p, held) == held
            if not lost or held > last or shared.plan.fragment_due(held) != p:
                return f"report of version {held} of fragment {p}, which cannot be"
        return None

    def catch_up(self, t: int) -> None:
        """Continue after global step ``t``: learners hold merges up to it that this syncer lost."""
        if t > self.schedule.t:
            self.schedule.recover(t)
            self.waiting = None

    def _retry(self, sync: Sync, reason: str) -> list[Effect]:
        del self.syncs[sync.t]
        held = [member.holds(sync.fragment) for member in self.membership.members.values()]
        # What learners hold of this global step was merged, and lost: it is not merged again.
        if self.globals.newest(sync.fragment, max(held, default=0)) < sync.t:
            self.schedule.repeat(sync.t)
        fields = {"t": sync.t, "fragment": sync.fragment, "reason": reason}
        return [Observe("sync repeated", fields)]

    def merged(self, at: float, event: FragmentMerged, job: Job) -> list[Effect]:
        sync = next(each for each in self.syncs.values() if each.work == event.work)
        p = sync.fragment
        effects: list[Effect] = [Drop(handle) for handle in sync.handles()]
        for learner, reason in event.refused:
            effects += self.membership.refuse(learner, sync.t, p, reason)
            effects += self._strike(at, p, learner, job.compress)
        sync.learned(event, self.globals[p].version, self.outliers)
        self.fruitless = 0 if event.accepted else self.fruitless + 1
        before = self.globals[p]
        newer = self._newer(sync, before, job.compress)
        if not event.accepted:
            effects += [Drop(handle) for handle in newer.handles()]
            return effects + self._retry(sync, ALL_REFUSED)
        del self.syncs[sync.t]
        self.pacing.sync_s.add(at - sync.launched_at)
        effects += self.globals.merge(p, newer, job.compress)
        for part in (sync.parts[learner] for learner in event.accepted):
            self.membership.accounts.use(part.incarnation)
            if part.incarnation in self.membership.merged:  # Otherwise another has its place.
                self.membership.merged[part.incarnation][p] = part.said.base
        self.membership.reset_strikes(event.accepted)
        effects += self.membership.look_apart(
            event.accepted, own_batches(job), all_take_part=job.sync.clients == 1.0
        )
        self.merges, self.merged_at = self.merges + 1, at
        members = self.membership.members.values()
        told = [self.told(each, job.compress) for each in members]
        effects += self.sites.spread(at, p, told, self.globals, job.compress)
        new = sum(sync.parts[learner].said.tokens for learner in event.accepted)
        self.membership.accounts.merge(p, new, sync.unanswered)
        if p == min(self.globals.owned) and sync.t <= job.job.last_step:
            known = {m.incarnation: m.progress.step for m in members if m.progress is not None}
            self.membership.accounts.count_interval(sync.t, known, job.sync.interval)
        if job.job.tokens is not None:
            self.recover_tokens(p, self.tokens.get(p, 0) + new)
        seen = sync.seen(event, self.pacing.sync_s.value or 0.0)
        self.seen = {**seen, **asdict(self.numbers(at, job))}
        return [*effects, Observe("merge", self.seen)]

    def _strike(self, at: float, p: int, learner: str, compress: Compress) -> list[Effect]:
        """Replace what a learner has of a fragment, since its contribution was rejected."""
        member = self.membership.members.get(learner)
        if member is None:
            return []
        over, told = self.membership.strike(member), self.told(member, compress)
        return over + self.globals.send_replacements(at, told, p, whole=bool(over))

    def told(self, member: Member, compress: Compress) -> Recipient:
        return Recipient(member, self.membership.merged[member.incarnation], compress)

    def makes(self, sync: Sync, compress: Compress) -> list[str]:
        return self._newer(sync, self.globals[sync.fragment], compress).handles()

    def _newer(self, sync: Sync, before: Global, compress: Compress) -> Global:
        out = names(sync.fragment, sync.t)
        if compress.down == "float32" or before.held is None:
            return Global(sync.t, *out, held=out[-1])  # It is sent whole.
        held, difference = sent_names(sync.fragment, sync.t)
        return Global(sync.t, *out, held, difference, before.version, compress.down)


def _out(job: Job, t: int, member: Member) -> str | None:
    return not_in_round(job, t, actor_of(member.incarnation), member.position)
