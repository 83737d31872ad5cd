"""What happened to one actor, from its start to its end, in lines that a person can read aloud.
Steps and merges in which nothing else happens are one line. What its syncer observed of it, and the
merges, come from the syncer's tape."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.absences import span_of, weight_in
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.merge_story import story_of_fragment, story_of_merge
from ddloco.debugger.message_story import story_of_message
from ddloco.debugger.recorded_job import RecordedJob, job_in
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.story_line import Line
from ddloco.debugger.wording import clipped, phrase
from ddloco.job.protocol.work import StepFinished
from ddloco.monitoring.status_view import seconds
from ddloco.stage.actors.effects import Observe
from ddloco.stage.actors.events import WorkFailed
from ddloco.stage.files.toml import ConfigError
from transport import LaneBroken

OFTEN = 5
"""What an actor observed more often than this is counted, like its steps."""

GAP_S, GAP_TIMES = 2.0, 20.0
"""An actor of which nothing is recorded for so long, and so many times the usual time between two
of its events, stood still, was stopped, or was in a long step."""

SAID = ("reason", "what", "for", "t", "step", "donor", "snapshot", "in", "peer", "syncer")
"""Fields of an observation that are said; the others are numbers of the whole job."""

ROUTINE = frozenset({"step", "merge"})


class _Entry(Struct, frozen=True):
    """One thing that happened; ``kind`` is how it is collapsed: "step" and "merge", or the name of
    an observation."""

    at: float
    event: str
    kind: str
    what: Any
    text: str = ""


def story_of(run: RecordedRun, name: str) -> list[Line]:
    """Return the story of an actor, of all its incarnations or of one; of ``merge:40``, of
    ``fragment:3``, or of the messages of an event, ``message:syncer.1:540``. ``ConfigError`` names
    what there is."""
    kind, _, rest = name.partition(":")
    if kind == "message":
        return story_of_message(run, rest)
    if kind in {"merge", "fragment"} and rest.isdecimal():
        of = story_of_merge if kind == "merge" else story_of_fragment
        return of(job_in(run), int(rest))
    own = [each for each in run.tapes if name in {each, actor_of(each)}]
    if not own:
        there = ", ".join(run.tapes)
        more = "; or give merge:T, fragment:P or message:EVENT" if rest else ""
        raise ConfigError(f"{run.path}: no tape of {name}; there are {there}{more}")
    entries = [entry for each in own for entry in _of_tape(run, each)]
    if isinstance(run, RecordedJob):
        entries += _of_syncers(run, {name, *own})
    entries.sort(key=lambda each: each.at)
    often = {k for k, n in Counter(each.kind for each in entries).items() if n > OFTEN} | ROUTINE
    return list(_collapsed(entries, often - {""}, actor_of(name)))


def _of_tape(run: RecordedRun, who: str) -> Iterator[_Entry]:
    stepper, after = run.stepper(who), run.tape_of(who).header.after
    first, steps = stepper.first, list(stepper.steps())
    times = [run.common(who, step.at) for step in steps]
    usual_s = median(b - a for a, b in pairwise(times)) if times[1:] else 0.0
    for step, at, before in zip(steps, times, [*times[:1], *times], strict=False):
        ref = f"{who}:{step.number}"
        if step.number == first:
            begins = f"continues after event {after}" if after else "starts"
            yield _Entry(at, ref, "", None, f"{who} {begins}")
        if at - before > max(GAP_S, GAP_TIMES * usual_s):
            yield _Entry(before, ref, "", None, f"nothing of {who} for {seconds(at - before)}")
        if isinstance(step.event, StepFinished):
            yield _Entry(at, ref, "step", step.event)
        elif isinstance(step.event, WorkFailed | LaneBroken):
            yield _Entry(at, ref, type(step.event).__name__, None, phrase(step.event))
        for effect in step.effects:
            if type(effect) is Observe and effect.event not in ROUTINE:
                yield _Entry(at, ref, effect.event, None, _words(effect, who))
    if steps:
        last = clipped(phrase(steps[-1].event))
        ref = f"{who}:{steps[-1].number}"
        yield _Entry(times[-1], ref, "", None, f"the tape of {who} ends: {last}")


def _of_syncers(run: RecordedJob, names: set[str]) -> Iterator[_Entry]:
    """What the syncers observed of a learner, and the merges that it is in or not."""
    for merge in run.merges():
        syncer = merge.event.rpartition(":")[0]
        yield _Entry(run.common(syncer, merge.at), merge.event, "merge", merge)
    for syncer, number, at, seen in run.observed():
        if seen.fields["learner"] in names:
            ref = f"{syncer}:{number}"
            said = f"{syncer}: {_words(seen, syncer)}"
            yield _Entry(run.common(syncer, at), ref, f"{syncer} {seen.event}", None, said)


def _words(seen: Observe, who: str) -> str:
    """An observation of an actor, in words; it is about a learner, or about itself."""
    fields: Mapping[str, Any] = seen.fields
    said = [f"{key} {fields[key]}" for key in SAID if fields.get(key) not in {None, "", who}]
    about = f" {fields['learner']}" if fields.get("learner") else ""
    return clipped(f"{seen.event}{about}" + (f": {', '.join(said)}" if said else ""))


def _collapsed(entries: Sequence[_Entry], often: set[str], name: str) -> Iterator[Line]:
    """Make one line of all that is routine between two entries that are not."""
    for routine, row in groupby(entries, key=lambda each: each.kind in often):
        if routine:
            yield from _routine(list(row), name)
        else:
            yield from (Line(each.at, each.event, each.text) for each in row)


def _routine(row: Sequence[_Entry], name: str) -> Iterator[Line]:
    steps = [each.what for each in row if each.kind == "step"]
    merges = [each.what for each in row if each.kind == "merge"]
    said = [_steps(steps)] if steps else []
    said += _merges(merges, name) if merges else []
    for kind in dict.fromkeys(each.kind for each in row if each.kind not in ROUTINE):
        some = [each for each in row if each.kind == kind]
        said.append(some[0].text + (f" (and {len(some) - 1} more)" if some[1:] else ""))
    until = f"until {row[-1].at:.2f} s: " if row[1:] else ""
    yield Line(row[0].at, row[0].event, f"{until}{'; '.join(said)}")


def _steps(steps: Sequence[StepFinished]) -> str:
    first, last = steps[0].step - len(steps[0].before), steps[-1].step
    before, after = next(steps[0].steps())[1].loss, steps[-1].loss
    if first == last:
        return f"inner step {first}, loss {after:.4g}"
    return f"inner steps {first} to {last}, loss {before:.4g} to {after:.4g}"


def _merges(merges: Sequence[Merge], name: str) -> Iterator[str]:
    """In which merges a learner was, with what weight, and in which not, with the cause; of a
    syncer, its merges."""
    weights = [(merge.t, weight_in(merge, name)) for merge in merges]
    there = [(t, weight) for t, weight in weights if weight is not None]
    if name in {actor_of(each.event.rpartition(":")[0]) for each in merges}:
        yield f"{len(merges)} merges, {merges[0].t} to {merges[-1].t}"
        return
    if there:
        mean = sum(weight for _, weight in there) / len(there)
        which = f"merge {there[0][0]}" if not there[1:] else f"{len(there)} merges, "
        which += f"{there[0][0]} to {there[-1][0]}" if there[1:] else ""
        yield f"in {which}, weight {mean:.2f}"
    absent = [merge for merge, (_, weight) in zip(merges, weights, strict=True) if weight is None]
    if absent:
        span = span_of(absent, name)
        which = f"merge {span.first}" if not absent[1:] else f"{len(absent)} merges, "
        which += f"{span.first} to {span.last}" if absent[1:] else ""
        yield f"not in {which}: {span.reason}"
