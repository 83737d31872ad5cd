"""Where two runs part first, of what kind the difference is, and how far they part over time."""

import math
import struct
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.alignment import AlignedRun, Alignment, Item, Key, first_differences
from ddloco.debugger.comparison_table import WIDTH, Row, entry, table, title_lines
from ddloco.debugger.divergence_screen import CAUSES
from ddloco.debugger.event_alignment import AlignedEvents, event_difference
from ddloco.debugger.learner_time import times_apart
from ddloco.debugger.merge_processes import merges_in
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.wording import LISTED_MAX, listed
from ddloco.job.protocol.work import tensors_apart
from ddloco.replayer.recording import run_folder_of
from ddloco.replayer.what_if import change_of
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.run_identity import DDLOCO, SOURCE, changes
from ddloco.workers.task_sources import changed_lines, kept_sources

RECORDED = "The same inputs led to another result; what was recorded differently is named below."

TIMING = (
    "Arrival times or pacing decided otherwise, which nothing computed. A run along the tapes of "
    "the other one has the same: ddloco run --schedule."
)

WHY = {"data": CAUSES["DATA"], "arithmetic": CAUSES["ARITHMETIC"], "timing": TIMING}

Class = Literal["data", "arithmetic", "timing", "code", "environment", "configuration"]
"""What kind of difference it is. data: another batch. timing: arrival times or pacing decided
otherwise. The others: the same inputs led to another result; ``code``, ``environment`` or
``configuration`` if only that was recorded differently, else ``arithmetic``."""


class Difference(Struct, frozen=True):
    """One item that differs although all that it was computed from is equal, with the event of each
    run that shows it."""

    what: str
    kind: Class
    detail: str
    one: str
    other: str
    values: tuple[Row, ...] = ()

    def lines(self, names: tuple[str, str]) -> list[str]:
        """Return it as the screen of a replay that differs has it, of runs with these names."""
        events = Row("shown at", self.one, self.other)
        lines = title_lines(f"DIFFERENT {self.kind.upper()}: {self.what}", "")
        lines += table([*self.values, events], names)
        lines += [] if self.values else entry("how", self.detail, 4)
        lines += entry("equal", "everything that it was computed from", 1)
        cause = WHY.get(self.kind, RECORDED)
        return [*lines, *textwrap.wrap(f"cause: {cause}", WIDTH, subsequent_indent="  ")]


class Distance(Struct, frozen=True):
    """How far a learner's losses have parted: from the inner step ``since`` on, by ``most`` at step
    ``most_at``, and at the last step that both runs have."""

    learner: str
    since: int
    most: float
    most_at: int
    last: int
    one: float
    other: float

    def line(self) -> str:
        return (
            f"losses of {self.learner} differ from inner step {self.since} on, by at most "
            f"{self.most:.4g} (step {self.most_at}); at step {self.last} they are "
            f"{self.one:.6g} and {self.other:.6g}"
        )


class RunDiff(Struct, frozen=True):
    """What ``compare`` found.

    Attributes:
        recorded: what was recorded differently (settings, versions, sources), in words.
        first: the differences whose causes are all equal, in a causal order of the first run.
        computations: of how many computations with equal inputs the results are equal, in words.
        times: for which learners a step took far longer in one run, in words; this makes no
            difference.
        names: of the two run folders.
    """

    equal: int
    differing: int
    recorded: tuple[str, ...]
    first: tuple[Difference, ...]
    batches: tuple[str, ...]
    distances: tuple[Distance, ...]
    held_out: tuple[float, float] | None
    only: tuple[str, ...]
    compared: str
    notes: tuple[str, ...] = ()
    computations: tuple[str, ...] = ()
    times: tuple[str, ...] = ()
    names: tuple[str, str] = ("the one", "the other")

    @property
    def same(self) -> bool:
        """Whether everything that both runs have is equal, and neither has more."""
        return not (self.differing or self.only or self.notes)

    def lines(self) -> list[str]:
        recorded = [f"recorded differently: {each}" for each in self.recorded[:LISTED_MAX]]
        recorded += self.notes
        if self.same:
            return [*recorded, f"equal: {self.equal:,} {self.compared}, to the bit", *self.times]
        lines: list[str] = []
        for each in self.first[:1]:
            lines += each.lines(self.names)
        more = len(self.first) - 1
        if more > 0:
            lines.append(f"{more:,} more that do not follow from it or from each other:")
        lines += [f"  {each.what}; cause: {each.kind}" for each in self.first[1:LISTED_MAX]]
        lines += [*recorded, *self.batches]
        lines += [*self.computations, *self.only]
        lines += [each.line() for each in self.distances]
        if self.held_out is not None:
            lines.append(f"held-out loss: {self.held_out[0]:.6g} and {self.held_out[1]:.6g}")
        lines += self.times
        lines.append(f"of {self.compared}, {self.equal} are equal, {self.differing} differ")
        return lines


def compare(one: RecordedRun, other: RecordedRun, processes: int = 1) -> RunDiff:
    """Compare two runs by what their items mean; times and event numbers do not count.
    ``ConfigError`` if the method of one of the jobs has no merges, or only one of them is a job."""
    mine, theirs = _aligned(one, other, processes)
    both = [key for key in mine.items if key in theirs.items]
    differing = sum(mine.items[key].content != theirs.items[key].content for key in both)
    recorded = list(_recorded(one, other))
    keys = first_differences(mine.items, theirs.items)
    sums = one.clock_sums(mine.items[key].event for key in keys)
    first = tuple(
        _difference(key, mine, theirs, recorded, (one, other))
        for key in sorted(keys, key=lambda key: (not _alone(key), sums[mine.items[key].event], key))
        if not _shown_before(key, mine, keys)
    )
    held_out = None
    if mine.held_out is not None and theirs.held_out is not None:
        held_out = (mine.held_out, theirs.held_out)
    return RunDiff(
        equal=len(both) - differing,
        differing=differing,
        recorded=tuple(said for _, said in recorded),
        first=first,
        batches=tuple(_batches(mine, theirs)) if differing and mine.losses else (),
        distances=tuple(_distances(mine, theirs)) if differing else (),
        held_out=held_out,
        only=(*_only(mine, theirs, str(one.path)), *_only(theirs, mine, str(other.path))),
        compared=mine.compared,
        notes=(*mine.notes, *theirs.notes),
        computations=tuple(_computations(mine, theirs)),
        times=tuple(_times(one, other)),
        names=_names_of(one, other),
    )


def _names_of(one: RecordedRun, other: RecordedRun) -> tuple[str, str]:
    mine, theirs = (run_folder_of(run.path).resolve().name for run in (one, other))
    return (mine, theirs) if mine != theirs else ("the one", "the other")


def _times(one: RecordedRun, other: RecordedRun) -> list[str]:
    if isinstance(one, RecordedJob) and isinstance(other, RecordedJob):
        return times_apart(one, other)
    return []


def _aligned(one: RecordedRun, other: RecordedRun, processes: int) -> tuple[Alignment, Alignment]:
    jobs = [run for run in (one, other) if isinstance(run, RecordedJob)]
    if not jobs:
        return AlignedEvents(one), AlignedEvents(other)
    if len(jobs) == 1:
        raise ConfigError(f"{one.path} and {other.path}: only one of them is of a job")
    with merges_in(processes, jobs) as merges:
        return AlignedRun(jobs[0], merges[0]), AlignedRun(jobs[1], merges[1])


def _alone(key: Key) -> bool:
    """Whether an item depends on nothing else; such items are named first."""
    return key.kind in {"batch", "computation"}


def _shown_before(key: Key, mine: Alignment, keys: Sequence[Key]) -> bool:
    """Whether an event only tells of the end of a computation that is itself among the items."""
    event = mine.items[key].event
    return key.kind == "event" and any(
        each.kind == "computation" and mine.items[each].event == event for each in keys
    )


def _difference(
    key: Key,
    mine: Alignment,
    theirs: Alignment,
    recorded: Sequence[tuple[Class, str]],
    runs: tuple[RecordedRun, RecordedRun],
) -> Difference:
    one, other = mine.items[key], theirs.items[key]
    kind: Class
    values: tuple[Row, ...] = ()
    if key.kind in {"event", "computation"}:
        rest, detail = event_difference(key, one, other, runs)
        kind = _kind(key, recorded)
        if rest == "other event" or (rest == "other effects" and kind == "arithmetic"):
            kind = "timing"  # Of the same events only their times were not compared.
    elif one.decided != other.decided:
        label, x, y = _decided(key, one.decided, other.decided)
        kind, values = "timing", (Row(label, x, y),)
        detail = f"{label} {x} in the one, {y} in the other"
    elif key.kind == "batch":
        kind = "code" if {each for each, _ in recorded} == {"code"} else "data"
        [x], [y] = one.computed, other.computed
        detail = f"batch {x.hex()[:12]} in the one, {y.hex()[:12]} in the other"
        values = (Row("batch", x.hex()[:12], y.hex()[:12]),)
    else:
        kind = _kind(key, recorded)
        detail = _computed(key, mine, theirs)
    return Difference(str(key), kind, detail, one.event, other.event, values)


SETTINGS: dict[str, tuple[str, ...]] = {
    "merge": ("outer.", "sync.", "compress.", "merges."),
    "batch": ("task.", "job.seed", "job.task", "learner."),
    "step": ("inner.", "task.", "job.seed", "job.task", "worker.", "learner."),
    "update": ("inner.", "task.", "job.seed", "job.task", "worker.", "learner."),
    "install": ("compress.",),
    "contribution": ("transport.", "inner.", "task.", "compress."),
    "event": ("program", "options."),
    "computation": (),
}
"""Which settings can change an item of a kind directly."""


def _kind(key: Key, recorded: Sequence[tuple[Class, str]]) -> Class:
    """Say why the same inputs led to another result: the one thing that was recorded differently,
    or a setting on which such an item depends."""
    categories: set[Class] = {category for category, _ in recorded}
    if key.kind == "computation":  # Its arguments are equal, so no setting can have changed it.
        categories.discard("configuration")
    if len(categories) == 1:
        return categories.pop()
    changed = (said for category, said in recorded if category == "configuration")
    if any(f" {prefix}" in said for said in changed for prefix in SETTINGS[key.kind]):
        return "configuration"
    return "arithmetic"


def _decided(key: Key, one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[str, str, str]:
    """What was decided, and how in each run."""
    match key.kind:
        case "merge":
            return "took", _names(one), _names(other)
        case "install":
            return "installed", _versions(one), _versions(other)
        case "batch":
            return "after", f"{one[0]} batches", f"{other[0]} batches"
        case "step":
            return "with", f"the state of {one}", f"the state of {other}"
        case _:
            mine, theirs = (f"version {d[0]}, after step {d[1]}" for d in (one, other))
            return "trained from", mine, theirs


def _computed(key: Key, mine: Alignment, theirs: Alignment) -> str:
    one, other = mine.items[key], theirs.items[key]
    match key.kind:
        case "step" | "update":
            return _step_differs(key, mine, theirs)
        case "install":
            return "the same versions have other bytes"
        case "contribution":
            return _contribution_differs(one, other)
        case _:
            inputs = [cause for cause in one.causes if cause.kind == "contribution"]
            same = "the same contributions"
            if not all(cause in mine.items and cause in theirs.items for cause in inputs):
                same += " as far as they are on the tapes"
            return f"the result differs, of {same}{_in_tensors(one, other)}"


def _step_differs(key: Key, mine: Alignment, theirs: Alignment) -> str:
    """A loss or the tensors after an update differ, and nothing that they were computed from."""
    one, other = mine.items[key], theirs.items[key]
    what = f"differs{_in_tensors(one, other)}; its loss, its batch"
    if key.kind == "step":
        what = f"the loss differs{_first_update(key, mine, theirs)}; its batch"
    if key.number > 1 and {one.causes[0].kind, other.causes[0].kind} != {"update"}:
        return f"{what} is equal, and the parameters before it are not on the tapes"
    return f"{what} and the parameters before it are equal"


def _first_update(key: Key, mine: Alignment, theirs: Alignment) -> str:
    """After which inner step, from one on, a learner's parameters differ first, and in what."""
    for each, item in mine.items.items():
        later = each.kind == "update" and each.who == key.who and each.number >= key.number
        if later and each in theirs.items and item.content != theirs.items[each].content:
            named = _in_tensors(item, theirs.items[each])
            return f", and after inner step {each.number} the parameters differ{named}"
    return ""


def _contribution_differs(one: Item, other: Item) -> str:
    """A contribution differs, and no update of its learner before it."""
    [mine, *_], [theirs, *_] = one.causes, other.causes
    named, parameters = _in_tensors(one, other), f"the parameters after inner step {mine.number}"
    if {mine.kind, theirs.kind} != {"update"}:
        return f"differs{named}; {parameters} are not on the tapes"
    return f"how it was encoded differs{named}; {parameters} are equal"


def _in_tensors(one: Item, other: Item) -> str:
    """The tensors in which two updates, two contributions, or two results of merges differ, in
    words, and the others; empty if their digests are not on the tapes."""
    differ, equal = tensors_apart(one.tensors[0], one.tensors[1], other.tensors[1])
    also = f" ({listed(equal)} equal)" if equal else ""
    return f" in {listed(differ)}{also}" if differ else ""


def _computations(mine: Alignment, theirs: Alignment) -> Iterator[str]:
    both = [k for k in mine.items if k.kind == "computation" and k in theirs.items]
    equal = sum(mine.items[key].content == theirs.items[key].content for key in both)
    if any(key.kind == "computation" for items in (mine.items, theirs.items) for key in items):
        said = f"{len(both):,} were done in both runs with equal arguments and arrays"
        yield f"computations: {said}; the results of {equal:,} of them are equal"


def _batches(mine: Alignment, theirs: Alignment) -> Iterator[str]:
    equal = 0
    for who in mine.losses:
        numbers = [each.number for each in mine.items if each[:2] == ("batch", who)]
        shared = [n for n in numbers if Key("batch", who, n) in theirs.items]
        parted = [n for n in shared if _batch(mine, who, n) != _batch(theirs, who, n)]
        equal += len(shared) - len(parted)
        if parted:
            before = f"{shared[0]} to {parted[0] - 1} equal, " if parted[0] > shared[0] else ""
            differ = listed([str(each) for each in parted])
            yield f"batches of {who}: {before}{differ} {'differ' if parted[1:] else 'differs'}"
    yield f"batches: {equal:,} that both runs have are equal"


def _batch(run: Alignment, who: str, step: int) -> tuple[Any, ...]:
    return run.items[Key("batch", who, step)].computed


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _versions(pairs: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(f"version {version} of fragment {p}" for p, version in pairs) or "nothing"


def _distances(one: Alignment, other: Alignment) -> Iterator[Distance]:
    """How far the losses of each learner part over the inner steps that both runs have."""
    for learner, mine in one.losses.items():
        theirs = other.losses.get(learner, {})
        shared = sorted(mine.keys() & theirs.keys())
        apart = [step for step in shared if _bits(mine[step]) != _bits(theirs[step])]
        if not apart:
            continue
        gaps = {step: abs(mine[step] - theirs[step]) for step in apart}
        most_at = max(apart, key=lambda step: (math.isnan(gaps[step]), gaps[step]))
        last = shared[-1]
        yield Distance(learner, apart[0], gaps[most_at], most_at, last, mine[last], theirs[last])


def _bits(loss: float) -> bytes:
    return struct.pack("<d", loss)


COUNTED = {"step": "inner steps", "merge": "merges", "event": "events"}
"""The items that are counted where only one run has them."""


def _only(one: Alignment, other: Alignment, where: str) -> Iterator[str]:
    counts: dict[tuple[str, str], int] = {}
    for key in one.items:
        if key not in other.items and key.kind in COUNTED:
            who = key.who if key.kind != "merge" else ""
            counts[key.kind, who] = counts.get((key.kind, who), 0) + 1
    for (kind, who), count in sorted(counts.items()):
        of = f" of {who}" if who else ""
        yield f"only in {where}: {count} {COUNTED[kind]}{of}"


# What was recorded differently.


def _recorded(one: RecordedRun, other: RecordedRun) -> Iterator[tuple[Class, str]]:
    """Compare settings and identities: versions of code, sources, environment, files."""
    yield from _settings(one, other)
    lines = [*_changed_sources(one, other)]
    yield from lines
    mine, theirs = ({actor_of(name): name for name in run.tapes} for run in (one, other))
    seen: set[str] = set()
    for actor in sorted(mine.keys() & theirs.keys()):
        for each in changes(one.identity(mine[actor]), other.identity(theirs[actor])):
            if each.key in seen or (lines and each.key.startswith(SOURCE)):
                continue
            seen.add(each.key)
            if each.key == DDLOCO or each.key.startswith(SOURCE):
                yield "code", f"code: {each.what} {each.then} and {each.now}"
            else:
                said = f"{each.what} {each.then} and {each.now}, of {actor}"
                yield "environment", f"environment: {said}"


def _changed_sources(one: RecordedRun, other: RecordedRun) -> Iterator[tuple[Class, str]]:
    mine, theirs = (kept_sources(run_folder_of(run.path)) for run in (one, other))
    for line in changed_lines(mine, theirs):
        yield "code", f"task source: {line}"


def _settings(one: RecordedRun, other: RecordedRun) -> Iterator[tuple[Class, str]]:
    mine, theirs = one.settings(), other.settings()
    for key in sorted({*mine, *theirs}):
        x, y = mine.get(key, "not set"), theirs.get(key, "not set")
        if x != y:
            yield "configuration", f"setting: {key} = {x!r} and {y!r}"
    changes = [_change(run) for run in (one, other)]
    if changes[0] != changes[1]:
        yield "configuration", f"setting: merges.changed = {changes[0]} and {changes[1]}"


def _change(run: RecordedRun) -> str:
    """How a run's merges were changed when it followed the tapes of another one."""
    found = (change_of(each.header.facts) for each in run.tapes.values())
    change = next((each for each in found if each is not None), None)
    return change.said if change is not None else "not at all"
