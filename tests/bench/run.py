"""Every figure as a ratio against a floor in the same run: ``make bench``.

    .venv/bin/python tests/bench/run.py [--quick] [--json FILE] [--page FILE] [NAME ...]

Each benchmark is a module ``bench_NAME`` with ``measure(quick)``, which returns plain figures, and
``lines(figures)``, which says them as ratios; its docstring says what is divided by what and why
that floor is fair, and its ``BEYOND``, if there is one, what lies between the figures and their
aims. Progress goes to standard error, one line for each result to standard output.
``--quick`` only shows that everything runs: its figures mean nothing. Run it on a quiet machine.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

from page import section, updated
from tools import ROOT, say

NAMES = (
    *("merge", "compress", "door", "handle", "simulator", "roundtrip", "round", "peers"),
    "links",
    *(
        "many_learners",
        "frozen",
        "regions",
        "utilisation",
        "return",
        "snapshot",
        "storage",
        "step",
        "quality",
    ),
    *("fuzz", "goodput", "debugger"),
)
"""From the short ones to the long ones."""


def main() -> int:
    """Run the benchmarks that were named, all of them by default; 1 if any failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--page", type=Path, help="write them into this page of the documentation")
    given = parser.parse_args()
    if given.quick and given.page is not None:
        parser.error("--page: figures of --quick mean nothing")
    names = tuple(name.removeprefix("bench_") for name in given.names) or NAMES
    for name in names:
        if name not in NAMES:
            parser.error(f"no benchmark {name!r}; there are {', '.join(NAMES)}")
    target = given.json.absolute() if given.json is not None else None
    page = given.page.absolute() if given.page is not None else None
    os.chdir(ROOT)  # Worker processes find the task of the example from here.
    figures: dict[str, Any] = {"machine": machine(), "quick": given.quick}
    say("load average {load_average:.2f} on {cores} cores".format(**figures["machine"]))
    failed = False
    for name in names:
        bench = import_module(f"bench_{name}")
        begun, before = time.perf_counter(), machine()
        say(f"{name} ...")
        try:
            figures[name] = in_own_process(name, quick=given.quick)
        except Exception:  # noqa: BLE001, the others still have something to say
            failed = True
            print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
            continue
        took_s = time.perf_counter() - begun
        said = bench.lines(figures[name])
        for line in said:
            print(f"{name}: {line}", flush=True)
        if page is not None:
            text = page.read_text() if page.exists() else ""
            day, beyond = time.strftime("%Y-%m-%d"), getattr(bench, "BEYOND", "")
            new = section(bench.__doc__ or "", said, before, day, took_s, beyond)
            page.write_text(updated(text, {name: new}, NAMES))
        say(f"{name} took {took_s:.0f} s")
    if target is not None:
        target.write_text(json.dumps(figures, indent=2) + "\n")
    return int(failed)


def in_own_process(name: str, *, quick: bool) -> Any:
    """The figures of a benchmark, measured in a process of its own: what one leaves in memory
    neither slows the next one down nor counts as its peak."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        return pool.submit(measured, name, quick).result()


def measured(name: str, quick: bool) -> Any:
    """Measure, in the process of that benchmark."""
    return import_module(f"bench_{name}").measure(quick)


def machine() -> dict[str, Any]:
    """What the absolute figures depend on."""
    cpu = "unknown"
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = found[0].partition(":")[2].strip() if found else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0,
        "load_average": os.getloadavg()[0],
        "python": sys.version.split()[0],
    }


if __name__ == "__main__":
    sys.exit(main())
