"""The rounds of a syncer: each one synchronises one fragment (paper: Algorithm 2).

This machine is part of the syncer machine. A sync waits for a quorum and a grace window, is
launched, is closed when all learners have answered or its deadline has passed, and is merged; the
result is sent to all learners.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from ddloco.job import config
from ddloco.job.config import Job
from ddloco.job.protocol.events import FragmentMerged
from ddloco.job.protocol.messages import Contribution, Pull
from ddloco.job.protocol.status import Numbers
from ddloco.machines.syncer.accounts import LATE
from ddloco.machines.syncer.global_fragments import (
    Global,
    Globals,
    Part,
    Sync,
    names,
    sent_names,
)
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.pacing import Pacing, Waiting
from ddloco.machines.syncer.schedule import Schedule
from ddloco.machines.work_numbers import WorkNumbers
from ddloco.stage.actors.effects import Observe
from transport import CONTROL, CancelTimer, Drop, Effect, Keep, Send, SetTimer

LAUNCH = "launch"
PULL = "pull/"

LAUNCHES_MAX = 256
"""Launches whose time is kept, to measure answer times; answers to older ones are not measured."""

FRUITLESS_MAX = 512
"""Consecutive syncs without an accepted contribution after which the job fails. All learners have
started over from the global fragments by then. A model for which every step yields NaN does not
recover, and the job would never end. At one step per second this takes about ten minutes."""


class Rounds:
    """The next sync of one syncer, and its syncs in flight.

    Args:
        job: the resolved job.
        schedule: the order of the syncs.
        membership: the connected learners.
        parts: the global fragments.
        work: the machine's work numbers.

    Attributes:
        waiting: the sync that will be launched next; None while enough are in flight.
        syncs: the syncs in flight, by global step.
        merges: the number of merges done.
        merged_at: the time of the newest merge, in seconds.
        seen: the fields of the log event of the newest merge.
        fruitless: the number of consecutive syncs without an accepted contribution.
    """

    def __init__(
        self,
        job: Job,
        schedule: Schedule,
        membership: Membership,
        parts: Globals,
        work: WorkNumbers,
    ) -> None:
        self.schedule = schedule
        self.pacing = Pacing(job.sync)
        self.waiting: Waiting | None = None
        self.syncs: dict[int, Sync] = {}
        self.merges = 0
        self.merged_at = 0.0
        self.seen: dict[str, Any] = {}
        self.fruitless = 0
        self._sync: config.Sync = job.sync
        self._counts_tokens = job.job.tokens is not None
        self._tokens: Mapping[int, int] = {}
        """For each fragment, the tokens merged into it."""
        self._compress: config.Compress = job.compress
        self._membership = membership
        self._globals = parts
        self._outliers = OutlierHistory(job.sync.band, len(parts))
        self._work = work
        self._stopping = False
        self._look_at: float | None = None
        self._looked: tuple[object, ...] = ()
        self._able: dict[str, None] = {}
        """Learners that count for the quorum of the waiting sync; see ``_count_able``."""
        self._done: dict[str, None] = {}
        """Learners that have done the steps that the waiting sync is after the last launch."""
        self._launches: dict[int, float] = {}
        """Launch times of the newest syncs in seconds, by global step."""

    @property
    def quorum(self) -> int:
        """The number of learners that a sync waits for."""
        return self._sync.quorum

    def oldest(self, fragment: int) -> int:
        """Return the oldest base version of a contribution to ``fragment`` that is accepted."""
        return self._globals.oldest(fragment)

    @property
    def over(self) -> bool:
        """Whether no sync is in flight and none will be launched."""
        if self.syncs or self.waiting is not None:
            return False
        return self._stopping or self.schedule.next() is None

    def kept(self) -> list[tuple[int, int, dict[str, int], dict[str, int], int]]:
        """Return the records of every merged fragment.

        Returns:
            For each: the fragment, its version, the base version of the last merged contribution
            by incarnation, the batches drawn by actor, and the tokens merged if they are counted.
        """
        merged = ((p, self._globals[p].version) for p in self._globals.owned)
        batches, spent = dict(self._membership.batches), self._membership.spent
        return [(p, v, spent(p), batches, self._tokens.get(p, 0)) for p, v in merged if v]

    @property
    def merged_tokens(self) -> int:
        """The tokens that were merged, on average over the fragments of this syncer."""
        return sum(self._tokens.values()) // len(self._globals.owned)

    def numbers(self, at: float) -> Numbers:
        """Return the job's numbers at ``at`` seconds."""
        return self._membership.accounts.numbers(
            at,
            live=len(self._membership.members),
            quorum=self.quorum,
            merges=self.merges,
            fragments=len(self._globals.owned),
        )

    def recover_tokens(self, fragment: int, tokens: int) -> None:
        """Take over the tokens that an earlier incarnation merged into a fragment."""
        self._tokens = {**self._tokens, fragment: tokens}

    def stop(self) -> None:
        """Launch no more syncs, and drop the waiting one, whose quorum may never be reached."""
        self._stopping, self.waiting = True, None

    def go_on(self) -> None:
        """Continue in a new run: a request to stop the earlier run no longer counts."""
        self._stopping, self.fruitless = False, 0

    def end(self) -> list[Effect]:
        """Drop the waiting sync and its timer."""
        self.waiting = None
        return self._look_again(None)

    def advance(self, at: float) -> list[Effect]:
        """Launch every sync that may be launched now. No other method launches syncs."""
        effects = self._close_overdue(at)
        while self.waiting is not None or self._choose(at):
            waiting = self.waiting
            assert waiting is not None
            oldest = self._globals.oldest(waiting.fragment)
            able = self._count_able(waiting, oldest)
            if waiting.floor_at is None:
                done, members = len(self._done), self._membership.members.values()
                waiting.floor_at = at if self.pacing.have_done(at, done, members) else None
            missing = partial(self._missing, at)
            look = self.pacing.wait_until(at, waiting, able=able, missing=missing)
            if look is None or look > at:
                return effects + self._look_again(look)
            unmerged = self._sync.pull == "unmerged"
            choose = self._membership.unmerged if unmerged else self._membership.able
            effects += self._launch(at, waiting, choose(waiting.fragment, oldest))
        return effects

    def _count_able(self, waiting: Waiting, oldest: int) -> int:
        """Return how many learners count for the quorum; notes those that have done its steps.

        This runs at every event, so all members are checked once for each sync and each epoch, and
        otherwise only those that have reported since.
        """
        membership = self._membership
        looked = (waiting.t, waiting.fragment, oldest, waiting.since, membership.epoch)
        if looked != self._looked:
            self._looked = looked
            self._able = {m.peer: None for m in membership.able(waiting.fragment, oldest)}
            members = membership.members.values()
            self._done = {m.peer: None for m in members if m.ahead >= waiting.steps}
        else:
            for member in membership.reported.values():
                if member.ahead >= waiting.steps:
                    self._done[member.peer] = None
                if member.fresh and member.may_be_pulled(waiting.fragment, oldest):
                    self._able[member.peer] = None
                else:
                    self._able.pop(member.peer, None)
        membership.reported.clear()
        return len(self._able)

    def _missing(self, at: float, until: float) -> bool:
        return self._membership.missing(at, until if self._sync.pull == "unmerged" else math.inf)

    def _choose(self, at: float) -> bool:
        """Start to wait for the next sync, unless enough are in flight."""
        if self._stopping or len(self.syncs) >= self._sync.overlap:
            return False
        t = self.schedule.next()
        if t is None:
            return False
        fragment = self.schedule.fragment(t)
        if any(sync.fragment == fragment for sync in self.syncs.values()):
            return False
        self.pacing.observe_steps(self._membership.step_times())
        self.waiting = self.pacing.await_sync(at, t, fragment)
        return True

    def _look_again(self, look: float | None) -> list[Effect]:
        if look == self._look_at:
            return []
        self._look_at = look
        return [CancelTimer(LAUNCH) if look is None else SetTimer(LAUNCH, look)]

    def _launch(self, at: float, waiting: Waiting, members: list[Member]) -> list[Effect]:
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
        self._membership.launched(waiting.steps)
        pulls = [Send(m.peer, CONTROL, self._pull(t, fragment, m)) for m in members]
        return [*self._look_again(None), SetTimer(f"{PULL}{t}", deadline), *pulls]

    def _pull(self, t: int, fragment: int, member: Member) -> Pull:
        """Ask for a compressed contribution only of a version that this syncer still has."""
        if not self._compress.differences or self._globals.anchor(fragment, member.holds(fragment)):
            return Pull(t, fragment)
        return Pull(t, fragment, whole=True)

    def _note_launch(self, t: int, at: float) -> None:
        """Note the time of the first launch of ``t``.

        A late answer still shows how long answers take, also after the pull was repeated.
        """
        self._launches.setdefault(t, at)
        while len(self._launches) > LAUNCHES_MAX:
            del self._launches[next(iter(self._launches))]

    # Closing and merging.

    def contribution(
        self, at: float, member: Member, said: Contribution, handle: str
    ) -> list[Effect]:
        """Handle an answer to a pull: add it to its sync, or reject it."""
        who = (member.incarnation, said.t, said.fragment)
        member.speak()
        if said.t in self._launches:
            member.answer_s.add(at - self._launches[said.t])
        sync = self.syncs.get(said.t)
        problem = LATE if sync is None else sync.objection(member.peer, said, handle)
        if sync is None or problem is not None:
            if sync is not None and problem != LATE:
                sync.refused[member.peer] = None
            return self._membership.refuse(*who, problem or LATE)
        p = sync.fragment
        newest = min(self._globals.newest(p, said.base), sync.t - 1)
        problem = member.objection(said, newest, self._globals.oldest(p))
        if problem is None and self._outliers.band:
            problem = member.doubt(at, said) or self._outliers.objection(said)
        anchor = ""
        if said.form is not UNSET:
            anchor = self._globals.anchor(p, said.base)
            if problem is None and said.form != self._compress.up:
                problem = f"compressed as {said.form}, this job has {self._compress.up}"
            elif problem is None and not anchor:
                problem = f"a difference to version {said.base}, which this syncer does not have"
        if problem is not None:
            sync.refused[member.peer] = None
            return self._membership.refuse(*who, problem)
        sync.awaited.pop(member.peer, None)
        part = sync.parts[member.peer] = Part(said, handle, member.merged, anchor)
        return [*(Keep(each) for each in part.handles()), *self._close_if_settled(sync)]

    def lost(self, peer: str) -> list[Effect]:
        """Handle the loss of a member: its pulls may be lost with the link, and if it joins again,
        what it sends is counted from zero."""
        for sync in self.syncs.values():
            sync.spoken.pop(peer, None)
        return self.close_settled()

    def close_settled(self) -> list[Effect]:
        """Close the syncs that waited only for members that are no longer connected."""
        return [
            effect for sync in list(self.syncs.values()) for effect in self._close_if_settled(sync)
        ]

    def _close_overdue(self, at: float) -> list[Effect]:
        """Close the syncs that hold up the next one, and wait only for learners that have gone
        silent, once the median live learner has done half an interval since the last launch.

        Their deadline may be ten seconds away, which are thousands of steps of a small model.
        """
        if self.waiting is not None or not self.syncs:
            return []
        overdue = [sync for sync in self.syncs.values() if not sync.work]
        if not overdue or not self.pacing.looks(at):
            return []
        members, steps = self._membership.members, max(self._sync.interval // 2, 1)
        done = sum(member.ahead >= steps for member in members.values())
        if not done or self.pacing.live(at, members.values()) > 2 * done:
            return []
        live = self.pacing.is_live
        return [
            effect
            for sync in overdue
            if not any(live(at, members[peer]) for peer in sync.awaited if peer in members)
            for effect in self._close(sync)
        ]

    def _close_if_settled(self, sync: Sync) -> list[Effect]:
        """Close the sync if no pulled learner can still answer."""
        members = self._membership.members
        settled = not any(peer in members for peer in sync.awaited)
        return self._close(sync) if settled and not sync.work else []

    def timer(self, timer: str) -> list[Effect]:
        """Handle a timer: the deadline of a sync, or the next check whether to launch."""
        if timer == LAUNCH:
            self._look_at = None
            return []
        sync = self.syncs.get(int(timer.removeprefix(PULL)))
        return self._close(sync) if sync is not None and not sync.work else []

    def _close(self, sync: Sync) -> list[Effect]:
        """Merge the received contributions; without any, the sync is repeated."""
        effects: list[Effect] = [CancelTimer(f"{PULL}{sync.t}")]
        self._membership.note_unanswered(sync.spoken, sync.parts)
        self.pacing.vain = 0 if sync.parts else self.pacing.vain + 1
        if not sync.parts:
            return [*effects, *self._retry(sync, "no contribution before the deadline")]
        effects += self._leave_behind(sync)
        sync.work = self._work.next()
        theirs = self._globals[sync.fragment]
        tokens = self._tokens.get(sync.fragment, 0) if self._counts_tokens else None
        merge = sync.merge(theirs, self._membership, self._outliers, self._compress, tokens)
        return [*effects, *(Keep(handle) for handle in merge.makes), merge]

    def _leave_behind(self, sync: Sync) -> list[Effect]:
        """Reject outdated contributions if learners hold a newer version than this syncer.

        The merge then starts from the version of the learners.
        """
        p, mine = sync.fragment, self._globals[sync.fragment].version
        effects: list[Effect] = []
        for peer in sync.behind(mine):
            part = sync.parts.pop(peer)
            sync.refused[peer] = None
            reason = f"trained from version {part.said.base}, others hold a newer one"
            dropped = [Drop(handle) for handle in part.handles()]
            effects += [*dropped, *self._membership.refuse(peer, sync.t, p, reason)]
        if sync.adopts:
            base = max(part.said.base for part in sync.parts.values())
            reason = f"version {base} of fragment {p}, where this syncer has {mine}"
            fields = {"t": sync.t, "fragment": p, "learners": list(sync.parts), "reason": reason}
            effects.append(Observe("goes on from learners", fields))
        return effects

    def catch_up(self, t: int) -> None:
        """Continue after global step ``t``: learners hold merges up to it that this syncer lost."""
        if t > self.schedule.t:
            self.schedule.recover(t)
            self.waiting = None

    def _retry(self, sync: Sync, reason: str) -> list[Effect]:
        del self.syncs[sync.t]
        self.schedule.repeat(sync.t)
        fields = {"t": sync.t, "fragment": sync.fragment, "reason": reason}
        return [Observe("sync repeated", fields)]

    def merged(self, at: float, event: FragmentMerged) -> list[Effect]:
        """Handle a finished merge: install the new version and send it to every learner."""
        sync = next(each for each in self.syncs.values() if each.work == event.work)
        p = sync.fragment
        parts = sync.parts.values()
        effects: list[Effect] = [Drop(handle) for part in parts for handle in part.handles()]
        for learner, reason in event.refused:
            effects += self._membership.refuse(learner, sync.t, p, reason)
            if learner in self._membership.members:
                over = self._membership.strike(self._membership.members[learner])
                effects += over + self._globals.send_replacements(
                    at, self._membership.members[learner], p, whole=bool(over)
                )
        sync.learned(event, self._globals[p].version, self._outliers)
        self.fruitless = 0 if event.accepted else self.fruitless + 1
        before = self._globals[p]
        newer = self._newer(sync, before)
        if not event.accepted:
            effects += [Drop(handle) for handle in newer.handles()]
            return effects + self._retry(sync, "every contribution was refused")
        del self.syncs[sync.t]
        self.pacing.sync_s.add(at - sync.launched_at)
        effects += self._globals.merge(p, newer)
        for part in (sync.parts[learner] for learner in event.accepted):
            part.merged[p] = part.said.base
        self._membership.reset_strikes(event.accepted)
        self.merges, self.merged_at = self.merges + 1, at
        effects += [
            self._globals.tell(at, member, p) for member in self._membership.members.values()
        ]
        new = sum(sync.parts[learner].said.tokens for learner in event.accepted)
        self._membership.accounts.merge(p, new, sync.unanswered)
        if self._counts_tokens:
            self.recover_tokens(p, self._tokens.get(p, 0) + new)
        seen = sync.seen(event, self.pacing.sync_s.value or 0.0)
        self.seen = {**seen, **asdict(self.numbers(at))}
        return [*effects, Observe("merge", self.seen)]

    def makes(self, sync: Sync) -> list[str]:
        """Return the handles of the arrays that the merge of a sync makes."""
        return self._newer(sync, self._globals[sync.fragment]).handles()

    def _newer(self, sync: Sync, before: Global) -> Global:
        """Return the version that a merge has made, with the handles of its arrays."""
        out = names(sync.fragment, sync.t)
        if self._compress.down == "float32" or before.held is None:
            return Global(sync.t, *out, held=out[-1])  # It is sent whole.
        held, difference = sent_names(sync.fragment, sync.t)
        return Global(sync.t, *out, held, difference, before.version, self._compress.down)
