"""How fast recorded runs are explained, in wall time.

A simulated run of eight learners leaves tapes of about 100,000 events. Measured: the events that
machines are stepped through in a second, with every clock and every digest of effects compared
(``replay.Stepper``), over all tapes; ``ddloco why RUN merge T`` and ``why RUN event E`` as a person
types them, start of Python included, for the last merge and the last event, which are the slowest;
and ``ddloco diff`` of the run with itself, which compares everything. Divided: the speed of
stepping by that of reading the same events alone, which any answer from a tape must do. Aims:
20,000 events a second, 2 s for ``why``, and 60 s for a ``diff`` of two runs of 1,000,000 events,
so 6 s here.
"""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from tools import ROOT

from ddloco.debugger.recorded_job import RecordedJob, open_job
from ddloco.job.config import job_from
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.simulation.physics import Physics
from ddloco.simulation.tapes import recorder_maker
from ddloco.simulation.world import World
from ddloco.workers.simulated.work import leaves_of

STEPS = 1720
"""Global steps of 58 events each."""

LEARNERS = 8
FRAGMENTS = 6


def measure(quick: bool) -> dict[str, Any]:
    """Seconds, events a second, and bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        record(STEPS // 40 if quick else STEPS, path)
        run = open_job(path)
        events = sum(each.events for each in run.tapes.values())
        stepped_s = _seconds(lambda: [_step(run, each) for each in run.tapes])
        read_s = _seconds(lambda: [sum(1 for _ in run.events(each)) for each in run.tapes])
        last = max(merge.t for merge in run.merges())
        syncer = run.syncers[0]
        asked = {
            "why_merge": _command("why", str(path), "merge", str(last)),
            "why_event": _command(
                "why", str(path), "event", f"{syncer}:{run.tapes[syncer].events}"
            ),
            "diff": _command("diff", str(path), str(path)),
        }
        return {
            "events": events,
            "step_rate": events / stepped_s,
            "read_rate": events / read_s,
            **{f"{name}_s": seconds for name, (seconds, _) in asked.items()},
            "peak_bytes": max(nbytes for _, nbytes in asked.values()),
        }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    share = figures["step_rate"] / figures["read_rate"]
    speed = f"{share:.1%} of what reading them alone does ({figures['read_rate']:,.0f})"
    waits = "of {events:,} events: why merge {why_merge_s:.1f} s, why event {why_event_s:.1f} s "
    waits += "(aim 2), diff {diff_s:.1f} s (aim 6), "
    return [
        f"{figures['step_rate']:,.0f} events/s stepped (aim 20,000), {speed}",
        waits.format(**figures) + f"{figures['peak_bytes'] / 2**20:.0f} MiB at most",
    ]


def record(steps: int, folder: Path) -> None:
    """Leave the tapes of a simulated run in a folder."""
    plain = {
        "job": {"task": "simulated:tensors", "steps": steps, "learners": LEARNERS},
        "task": {TENSORS: FRAGMENTS},
        "sync": {"fragments": FRAGMENTS, "interval": FRAGMENTS, "fragmentation": "tensor"},
    }
    job = job_from(plain, "bench")
    physics = Physics(leaves_of(FRAGMENTS))
    world = World(job, replace(physics, recorder=recorder_maker(job, folder, arithmetic=False)))
    world.begin()
    world.run()


def _step(run: RecordedJob, incarnation: str) -> None:
    for _ in run.stepper(incarnation).steps():
        pass


def _command(*arguments: str) -> tuple[float, int]:
    """Seconds of a command, and the peak of its resident memory or of that of a process that it
    started, in bytes, whichever is larger."""
    begun = perf_counter()
    command = [sys.executable, "-m", "ddloco", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"ddloco {arguments[0]} ended with {process.returncode}")
    return perf_counter() - begun, used.ru_maxrss * 1024


def _seconds(do: Any) -> float:
    begun = perf_counter()
    do()
    return perf_counter() - begun
