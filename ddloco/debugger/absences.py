"""In how many merges a learner is, from which it was absent, and what kept it away. Absences in a
row are one span with one cause. What is said at a single merge is often the consequence: who was
silent for ten seconds holds an old version when it is back."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from clocks import actor_of
from ddloco.debugger.merge_history import Merge
from ddloco.debugger.recorded_job import RecordedJob

CAUSES = frozenset({"lost", "refused", "silent"})
"""Kinds of absences that follow from no earlier one; the first that a span has is its cause."""

SPANS_SHOWN = 5


class Span(Struct, frozen=True):
    """Merges in a row that a learner is not in.

    Attributes:
        first: the global step of the first one.
        event: the syncer's event that decided that; empty if it was before the tape begins.
        for_s: from the first of them to the last, in seconds.
    """

    first: int
    last: int
    merges: int
    reason: str
    event: str
    for_s: float = 0.0

    def line(self) -> str:
        which = f"merge {self.first}"
        if self.merges > 1:
            which = f"merges {self.first} to {self.last} ({self.merges} in a row)"
        return f"not in {which}: {self.reason}" + (f", at {self.event}" if self.event else "")


class Absences(Struct, frozen=True):
    """A learner and the merges of a run.

    Attributes:
        before: how many were done before the first that it is in; all, if it is in none.
    """

    learner: str
    present: int
    merges: int
    before: int
    spans: tuple[Span, ...]

    def lines(self) -> list[str]:
        """Return it in words: the longest absences, in their order."""
        longest = sorted(self.spans, key=lambda each: -each.merges)[:SPANS_SHOWN]
        more = len(self.spans) - len(longest)
        return [
            f"{self.learner} is in {self.present} of {self.merges} merges",
            *(f"  {each.line()}" for each in self.spans if each in longest),
            *([f"  and {more} shorter {'absence' if more == 1 else 'absences'}"] if more else []),
        ]


def absences_of(run: RecordedJob, names: Iterable[str] = ()) -> list[Absences]:
    merges = sorted(run.merges(), key=lambda each: each.t)
    there = [{actor_of(each.learner) for each in merge.contributions} for merge in merges]
    return [_of(merges, there, name) for name in names or run.job.learner_names()]


def _of(merges: Sequence[Merge], there: Sequence[set[str]], name: str) -> Absences:
    spans: list[Span] = []
    pairs = zip(merges, there, strict=True)
    for absent, row in groupby(pairs, key=lambda each: name not in each[1]):
        if absent:
            spans.append(span_of([merge for merge, _ in row], name))
    away = sum(each.merges for each in spans)
    begins_late = spans and spans[0].first == merges[0].t
    before = spans[0].merges if begins_late else 0
    return Absences(name, len(merges) - away, len(merges), before, tuple(spans))


def weight_in(merge: Merge, name: str) -> float | None:
    found = (each for each in merge.contributions if actor_of(each.learner) == name)
    return next((each.weight for each in found), None)


def span_of(row: Sequence[Merge], name: str) -> Span:
    """Return merges in a row that a learner is not in, with the cause."""
    prefix = f"{name}."
    told = [a for m in row for a in m.absent if a.learner == name or a.learner.startswith(prefix)]
    cause = next((each for each in told if each.kind in CAUSES), None)
    if cause is None and told:
        # Reasons are alike that differ in their numbers alone.
        alike = [re.sub(r"[\d.,]+", "#", each.reason) for each in told]
        usual, _ = Counter(alike).most_common(1)[0]
        cause = told[alike.index(usual)]
    which = row[0].t, row[-1].t, len(row)
    reason, event = "it was not connected", row[0].launched
    if cause is not None:
        reason, event = cause.reason, cause.event
    return Span(*which, reason, event, max(row[-1].at - row[0].at, 0.0))
