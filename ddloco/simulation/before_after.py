"""What a recorded run came to, beside what it comes to in simulations of it."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from msgspec import Struct
from rich.table import Table

from clocks import actor_of
from ddloco.debugger.recorded_job import open_job

SHOWN_MAX = 16
"""Learners that have a row of their own."""


class RunOutcome(Struct, frozen=True):
    """What a run came to, as its tapes say.

    Attributes:
        seconds: from the first merge's launch to the last merge, on the syncer's clock.
        goodput: the share of the learners' time spent computing; None without a merge.
        merged_tokens: tokens in merges, on average over the fragments.
        contributions: the mean number of contributions in a merge.
        wait_s: the mean time that a launch was held; then its parts.
        shares: by learner, the share of merges that it is in.
    """

    seconds: float
    merges: int
    inner_steps: int
    goodput: float | None
    trained_tokens: int
    merged_tokens: int
    contributions: float
    wait_s: float
    floor_s: float
    quorum_s: float
    grace_s: float
    shares: dict[str, float]


def outcome_of(folder: Path, *, trust: bool = False) -> RunOutcome:
    run = open_job(folder, trust=trust)
    merges = list(run.merges())
    waits = [merge.wait for merge in merges]
    took_part = Counter(
        name
        for merge in merges
        for name in {actor_of(each.learner) for each in merge.contributions}
    )
    return RunOutcome(
        seconds=max((x.at for x in merges), default=0.0)
        - min((x.launched_at for x in merges), default=0.0),
        merges=len(merges),
        inner_steps=run.numbers.inner_steps,
        goodput=run.numbers.goodput,
        trained_tokens=run.numbers.trained_tokens,
        merged_tokens=run.numbers.merged_tokens or 0,
        contributions=_mean([len(merge.contributions) for merge in merges]),
        wait_s=_mean([each.total_s for each in waits]),
        floor_s=_mean([each.floor_s for each in waits]),
        quorum_s=_mean([each.quorum_s for each in waits]),
        grace_s=_mean([each.grace_s for each in waits]),
        shares={
            name: took_part[name] / len(merges) if merges else 0.0
            for name in sorted({actor_of(learner) for learner in run.learners})
        },
    )


def _mean(values: list[Any]) -> float:
    return float(mean(values)) if values else 0.0


def table_of(outcomes: Mapping[str, RunOutcome]) -> Table:
    table = Table(title="the run, and simulations of it", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for name in outcomes:
        table.add_column(name, justify="right")
    for name, (said, form) in ROWS.items():
        values = (getattr(each, name) for each in outcomes.values())
        table.add_row(said, *("-" if value is None else form.format(value) for value in values))
    learners = sorted({name for each in outcomes.values() for name in each.shares})
    for name in learners[:SHOWN_MAX]:
        shares = (each.shares.get(name) for each in outcomes.values())
        cells = ("-" if share is None else f"{share:.1%}" for share in shares)
        table.add_row(f"merges with {name}", *cells)
    return table


ROWS = {
    "seconds": ("seconds from the first launch to the last merge", "{:,.2f}"),
    "merges": ("merges", "{:,}"),
    "inner_steps": ("inner steps", "{:,}"),
    "goodput": ("goodput", "{:.1%}"),
    "trained_tokens": ("tokens trained", "{:,}"),
    "merged_tokens": ("tokens merged, on average over the fragments", "{:,}"),
    "contributions": ("contributions to a merge", "{:.2f}"),
    "wait_s": ("seconds that a launch waited", "{:.4f}"),
    "floor_s": ("  for the launch floor", "{:.4f}"),
    "quorum_s": ("  for the quorum", "{:.4f}"),
    "grace_s": ("  for the grace window", "{:.4f}"),
}
