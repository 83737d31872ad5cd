"""The share of time in which learners compute, by bandwidth and interval, for three methods.

Divided: the time of a step by the time from one step of a learner to its next, on links of 50, 200
and 1,000 Mbit/s, for data-parallel training, for DiLoCo, whose learners wait once an interval (H),
and for decoupled training, whose learners never wait. Two learners and the syncer have a
network namespace each; a learner's link has that rate each way and 5 ms of delay, the syncer's has
no limit of its own. 4 MB of parameters, steps of 0.05 s that need no arithmetic to speak of, sgd.
Measured in the steady state, after the first merge of both. The grid is that of diloco-measured,
whose blocking DiLoCo has 0.5 to 87 %: 31 million parameters on four GPUs, so compare the pattern
and not the figures. Where namespaces are not permitted, a line says so.

``python tests/bench/bench_utilisation.py FIGURES.json PICTURE.svg`` draws what ``--json`` wrote.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools import say

from tests.hosts.cluster import SYNCER, Cluster, wait_until
from tests.hosts.hosts import Hosts, missing

BEYOND = """\
The share is the same at all rates, so the link is not what lacks. Two learners, their workers \
and the syncer share two cores; on 2026-11-26 the same benchmark gave at least 95.0 %. The aim \
would need a core for each process."""

LEARNERS = ("learner-0", "learner-1")
DELAY_S = 0.005
MEGABYTES, STEP_S = 4.0, 0.05
MBITS = (50.0, 200.0, 1000.0)
INTERVALS = (8, 32, 128)
AIM = 0.95

WIDTH, LEFT, TOP, CELL_W, CELL_H = 720, 210, 50, 120, 30
"""Measures of the picture, in pixels."""


def measure(quick: bool) -> dict[str, Any]:
    """The utilisation of each cell."""
    if missing():
        return {"missing": missing()}
    mbits, intervals = (MBITS[:1], INTERVALS[:1]) if quick else (MBITS, INTERVALS)
    rows = [("data-parallel", 0)]
    rows += [(method, each) for method in ("diloco", "decoupled-diloco") for each in intervals]
    cells = []
    for method, interval in rows:
        for mbit in mbits:
            found = run_job(method, interval, mbit, 3.0 if quick else 8.0)
            cells.append({"method": method, "interval": interval, "mbit": mbit, **found})
            say(f"{method}, H {interval}, {mbit:g} Mbit/s: {100 * found['share']:.1f} %")
    return {"cells": cells}


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    if "missing" in figures:
        return [f"not measured: {figures['missing']}"]
    said = []
    for name, cells in rows_of(figures["cells"]).items():
        shares = ", ".join(f"{100 * each['share']:.1f}" for each in cells)
        mbits = ", ".join(f"{each['mbit']:g}" for each in cells)
        sent = ", ".join(f"{each['mb_a_step']:.3f}" for each in cells)
        said.append(f"{name}: {shares} % at {mbits} Mbit/s; {sent} MB each way and step")
    own = [each["share"] for each in figures["cells"] if each["method"] == "decoupled-diloco"]
    said.append(f"decoupled training has at least {100 * min(own):.1f} % in every cell (aim: 95)")
    return said


def rows_of(cells: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The cells of each method and interval, by name."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in cells:
        name = each["method"] + (f", H = {each['interval']}" if each["interval"] else "")
        rows.setdefault(name, []).append(each)
    return rows


def settings(method: str, interval: int) -> tuple[str, ...]:
    """The job's."""
    common = (
        f"job.method={method}",
        "job.learners=2",
        "job.task=tests.bench.slab:slab",
        f"task={{megabytes={MEGABYTES},step_s={STEP_S}}}",
        "inner.optimizer=sgd",
    )
    if not interval:
        return common
    return (*common, f"sync.interval={interval}", "sync.fragments=8", "sync.overlap=4")


def run_job(method: str, interval: int, mbit: float, seconds: float) -> dict[str, Any]:
    """Run it for so long in its steady state, and for two intervals at least."""
    with tempfile.TemporaryDirectory() as place:
        hosts = Hosts([SYNCER, *LEARNERS])
        with hosts:
            cluster = Cluster(hosts, Path(place), settings(method, interval))
            for name in LEARNERS:
                hosts.line(name, "both", delay_s=DELAY_S, mbit=mbit)
            cluster.start(SYNCER, *LEARNERS)
            wait_until(lambda: all_merged(cluster), "a merge of both")
            wait_until(lambda: min(map(cluster.steps, LEARNERS)) >= 2, "steps after the first")
            before, merges = sum(map(cluster.steps, LEARNERS)), len(cluster.merges())
            begun = time.monotonic()
            time.sleep(max(seconds, 2 * interval * STEP_S))
            if method == "diloco":  # Whole rounds: where the time ends would decide else.
                now = len(cluster.merges())
                wait_until(lambda: len(cluster.merges()) > max(now, merges), "the end of a round")
            steps = sum(map(cluster.steps, LEARNERS)) - before
            took_s = time.monotonic() - begun
            merged = len(cluster.merges()) - merges
    whole = merged * MEGABYTES / (8 if method == "decoupled-diloco" else 1)
    each = steps / len(LEARNERS)
    return {
        "share": min(each * STEP_S / took_s, 1.0),
        "steps": steps,
        "merges": merged,
        "mb_a_step": whole / max(each, 1),
    }


def all_merged(cluster: Cluster) -> bool:
    """Whether there was a merge of both."""
    return any(len(each["learners"]) == len(LEARNERS) for each in cluster.merges())


def picture(figures: dict[str, Any]) -> str:
    """A table of shares as SVG, green where learners compute."""
    rows = rows_of(figures["cells"])
    height = TOP + CELL_H * len(rows) + 20
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    font = 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(
            LEFT, 18, "Share of time in which learners compute, by the rate of their links", "start"
        ),
    ]
    for column, mbit in enumerate(dict.fromkeys(each["mbit"] for each in figures["cells"])):
        parts.append(text(LEFT + CELL_W * (column + 0.5), TOP - 10, f"{mbit:,.0f} Mbit/s"))
    for number, (name, cells) in enumerate(rows.items()):
        y = TOP + CELL_H * number
        parts.append(text(LEFT - 10, y + 20, name, "end"))
        for column, each in enumerate(cells):
            share = each["share"]
            colour = f"hsl({120 * share:.0f},55%,{78 - 8 * share:.0f}%)"
            x = LEFT + CELL_W * column
            parts.append(
                f'<rect x="{x + 1}" y="{y + 1}" width="{CELL_W - 2}" height="{CELL_H - 2}" '
                f'fill="{colour}"/>'
            )
            parts.append(text(x + CELL_W / 2, y + 20, f"{100 * share:.1f} %"))
    return "\n".join([*parts, "</svg>", ""])


def text(x: float, y: float, said: str, anchor: str = "middle") -> str:
    """A text of the picture."""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="#333333">{said}</text>'


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(json.loads(Path(sys.argv[1]).read_text())["utilisation"]))
