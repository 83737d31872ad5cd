"""What happened to a merge, from its launch until learners trained on with its version; and to a
fragment, merge after merge."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from statistics import median

from ddloco.debugger.merge_history import Merge
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.story_line import Line
from ddloco.debugger.version_travel import Arrival, arrivals_of
from ddloco.debugger.wording import listed
from ddloco.job.protocol.work import RunStep
from ddloco.monitoring.status_view import seconds
from ddloco.stage.files.toml import ConfigError

LONG_TIMES = 3.0
"""A merge of a fragment came late if it came so many times the usual time after the one before."""

INSTALLED_MAX = 16
"""Learners of which it is looked up when they installed a version: their machines are stepped."""


def story_of_merge(run: RecordedJob, t: int) -> list[Line]:
    """Return the story of the merge of a global step; ``ConfigError`` if there is none."""
    merge = run.merge(t)
    lines = [*_launched(run, merge), *_answered(run, merge), *_merged(run, merge)]
    arrivals = arrivals_of(run)[merge.fragment, t]
    for each in arrivals:
        said = f"version {t} is with {each.learner}, {seconds(each.after_s)} later"
        lines.append(Line(each.at, each.event, said))
    lines += [line for each in arrivals[:INSTALLED_MAX] for line in _installed(run, merge, each)]
    later = (each for each in run.merges() if each.fragment == merge.fragment and each.t > t)
    newer = min(later, key=lambda each: each.t, default=None)
    if newer is not None:
        said = f"merge {newer.t} makes the next version of fragment {merge.fragment}"
        lines.append(Line(_at(run, newer), newer.event, said))
    return sorted(lines, key=lambda each: each.at)


def _at(run: RecordedJob, merge: Merge, at: float | None = None) -> float:
    return run.common(parse_event(merge.event)[0], merge.at if at is None else at)


def _launched(run: RecordedJob, merge: Merge) -> Iterator[Line]:
    at, wait = _at(run, merge, merge.launched_at), merge.wait
    for each in merge.repeats:
        yield Line(at, merge.launched or merge.event, f"it was launched before, in vain: {each}")
    waited = (
        f"launch floor {seconds(wait.floor_s)}, quorum {seconds(wait.quorum_s)}, grace window "
        f"{seconds(wait.grace_s)}"
    )
    said = f"merge {merge.t} of fragment {merge.fragment} is launched, {merge.live} learners live"
    said += f"; it waited {seconds(wait.total_s)}: {waited}"
    yield Line(at, merge.launched or merge.event, said)
    for each in merge.absent:
        if each.kind not in ("refused", "late"):
            yield Line(at, each.event or merge.event, f"without {each.learner}: {each.reason}")


def _answered(run: RecordedJob, merge: Merge) -> Iterator[Line]:
    for each in (*merge.contributions, *merge.refused):
        if each.wait_s is None:
            continue
        since = f"{each.steps:,} steps and {each.tokens:,} tokens since version {each.base}"
        how = f"is sent to {each.relay}" if each.relay else "comes"
        said = f"the contribution of {each.learner} {how}: {since}, after inner step {each.step}"
        yield Line(_at(run, merge, merge.launched_at + each.wait_s), each.event, said)


def _merged(run: RecordedJob, merge: Merge) -> Iterator[Line]:
    at = _at(run, merge)
    for each in merge.absent:
        if each.kind in ("refused", "late"):
            yield Line(at, each.event or merge.event, f"without {each.learner}: {each.reason}")
    weights = [f"{each.learner} {each.weight:.3f}" for each in merge.contributions]
    said = f"merged: {listed(weights)}"
    said += f"; the outer step moved the fragment by {merge.moved:.4g}" if merge.moved else ""
    yield Line(at, merge.event, said)


def _installed(run: RecordedJob, merge: Merge, arrival: Arrival) -> Iterator[Line]:
    """When a learner took the version, if it did."""
    who, number = parse_event(arrival.event)
    version = merge.fragment, merge.t
    for step in run.stepper(who).steps():
        for effect in step.effects if step.number >= number else ():
            if isinstance(effect, RunStep) and version in {
                (each.fragment, each.version) for each in effect.overwrites
            }:
                said = f"{who} installs version {merge.t} before inner step {effect.step}"
                yield Line(run.common(who, step.at), f"{who}:{step.number}", said)
                return


def story_of_fragment(run: RecordedJob, p: int) -> list[Line]:
    """Return the story of a fragment: merges in a row in which nothing stands out are one line.
    ``ConfigError`` if there is no such fragment, or it was never merged."""
    merges = sorted((each for each in run.merges() if each.fragment == p), key=lambda each: each.t)
    if not merges:
        there = sorted({each.fragment for each in run.merges()})
        has = f"fragments {there[0]} to {there[-1]} were merged" if there else "none was merged"
        raise ConfigError(f"{run.path}: no merge of a fragment {p}; {has}")
    times = [_at(run, each) for each in merges]
    usual_s = median(b - a for a, b in pairwise(times)) if merges[1:] else 0.0
    notes = [
        _note(merge, at - before, usual_s)
        for merge, at, before in zip(merges, times, [times[0], *times], strict=False)
    ]
    lines: list[Line] = []
    rows = zip(merges, times, notes, strict=True)
    for note, row in groupby(rows, key=lambda each: each[2]):
        some = list(row)
        lines.append(_row([merge for merge, *_ in some], some[0][1], some[-1][1], note))
    return lines


def _note(merge: Merge, since_s: float, usual_s: float) -> str:
    """What stands out in a merge; empty if nothing does."""
    refused = [each for each in merge.absent if each.kind == "refused"]
    said = [f"without {each.learner}: {each.reason}" for each in refused]
    said += [f"launched before, in vain: {each}" for each in merge.repeats]
    if usual_s and since_s > LONG_TIMES * usual_s:
        said.append(f"{seconds(since_s)} after the one before, usually {seconds(usual_s)}")
    return "; ".join(said)


def _row(merges: Sequence[Merge], at: float, until: float, note: str) -> Line:
    counts = [len(each.contributions) for each in merges]
    least, most = min(counts), max(counts)
    moved = [each.moved for each in merges]
    said = f"merge {merges[0].t}: "
    if merges[1:]:
        said = f"until {until:.2f} s: {len(merges)} merges, {merges[0].t} to {merges[-1].t}: "
    said += f"{least} contributions" if least == most else f"{least} to {most} contributions"
    if max(moved):
        far = f"{min(moved):.4g} to " if merges[1:] else ""
        said += f", moved by {far}{max(moved):.4g}"
    return Line(at, merges[0].event, said + (f"; {note}" if note else ""))
