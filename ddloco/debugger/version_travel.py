"""How long new versions of fragments travelled: from the event at which a merge was done to the
event at which a learner had the version."""

from collections.abc import Mapping
from statistics import median

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.job.protocol.messages import GlobalFragment
from ddloco.monitoring.status_view import seconds
from transport import MessageArrived

Version = tuple[int, int]
"""A fragment, and the global step of its merge."""


class Arrival(Struct, frozen=True):
    """A version has come to a learner, ``after_s`` seconds after its merge was done."""

    learner: str
    event: str
    at: float
    after_s: float


class Travel(Struct, frozen=True):
    """The versions that came to a learner, over all its incarnations, and how long they travelled,
    in seconds. Versions that were sent again to one that came back are not counted."""

    learner: str
    versions: int
    median_s: float
    longest_s: float
    longest: Version

    def line(self) -> str:
        p, t = self.longest
        said = f"versions reached {self.learner} {seconds(self.median_s)} after their merges"
        most = f"at most {seconds(self.longest_s)}, version {t} of fragment {p}"
        return f"{said} (the median of {self.versions:,}; {most})"


def arrivals_of(run: RecordedJob) -> Mapping[Version, list[Arrival]]:
    """Return when each version first came to each incarnation of each learner; not those that a
    learner came back to."""
    merged = {
        (merge.fragment, merge.t): run.common(merge.event.rpartition(":")[0], merge.at)
        for merge in run.merges()
    }
    found: dict[Version, list[Arrival]] = {each: [] for each in merged}
    for who in run.learners:
        begun = run.common(who, 0.0)
        seen: set[Version] = set()
        for record, event in run.events(who, GlobalFragment):
            if not isinstance(event, MessageArrived) or not isinstance(event.body, GlobalFragment):
                continue
            version = event.body.fragment, event.body.version
            if version in merged and version not in seen and merged[version] >= begun:
                at = run.common(who, record.at)
                after_s = max(at - merged[version], 0.0)
                found[version].append(Arrival(who, f"{who}:{record.n}", at, after_s))
            seen.add(version)
    return found


def travels_of(run: RecordedJob) -> list[Travel]:
    """Return how long versions travelled to each learner, the slowest first."""
    by_learner: dict[str, list[tuple[float, Version]]] = {}
    for version, arrivals in arrivals_of(run).items():
        for each in arrivals:
            by_learner.setdefault(actor_of(each.learner), []).append((each.after_s, version))
    found = [
        Travel(who, len(told), median(after_s for after_s, _ in told), *max(told))
        for who, told in by_learner.items()
    ]
    return sorted(found, key=lambda each: (-each.median_s, each.learner))
