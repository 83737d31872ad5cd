"""Training across regions: data-parallel beside decoupled, on links of 50 ms and 50 Mbit/s.

Divided: the seconds that data-parallel training needs for a number of tokens, by those of decoupled
training for as many. Four learners and the syncer have a network namespace each; a learner's link
has 50 ms of delay and 50 Mbit/s each way, the syncer's has no limit of its own, which favours
data-parallel, whose gradients all arrive at once. 4 MB of parameters, steps of 0.05 s that need no
arithmetic to speak of, sgd. Both are timed in their steady state, decoupled from the first merge of
all four, data-parallel from its second step; tokens are those of every learner's finished steps.
The paper claims more than 20 times.

Beside it the floor for data-parallel training: a step, one transfer of the parameters down and one
of the gradient up at the rate of the link, and its delay twice. How near it is to that says whether
the link bounds it or we do. Where namespaces are not permitted, a line says so.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

from tools import say

from tests.hosts.cluster import SYNCER, Cluster, wait_until
from tests.hosts.hosts import Hosts, missing

LEARNERS = ("learner-0", "learner-1", "learner-2", "learner-3")
DELAY_S, MBIT = 0.05, 50.0
MEGABYTES, STEP_S = 4.0, 0.05
METHODS = ("decoupled-diloco", "data-parallel")
AIM = 20


def measure(quick: bool) -> dict[str, Any]:
    """Tokens and seconds of each method."""
    if missing():
        return {"missing": missing()}
    seconds = 8.0 if quick else 20.0
    figures: dict[str, Any] = {}
    for method in METHODS:
        figures[method] = run_job(method, seconds)
        say(f"{method}: {figures[method]}")
    ours, theirs = (figures[method]["tokens_per_s"] for method in METHODS)
    figures["ratio"] = ours / theirs
    figures["floor_s"] = STEP_S + 2 * MEGABYTES * 8 / MBIT + 2 * DELAY_S
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    if "missing" in figures:
        return [f"not measured: {figures['missing']}"]
    ours, theirs = (figures[method] for method in METHODS)
    floor_s = figures["floor_s"]
    sooner = (
        f"{figures['ratio']:.1f} times sooner than data-parallel at the same tokens (the paper: "
        f"more than {AIM}): a step of decoupled {1e3 * ours['step_s']:.0f} ms, of data-parallel "
        f"{1e3 * theirs['step_s']:.0f} ms, whose floor on this link is {1e3 * floor_s:.0f} ms"
    )
    bounds = (
        f"what bounds it: decoupled steps take {ours['step_s'] / STEP_S:.2f} times what the task "
        f"asks for, data-parallel ones {theirs['step_s'] / floor_s:.2f} times their floor; at its "
        f"floor data-parallel would be {floor_s / ours['step_s']:.1f} times later; "
        f"{ours['merges']} merges, {ours['averaged']:.1f} learners in each"
    )
    return [sooner, bounds]


def settings(method: str) -> tuple[str, ...]:
    """The job's."""
    return (
        f"job.method={method}",
        "job.task=tests.bench.slab:slab",
        f"task={{megabytes={MEGABYTES},step_s={STEP_S}}}",
        "sync.fragments=8",
        "sync.interval=48",
        "sync.overlap=8",
        "inner.optimizer=sgd",
    )


def run_job(method: str, seconds: float) -> dict[str, Any]:
    """Run it for so long in its steady state."""
    with tempfile.TemporaryDirectory() as place:
        hosts = Hosts([SYNCER, *LEARNERS])
        with hosts:
            cluster = Cluster(hosts, Path(place), settings(method))
            for name in LEARNERS:
                hosts.line(name, "both", delay_s=DELAY_S, mbit=MBIT)
            cluster.start(SYNCER, *LEARNERS)
            wait_until(lambda: all_merged(cluster), "a merge of all four")
            wait_until(lambda: min(map(cluster.steps, LEARNERS)) >= 2, "steps after the first")
            before, merges = sum(map(cluster.steps, LEARNERS)), len(cluster.merges())
            begun = time.monotonic()
            time.sleep(seconds)
            steps = sum(map(cluster.steps, LEARNERS)) - before
            took_s = time.monotonic() - begun
            merged = cluster.merges()[merges:]
            tokens = cluster.events(LEARNERS[0], "step")[-1]["tokens"]
    return {
        "tokens_per_s": steps * tokens / took_s,
        "step_s": len(LEARNERS) * took_s / max(steps, 1),
        "steps": steps,
        "merges": len(merged),
        "averaged": sum(len(each["learners"]) for each in merged) / max(len(merged), 1),
    }


def all_merged(cluster: Cluster) -> bool:
    """Whether there was a merge of all four."""
    return any(len(each["learners"]) == len(LEARNERS) for each in cluster.merges())
