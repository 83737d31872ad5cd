"""How fast virtual time passes, and whether it costs the same the longer it lasts.

Divided: the events that the heap world handles in a second with the real machines, by what a bare
heap loop would (push, pop and call a function that does nothing, as often as there are events):
fair, because no simulation that orders events by time can do with less. Beside it: with tapes; the
seconds for a day of 1.2 million chips in eight learners; the speed in the second half of a run
against the first; and the memory that a month of the same takes beyond its third day. Aim: 200,000
events a second without tapes, 100,000 with, the day in ten seconds, no growth. Also: the same with
1,000 learners, aim 20,000; and how many worlds of ``simulate hostile``, which are short and full of
faults, all cores check in a minute, aim 1,000.
"""

import heapq
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from ddloco.job.config import job_from
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.simulation.goodput import Ledger
from ddloco.simulation.physics import Physics
from ddloco.simulation.report import sweep
from ddloco.simulation.scenario import cases_of, find
from ddloco.simulation.tapes import recorder_maker
from ddloco.simulation.world import World
from ddloco.workers.simulated.work import leaves_of
from tests.lab.hostile_world import run_seed

BEYOND = """\
An event of eight learners takes 18 us, all of it the machines' own Python. With 1,000 learners \
half of the time goes to vector clocks. Its aim would need clocks that share the entries which \
all learners have; that of eight learners machines that are compiled."""

LEARNERS = 8
CROWD = 1000
WORLDS = 200
DAY_S = 86_400.0
CASE = "M = 8, 1.2M chips"


def measure(quick: bool) -> dict[str, Any]:
    """Events a second, seconds, and bytes."""
    steps = 60 if quick else 1200
    rates = [_rate(steps) for _ in range(1 if quick else 5)]
    best = max(rates, key=lambda each: each["rate"])
    with tempfile.TemporaryDirectory() as folder:
        taped = _rate(steps // 4, Path(folder))
    return {
        **best,
        "taped_rate": taped["rate"],
        "crowd": 50 if quick else CROWD,
        "crowd_rate": _rate(24, learners=50 if quick else CROWD)["rate"],
        "worlds_minute": _worlds_minute(2 if quick else WORLDS),
        "floor_rate": _floor(best["events"]),
        "day_s": _day(0.02 if quick else 1.0),
        "month_growth_bytes": _growth(0.2 if quick else 30.0),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    rate = (
        f"{figures['rate']:,.0f} events/s at M = {LEARNERS} without tapes (aim 200,000), "
        f"{figures['rate'] / figures['floor_rate']:.1%} of a bare heap loop "
        f"({figures['floor_rate']:,.0f}); with tapes {figures['taped_rate']:,.0f} (aim 100,000)"
    )
    growth = figures["month_growth_bytes"] / 2**20
    return [
        rate,
        f"second half of a run at {figures['second_half']:.2f} times the speed of the first",
        f"{figures['crowd_rate']:,.0f} events/s at M = {figures['crowd']:,} (aim 20,000)",
        f"{figures['worlds_minute']:,.0f} hostile worlds a minute on all cores (aim 1,000)",
        f"a day of 1.2M chips in eight learners takes {figures['day_s']:.1f} s (aim 10)",
        f"a month of it, steps of a minute, grows by {growth:.1f} MiB after the third day",
    ]


def _rate(steps: int, folder: Path | None = None, learners: int = LEARNERS) -> dict[str, float]:
    plain = {
        "job": {"task": "simulated:tensors", "steps": steps, "learners": learners},
        "task": {TENSORS: 6},
        "sync": {"fragments": 6, "interval": 6, "fragmentation": "tensor"},
    }
    job = job_from(plain, "bench")
    physics = Physics(leaves_of(6))
    if folder is not None:
        physics = replace(physics, recorder=recorder_maker(job, folder, arithmetic=False))
    world = World(job, physics)
    world.begin()
    begun = process_time()
    world.run(steps / 2)
    middle, half = process_time(), world.events
    world.run()
    ended = process_time()
    first, second = half / (middle - begun), (world.events - half) / (ended - middle)
    rate = world.events / (ended - begun)
    return {"rate": rate, "events": world.events, "second_half": second / first}


def _worlds_minute(seeds: int) -> float:
    begun = perf_counter()
    found = list(sweep(run_seed, range(seeds), len(os.sched_getaffinity(0)), lambda _: None))
    assert not any(each.violation for each in found), "every invariant holds"
    return 60 * seeds / (perf_counter() - begun)


def _floor(events: int) -> float:
    heap: list[tuple[float, int, Any, Any]] = [(float(n), n, _nothing, None) for n in range(64)]
    begun = process_time()
    for n in range(int(events)):
        at, _, happen, item = heapq.heappop(heap)
        happen(item)
        heapq.heappush(heap, (at + 1.0, n, _nothing, None))
    return events / (process_time() - begun)


def _nothing(_: Any) -> None:
    return None


def _world(*overrides: str) -> World:
    cases = cases_of(find("goodput"), overrides)
    case, scenario = next(each for each in cases if each[0].name == CASE)
    job = scenario.resolved(case.name)
    ledger = Ledger()  # As `ddloco simulate` has it: it also takes in what chips leave behind.
    world = World(job, scenario.physics(job, 0), (), [ledger])
    ledger.watch(world)
    world.begin()
    return world


def _day(days: float) -> float:
    world = _world()
    begun = perf_counter()
    world.run(days * DAY_S)
    return perf_counter() - begun


def _growth(days: float) -> int:
    world = _world("work.step_s=60")
    world.run(days * DAY_S / 10)
    before = _resident()
    world.run(days * DAY_S)
    return _resident() - before


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
