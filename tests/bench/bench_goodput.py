"""A job in which a learner is killed every ten seconds: how much of what ran became merged work.

Divided: the learner-seconds whose steps are in a merge, by the learner-seconds that were alive,
from the first to the last finished step of each incarnation. Four learners in processes of their
own; every ten seconds the next one is killed by the chaos of ``ddloco run``, and is started again
five seconds later. Aim: 0.95.

* Merged work is counted on the syncer's tape: a contribution that was accepted brings its steps of
  its fragment; a step counts whole when all fragments have it. So steps lost with a killed learner,
  steps overwritten while a merge was on its way, and refused contributions all count as lost.
* Beside it the same schedule for elastic data-parallel training, where a step counts when its
  gradient was averaged, and standing still counts as alive.
* Of the decoupled job it is said where the rest went: steps between two merged contributions were
  overwritten by the newer version (a merge takes at least the step that runs when it is pulled, one
  of ``interval``); those after the last one went with the kill, or with the job's end.

A step counts with the median time from one to the next of its incarnation; of a data-parallel one
with that of the step alone, since what comes between is waiting.
"""

import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import msgspec
from tools import ROOT, median, say

from clocks import actor_of
from ddloco.job.protocol.messages import Contribution
from replay import open_tapes, tape
from tests.hosts.cluster import DDLOCO, SYNCER, Log, wait_until

BEYOND = """\
A kill loses what its learner has trained since its last contributions: 5.5 % of 214 s are 2 s \
for each of six kills, and an interval is 2.4 s. The aim would need a shorter interval."""

LEARNERS = 4
EVERY_S, AWAY_S = 10.0, 5.0
METHODS = ("decoupled-diloco", "elastic-data-parallel")
FRAGMENTS = {"decoupled-diloco": 4, "elastic-data-parallel": 1}

JOB = f"""
[job]
name = "goodput"
task = "tests.bench.slab:slab"
steps = 1000000
learners = {LEARNERS}

[task]
megabytes = 0.5
step_s = 0.1

[sync]
fragments = 4
interval = 24

[inner]
optimizer = "sgd"

[transport]
kind = "tcp"
"""
END_S_MAX = 60.0


def measure(quick: bool) -> dict[str, Any]:
    """Learner-seconds alive and merged, by method."""
    seconds = 16.0 if quick else 62.0
    figures: dict[str, Any] = {"seconds": seconds}
    for method in METHODS:
        figures[method] = run_job(method, seconds)
        say(f"{method}: {figures[method]}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    said = []
    for method in METHODS:
        each = figures[method]
        aim = " (aim 95 %)" if method == METHODS[0] else ""
        lost = ", ".join(f"{what} {100 * share:.1f} %" for what, share in each["lost"].items())
        said.append(
            f"{method}: {100 * each['share']:.1f} % of {each['alive_s']:.0f} learner-seconds alive "
            f"became merged work{aim}; {each['kills']} kills in {figures['seconds']:.0f} s, "
            f"{each['back']} learners back in a merge, {each['steps']} steps"
            + (f"; lost: {lost}" if lost else "")
        )
    return said


def schedule(seconds: float) -> str:
    """A kill in turn, every so often."""
    kills = range(1, int((seconds - 1) / EVERY_S) + 1)
    return "\n".join(
        f'[[fault]]\nwhat = "crash"\nwho = "learner-{n % LEARNERS}"\n'
        f"at_s = {n * EVERY_S}\nfor_s = {AWAY_S}\n"
        for n in kills
    )


def run_job(method: str, seconds: float) -> dict[str, Any]:
    """Run it from when all are ready, for so long; what came of it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "job.toml").write_text(JOB)
        (folder / "chaos.toml").write_text(schedule(seconds))
        command = [*DDLOCO, "run", str(folder / "job.toml"), "--processes"]
        command += ["--chaos", str(folder / "chaos.toml"), "--dir", str(folder / "run")]
        command += [f"--set=job.method={method}"]
        log = Log(folder / "run" / "log.jsonl")
        with (folder / "said").open("wb") as said:
            job = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said)
        try:
            wait_until(lambda: [each for each in log.read() if each["event"] == "merge"], "a merge")
            time.sleep(seconds)
            job.send_signal(signal.SIGINT)
            job.wait(END_S_MAX)
        finally:
            job.kill()  # Its actors end with it.
            job.wait()
        return account(log.read(), folder / "run" / "tapes", method)


def account(log: list[dict[str, Any]], tapes: Path, method: str) -> dict[str, Any]:
    """What was alive, and what of it was merged."""
    steps: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in log:
        if line["event"] == "step":
            steps[line["ref"].rpartition(":")[0]].append(line)
    alive_s = sum(each[-1]["at"] - each[0]["at"] for each in steps.values())
    took_s = {who: median([line["step_s"] for line in each]) for who, each in steps.items()}
    if method == METHODS[0]:  # Steps follow each other at once: what is between them counts, too.
        for who, each in steps.items():
            if len(each) > 1:
                took_s[who] = median([b["at"] - a["at"] for a, b in pairwise(each)])
    brought = contributions(tapes)
    merged_s, merged = 0.0, dict[str, list[Contribution]]()
    for line in log:
        if line["event"] == "merge":
            for who in line["learners"]:
                said = brought.get((who, line["t"]))
                merged.setdefault(who, []).extend([said] if said else [])
                merged_s += (said.steps if said else 0) / FRAGMENTS[method] * took_s.get(who, 0.0)
    lost = where_it_went(steps, merged, took_s) if method == METHODS[0] else {}
    return {
        "share": merged_s / alive_s,
        "alive_s": alive_s,
        "merged_s": merged_s,
        "lost": {what: seconds / alive_s for what, seconds in lost.items()},
        "kills": sum(line["event"] == "fault" for line in log),
        "back": sum(not who.endswith(".1") for who in merged),
        "steps": sum(map(len, steps.values())),
        "merges": sum(line["event"] == "merge" for line in log),
    }


def where_it_went(
    steps: dict[str, list[dict[str, Any]]],
    merged: dict[str, list[Contribution]],
    took_s: dict[str, float],
) -> dict[str, float]:
    """Seconds of steps that no merge has, by what became of them."""
    lost = {"overwritten": 0.0, "after the last merge": 0.0}
    for who, each in steps.items():
        a_step = took_s[who] / FRAGMENTS[METHODS[0]]
        for fragment in range(FRAGMENTS[METHODS[0]]):
            parts = sorted(
                (said for said in merged.get(who, []) if said.fragment == fragment),
                key=lambda said: said.step,
            )
            reached = each[0]["step"] - 1
            for said in parts:
                lost["overwritten"] += (said.step - said.steps - reached) * a_step
                reached = said.step
            lost["after the last merge"] += (each[-1]["step"] - reached) * a_step
    return lost


def contributions(tapes: Path) -> dict[tuple[str, int], Contribution]:
    """What was offered, by incarnation and global step, from the syncer's tape."""
    found: dict[tuple[str, int], Contribution] = {}
    found_tapes = open_tapes(tapes.parent)
    (of_syncer,) = (each for each in found_tapes if actor_of(each.incarnation) == SYNCER)
    for record in of_syncer.records():
        if isinstance(record, tape.Event):
            event = msgpack.unpackb(record.event)
            body = event.get("body") or {}
            if body.get("type") == Contribution.__name__:
                found[event["sender"], body["t"]] = msgspec.convert(body, Contribution)
    return found
