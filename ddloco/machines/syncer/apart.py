"""What makes one learner of a job differ from the others. The syncer says it while the job runs,
``ddloco why`` of its tapes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from clocks import actor_of
from ddloco.job.config import Job
from ddloco.job.protocol.messages import VARIOUS

TOKENS_TIMES = 3.0
"""How many times the others' tokens of a step is another way to count them."""

TOKENS_LEARNERS_MIN = 3
"""Of two learners that count otherwise, nobody can say which is wrong."""

HELD_OUT_TIMES = 3.0
"""How many times the training loss the held-out loss is far from it."""

LEAST_SHARE = 1e-3
"""Losses below this share of the first ones are next to nothing."""


def own_batches(job: Job) -> set[str]:
    """The learners, by name, whose batches the job file says to be others."""
    return {name for name, table in job.learner.items() if table.batch is not None}


def counts_otherwise(counted: Mapping[str, float]) -> tuple[str, str]:
    """Return the one learner that counts far more or fewer tokens a step than all others, which
    agree, and that in words; empty if there is none. Given are tokens a step by incarnation."""
    if len({actor_of(who) for who in counted}) < TOKENS_LEARNERS_MIN:
        return "", ""
    usual = median(counted.values())
    apart = [
        who
        for who, tokens in counted.items()
        if not usual / TOKENS_TIMES <= tokens <= usual * TOKENS_TIMES
    ]
    if len({actor_of(who) for who in apart}) != 1:
        return "", ""
    learner = apart[0]
    others = median(tokens for who, tokens in counted.items() if who != learner)
    return learner, f"it counts {counted[learner]:g} tokens a step, the others {others:g}"


def shaped_otherwise(shapes: Mapping[str, str]) -> tuple[str, str]:
    """Return the one learner whose batches have other shapes than those of all others, which agree,
    and that in words; empty if there is none. Given are shapes by incarnation; learners whose
    batches vary are left out."""
    known = {who: each for who, each in shapes.items() if each and each != VARIOUS}
    found = Counter(known.values()).most_common()
    if len({actor_of(who) for who in known}) < TOKENS_LEARNERS_MIN or len(found) != 2:
        return "", ""
    (usual, _), (other, _) = found
    apart = [who for who, each in known.items() if each == other]
    if len({actor_of(who) for who in apart}) != 1:
        return "", ""
    return apart[0], f"its batches are {other}, those of the others {usual}"


def far_held_out(held_out: float, training: Sequence[float], first: float) -> str:
    """Say that a held-out loss is far from the training losses; empty if it is not. ``first`` is a
    first loss, beside which both may be next to nothing."""
    if not training:
        return ""
    usual = median(training)
    if not held_out > max(HELD_OUT_TIMES * usual, LEAST_SHARE * abs(first)) or not first:
        return ""
    times = f"{held_out / usual:.1f} times " if usual > 0 else "above "
    return f"the held-out loss is {times}the training loss: {held_out:.4g} and {usual:.4g}"
