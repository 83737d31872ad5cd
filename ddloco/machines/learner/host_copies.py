"""Which fragments a learner copies from the device to the host between two steps, to answer pulls
without waiting: those that will be pulled before the next boundary, in the order of the plan (paper
section 3.1) at the pace of the last pulls, and those that were pulled without a copy."""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.messages import Pull
from ddloco.job.protocol.work import HostFragment


class SeenLaunches(Struct, forbid_unknown_fields=True):
    """What a learner has seen of a syncer's launches.

    Attributes:
        before_t: the newest global step that was launched before ``step`` was finished.
        before_step: the last finished step at that time.
    """

    t: int = -1
    step: int = 0
    before_t: int = -1
    before_step: int = 0

    def see(self, t: int, step: int) -> None:
        if t <= self.t:
            return
        if self.t < 0:
            self.before_t, self.before_step = t, step
        elif step > self.step:
            self.before_t, self.before_step = self.t, self.step
        self.t, self.step = t, step

    def launched_after(self, steps: int) -> int:
        """Return how many global steps are launched in ``steps`` of this learner's steps, rounded
        up, at the pace from ``before_t`` to ``t``."""
        taken, launched = max(self.step - self.before_step, 1), self.t - self.before_t
        return -(-max(launched, 1) * steps // taken)


class HostCopies(Struct, forbid_unknown_fields=True):
    """The host copies of fragments, and the pulls that wait for one; made by ``host_copies``."""

    owners: tuple[str, ...]
    launches: dict[str, SeenLaunches]
    handles: dict[int, str] = {}
    waiting: dict[int, tuple[str, Pull]] = {}

    def see(self, syncer: str, t: int, step: int) -> None:
        if syncer in self.launches:
            self.launches[syncer].see(t, step)

    def of(self, fragment: int) -> str:
        return self.handles.get(fragment, "")

    def held(self) -> int:
        return len(self.handles)

    def wait(self, syncer: str, pull: Pull) -> None:
        """Have a pull answered at the next step boundary, in place of an older one."""
        self.waiting[pull.fragment] = syncer, pull

    def lost(self, syncer: str) -> None:
        """The link to a syncer was lost: its pulls need no answer."""
        self.waiting = {p: each for p, each in self.waiting.items() if each[0] != syncer}

    def answerable(self) -> list[tuple[str, Pull]]:
        ready = [p for p in sorted(self.waiting) if p in self.handles]
        return [self.waiting.pop(p) for p in ready]

    def between_steps(
        self, step: int, linked: Mapping[str, bool], plan: FragmentPlan, count: int = 1
    ) -> tuple[HostFragment, ...]:
        """Return the copies to be made after ``step`` finished steps (0 before the first);
        ``count`` steps pass until copies can be made again. Syncers that are not linked cannot
        pull."""
        wanted: set[int] = set()
        if step:
            wanted.update(self.waiting)
            for syncer, launches in self.launches.items():
                if linked.get(syncer):
                    wanted.update(self._next_of(syncer, launches, step, plan, count))
        self.handles = {p: f"host/{step}/{p}" for p in sorted(wanted)}
        return tuple(HostFragment(p, handle) for p, handle in self.handles.items())

    def release(self) -> list[str]:
        handles, self.handles = list(self.handles.values()), {}
        return handles

    def _next_of(
        self, syncer: str, launches: SeenLaunches, step: int, plan: FragmentPlan, count: int
    ) -> Iterable[int]:
        """The fragments that a syncer may pull during the ``count`` steps after ``step``. One that
        is slower than its pace so far is expected at the next due fragment, not beyond it."""
        first, p = self._next_due(syncer, launches.t, plan)
        now = min(launches.t + launches.launched_after(step - launches.step), first)
        coming = launches.launched_after(count)
        if count > 1:
            # A pull without a copy waits for all of them, and keeps the pace from growing.
            coming *= 2
        last = now + min(coming, plan.interval)
        t = first
        while t <= last:
            yield p
            t, p = self._next_due(syncer, t, plan)

    def _next_due(self, syncer: str, after: int, plan: FragmentPlan) -> tuple[int, int]:
        """The next global step after ``after`` at which a fragment of a syncer is due, and
        which."""
        t = after
        for _ in plan.fragments:
            t += plan.steps_until_due(t)
            p = plan.fragment_due(t)
            if p is not None and self.owners[p] == syncer:
                return t, p
        raise LookupError(f"{syncer} owns no fragment")


def host_copies(plan: FragmentPlan, syncer_of: Callable[[int], str]) -> HostCopies:
    owners = tuple(syncer_of(p) for p in range(len(plan.fragments)))
    return HostCopies(owners, {syncer: SeenLaunches() for syncer in sorted(set(owners))})
