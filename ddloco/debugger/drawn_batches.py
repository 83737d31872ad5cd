"""What learners drew: the same batches as another one, one batch again and again, which shapes."""

from collections.abc import Iterator
from itertools import combinations

from clocks import actor_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.job.protocol.messages import VARIOUS

STEPS_MIN = 8
"""With fewer steps, or merges, of a learner there is no pattern."""

TWINS_SHARE = 0.5
"""Two learners draw the same data if this share of their batches is the same."""


def twins_of(run: RecordedJob) -> Iterator[tuple[str, str, int, int]]:
    """Yield the pairs of learners that drew the same data: how many batches are equal, and of how
    many. An incarnation may draw again what its former one has lost."""
    drawn = {who: {each.batch for *_, each in run.steps_of(who)} for who in run.learners}
    varied = {who: own for who, own in drawn.items() if len(own) >= STEPS_MIN}
    for one, other in combinations(sorted(varied, key=str.encode), 2):
        shared = len(varied[one] & varied[other])
        of = min(len(varied[one]), len(varied[other]))
        if actor_of(one) != actor_of(other) and shared >= TWINS_SHARE * of:
            yield one, other, shared, of


def one_again(run: RecordedJob, learner: str) -> tuple[int, int]:
    """Return where the longest row of equal batches begins, and its length; 0 steps of a learner
    that never drew others."""
    drawn = [(step, each.batch) for _, step, each in run.steps_of(learner)]
    if len({batch for _, batch in drawn}) < STEPS_MIN:
        return 0, 0
    best, since = (0, 0), 0
    for at, (_, batch) in enumerate(drawn):
        since = at if at == 0 or batch != drawn[at - 1][1] else since
        best = max(best, (at - since + 1, -since))
    length, since = best[0], -best[1]
    return drawn[since][0], length


def shapes_of(run: RecordedJob, learner: str) -> str:
    """Return the shapes of a learner's batches; ``VARIOUS`` if they were not always the same."""
    found = {event.shapes for _, event in run.finished(learner)} - {""}
    return found.pop() if len(found) == 1 else VARIOUS if found else ""
