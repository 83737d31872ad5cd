"""Rounds: when a fragment is synchronised, with whom, and what becomes of it (paper: Algorithm 2).

A machine inside the syncer's. A sync waits for a quorum and a grace window, is launched, closed
when all have answered or its deadline has passed, merged, and told to everybody.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ddloco.actors.effects import Observe
from ddloco.config.job import Job
from ddloco.machines.syncer.global_fragments import LATE, Global, Globals, Part, Sync, names
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import Bands
from ddloco.machines.syncer.pacing import Pacing, Waiting
from ddloco.machines.syncer.schedule import Schedule
from ddloco.protocol.events import FragmentMerged
from ddloco.protocol.messages import Contribution, Pull
from transport import CONTROL, CancelTimer, Drop, Effect, Keep, Send, SetTimer

LAUNCH = "launch"
PULL = "pull/"

LAUNCHES_MAX = 256
"""Launches that are remembered: a late answer to an older one teaches nothing new."""

FRUITLESS_MAX = 512
"""Syncs in a row of which nothing was believed, not even after everybody had started over from the
globals: a model that has come to where every step makes NaN does not come back, and a job that only
repeats would never end. With a step a second that is some ten minutes."""


class Rounds:
    """The syncs of one syncer: the next one, and those under way.

    Args:
        job: the resolved job.
        schedule: what is due next.
        membership: who is there.
        parts: the global fragments.
        next_work: numbers for work.

    Attributes:
        waiting: the sync that is to be launched next, None while there are enough.
        syncs: those under way, by global step.
        merges: how many were merged.
        merged_at: seconds; when the newest of them was.
        seen: what people saw of the last one.
        fruitless: how many in a row were refused whole.
    """

    def __init__(
        self,
        job: Job,
        schedule: Schedule,
        membership: Membership,
        parts: Globals,
        next_work: Callable[[], int],
    ) -> None:
        self.schedule = schedule
        self.pacing = Pacing(job.sync)
        self.waiting: Waiting | None = None
        self.syncs: dict[int, Sync] = {}
        self.merges = 0
        self.merged_at = 0.0
        self.seen: dict[str, Any] = {}
        self.fruitless = 0
        self._sync = job.sync
        self._membership = membership
        self._globals = parts
        self._bands = Bands(job.sync.band, len(parts))
        self._next_work = next_work
        self._stopping = False
        self._look_at: float | None = None
        self._looked: tuple[object, ...] = ()
        self._able: dict[str, None] = {}
        """Who counts for the quorum of the sync that waits; see ``_count_able``."""
        self._launches: dict[int, float] = {}
        """When the newest syncs were launched, by global step."""

    @property
    def quorum(self) -> int:
        """How many learners a sync waits for."""
        return self._sync.quorum

    def oldest(self, fragment: int) -> int:
        """The oldest version from which a contribution to ``fragment`` is still taken."""
        return self._globals.oldest(fragment)

    @property
    def over(self) -> bool:
        """Whether nothing is under way and nothing will be."""
        return not self.syncs and (self._stopping or self.schedule.next() is None)

    def kept(self) -> list[tuple[int, int, dict[str, int], dict[str, int]]]:
        """Of every fragment that was merged: version, whose tokens are spent, batches drawn."""
        merged = ((p, self._globals[p].version) for p in self._globals.owned)
        batches = dict(self._membership.batches)
        return [(p, v, self._membership.spent(p), batches) for p, v in merged if v]

    def stop(self) -> None:
        """Launch nothing more; the quorum of what waits may never come."""
        self._stopping, self.waiting = True, None

    def go_on(self) -> None:
        """In another run, which nobody has stopped."""
        self._stopping, self.fruitless = False, 0

    def end(self) -> list[Effect]:
        """Wait for nothing any more."""
        self.waiting = None
        return self._look_again(None)

    def advance(self, at: float) -> list[Effect]:
        """Launch whatever may be launched: the one place that decides what comes next."""
        effects: list[Effect] = []
        while self.waiting is not None or self._choose(at):
            waiting = self.waiting
            assert waiting is not None
            oldest = self._globals.oldest(waiting.fragment)
            able = self._count_able(waiting, oldest)
            missing = partial(self._missing, at)
            look = self.pacing.wait_until(at, waiting, able=able, missing=missing)
            if look is None or look > at:
                return effects + self._look_again(look)
            everybody = self._sync.pull == "unmerged"
            choose = self._membership.unmerged if everybody else self._membership.able
            effects += self._launch(at, waiting, choose(waiting.fragment, oldest))
        return effects

    def _count_able(self, waiting: Waiting, oldest: int) -> int:
        """How many count for the quorum: all are looked at once for each sync and each change of
        members, then only those that report, since this is asked with every event."""
        membership = self._membership
        looked = (waiting.t, waiting.fragment, oldest, waiting.since, membership.epoch)
        if looked != self._looked:
            self._looked = looked
            self._able = {m.peer: None for m in membership.able(waiting.fragment, oldest)}
        else:
            for member in membership.reported.values():
                if member.fresh and member.may_contribute(waiting.fragment, oldest):
                    self._able[member.peer] = None
                else:
                    self._able.pop(member.peer, None)
        membership.reported.clear()
        return len(self._able)

    def _missing(self, at: float, until: float) -> bool:
        return self._membership.missing(at, until if self._sync.pull == "unmerged" else math.inf)

    def _choose(self, at: float) -> bool:
        """Begin to wait for the next sync, unless enough are under way."""
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
        self.syncs[t] = Sync(t, fragment, pulled, waiting.grace_s, at, deadline, awaited)
        self._membership.launched()
        pulls = [Send(peer, CONTROL, Pull(t, fragment)) for peer in pulled]
        return [*self._look_again(None), SetTimer(f"{PULL}{t}", deadline), *pulls]

    def _note_launch(self, t: int, at: float) -> None:
        """Remember when it was first: an answer that comes late says how long answers take, and may
        be the one to a pull that was repeated since."""
        self._launches.setdefault(t, at)
        while len(self._launches) > LAUNCHES_MAX:
            del self._launches[next(iter(self._launches))]

    # Closing, merging, telling.

    def contribution(
        self, at: float, member: Member, said: Contribution, handle: str
    ) -> list[Effect]:
        """A learner answers a pull; what is in time and true becomes part of the merge."""
        who = (member.incarnation, said.t, said.fragment)
        member.speak(at)
        if said.t in self._launches:
            member.answer_s.add(at - self._launches[said.t])
        sync = self.syncs.get(said.t)
        problem = LATE if sync is None else sync.objection(member.peer, said, handle)
        if sync is None or problem is not None:
            return self._membership.refuse(*who, problem or LATE)
        p = sync.fragment
        newest = min(self._globals.newest(p, said.base), sync.t - 1)
        problem = member.objection(said, newest, self._globals.oldest(p))
        if problem is None and self._bands.band:
            problem = member.doubt(at, said) or self._bands.objection(said)
        if problem is not None:
            return self._membership.refuse(*who, problem)
        sync.awaited.pop(member.peer, None)
        sync.parts[member.peer] = Part(said, handle, member.merged)
        return [Keep(handle), *self._close_if_settled(sync)]

    def close_settled(self) -> list[Effect]:
        """Somebody is gone: a sync may have waited for nobody else."""
        return [
            effect for sync in list(self.syncs.values()) for effect in self._close_if_settled(sync)
        ]

    def _close_if_settled(self, sync: Sync) -> list[Effect]:
        """Merge at once when nobody who was pulled can still answer."""
        members = self._membership.members
        settled = not any(peer in members for peer in sync.awaited)
        return self._close(sync) if settled and not sync.work else []

    def timer(self, timer: str) -> list[Effect]:
        """A sync's deadline has passed, or it is time to look again whether to launch."""
        if timer == LAUNCH:
            self._look_at = None
            return []
        sync = self.syncs.get(int(timer.removeprefix(PULL)))
        return self._close(sync) if sync is not None and not sync.work else []

    def _close(self, sync: Sync) -> list[Effect]:
        """Merge what is there; with nothing there, this global step waits for a quorum again."""
        effects: list[Effect] = [CancelTimer(f"{PULL}{sync.t}")]
        self._membership.note_unanswered(sync.pulled, sync.parts, sync.launched_at)
        self.pacing.vain = 0 if sync.parts else self.pacing.vain + 1
        if not sync.parts:
            return [*effects, *self._retry(sync, "no contribution before the deadline")]
        effects += self._leave_behind(sync)
        sync.work = self._next_work()
        merge = sync.merge(self._globals[sync.fragment], self._membership, self._bands)
        return [*effects, *(Keep(handle) for handle in merge.out), merge]

    def _leave_behind(self, sync: Sync) -> list[Effect]:
        """Where learners hold a newer version than this syncer, the merge goes on from theirs."""
        p, mine = sync.fragment, self._globals[sync.fragment].version
        effects: list[Effect] = []
        for peer in sync.behind(mine):
            part = sync.parts.pop(peer)
            reason = f"trained from version {part.said.base}, others hold a newer one"
            effects += [Drop(part.handle), *self._membership.refuse(peer, sync.t, p, reason)]
        if sync.adopts:
            base = max(part.said.base for part in sync.parts.values())
            reason = f"version {base} of fragment {p}, where this syncer has {mine}"
            fields = {"t": sync.t, "fragment": p, "learners": list(sync.parts), "reason": reason}
            effects.append(Observe("goes on from learners", fields))
        return effects

    def catch_up(self, t: int) -> None:
        """Learners hold merges up to global step ``t``, which this syncer has lost."""
        if t > self.schedule.t:
            self.schedule.recover(t)
            self.waiting = None

    def _retry(self, sync: Sync, reason: str) -> list[Effect]:
        del self.syncs[sync.t]
        self.schedule.repeat(sync.t)
        fields = {"t": sync.t, "fragment": sync.fragment, "reason": reason}
        return [Observe("sync repeated", fields)]

    def merged(self, at: float, event: FragmentMerged) -> list[Effect]:
        """A merge is done: what was accepted is the newest version, and everybody is told."""
        sync = next(each for each in self.syncs.values() if each.work == event.work)
        p = sync.fragment
        out = names(p, sync.t)
        effects: list[Effect] = [Drop(part.handle) for part in sync.parts.values()]
        for learner, reason in event.refused:
            effects += self._membership.refuse(learner, sync.t, p, reason)
            if learner in self._membership.members:
                over = self._membership.strike(self._membership.members[learner])
                effects += over + self._globals.heal(
                    at, self._membership.members[learner], p, whole=bool(over)
                )
        sync.learned(event, self._globals[p].version, self._bands)
        self.fruitless = 0 if event.accepted else self.fruitless + 1
        if not event.accepted:
            effects += [Drop(handle) for handle in out]
            return effects + self._retry(sync, "every contribution was refused")
        del self.syncs[sync.t]
        self.pacing.sync_s.add(at - sync.launched_at)
        effects += self._globals.merge(p, Global(sync.t, *out))
        for part in (sync.parts[learner] for learner in event.accepted):
            part.merged[p] = part.said.base
        self._membership.absolve(event.accepted)
        self.merges, self.merged_at = self.merges + 1, at
        effects += [
            self._globals.tell(at, member, p) for member in self._membership.members.values()
        ]
        self.seen = sync.seen(event, len(self._membership.members), self.pacing.sync_s.value or 0.0)
        return [*effects, Observe("merge", self.seen)]
