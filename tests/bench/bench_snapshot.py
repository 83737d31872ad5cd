"""What a snapshot costs a job: the pause of a learner, and how long until it stands.

A job of one syncer and two learners takes snapshots one after another while it trains: a model of
some megabytes, Adam, steps of 0.1 s. Its log has all that is measured.

* Pause, of each learner: its longest step time around a capture, less the median of its steps
  outside, divided by one memory copy of as many bytes as its state has (parameters and Adam's two
  moments). The copy is what cannot be left out: the worker trains on in the same memory. 0 where no
  step was longer; a busy machine adds its own noise, so the median over all captures is told, too.
* Time: seconds from ``snapshot begun`` to ``snapshot taken``, divided by those that one writer
  needs to write and fsync as many bytes as the snapshot has, to the same file system. What 1 leaves
  out: digests, three participants who write at once, the flight of messages, the commit.
* Steps meanwhile: the median of the steps in the same seconds after a learner's cut, by the median
  of those outside: what background writing takes from training.

A size is run where there is memory and disk for it; where there is not, a line says so.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_return import STATES, available_bytes
from tools import median, say

from clocks import actor_of
from snapshot import Store
from tests.hosts.cluster import SYNCER, Cluster, wait_until
from tests.hosts.hosts import Loopback

LEARNERS = ("learner-0", "learner-1")
SIZES_MB = (10.0, 100.0, 1000.0)
QUICK_MB = 1.0
STEP_S = 0.1
SNAPSHOTS, KEPT = 5, 2
STEPS_BEFORE = 20
TAKEN_S_MAX = 300.0
TOUCHED = 3
"""Steps at least that a capture may touch: the one that runs, the one after the copy, one more."""
MEMORY_FACTOR = 45
"""Bytes of memory of the whole job for each byte of parameters; what is being written included."""
SPARE_BYTES = 2e9


def settings(megabytes: float, place: Path) -> tuple[str, ...]:
    """The job's."""
    return (
        "job.task=tests.bench.slab:slab",
        f"task={{megabytes={megabytes},step_s={STEP_S}}}",
        "sync.fragments=4",
        "sync.interval=16",
        "inner.optimizer=adam",
        "snapshot.every_s=2.0",
        f"snapshot.place={place}",
        f"snapshot.keep={SNAPSHOTS + KEPT}",
    )


def measure(quick: bool) -> dict[str, Any]:
    """Pauses, seconds and ratios, by megabytes."""
    figures: dict[str, Any] = {}
    for megabytes in (QUICK_MB,) if quick else SIZES_MB:
        lacks = lacking(megabytes)
        if lacks:
            figures[f"{megabytes:.0f}"] = f"not run: {lacks}"
            continue
        figures[f"{megabytes:.0f}"] = told = one_job(megabytes, 2 if quick else SNAPSHOTS)
        say(f"{megabytes:.0f} MB: {told}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    said = []
    for megabytes, each in figures.items():
        if isinstance(each, str):
            said.append(f"{megabytes} MB: {each}")
            continue
        said.append(
            f"{megabytes} MB: a learner pauses {1e3 * each['pause_s']:.0f} ms (median of "
            f"{each['captures']} captures; worst {1e3 * each['pause_worst_s']:.0f} ms), "
            f"{each['pause_ratio']:.1f} times one copy of its {each['state_mb']:.0f} MB "
            f"({1e3 * each['copy_s']:.1f} ms); there after {each['taken_s']:.2f} s, "
            f"{each['taken_ratio']:.1f} times write and fsync of its {each['bytes_mb']:.0f} MB "
            f"({each['write_s']:.2f} s); steps {each['step_ratio']:.2f} times as long meanwhile"
        )
    return said


def lacking(megabytes: float) -> str:
    """Why a size cannot be run here; empty if it can."""
    need, free = megabytes * 1e6 * MEMORY_FACTOR + SPARE_BYTES, available_bytes()
    if need > free:
        return f"it needs about {need / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
    need = megabytes * 1e6 * STATES * (len(LEARNERS) + 2) * (SNAPSHOTS + KEPT)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if need > free:
        return f"it needs about {need / 1e9:.0f} GB of disk, {free / 1e9:.0f} are free"
    return ""


def one_job(megabytes: float, snapshots: int) -> dict[str, Any]:
    """Run one until so many snapshots stand, and read its logs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        hosts = Loopback([SYNCER, *LEARNERS])
        cluster = Cluster(hosts, folder, settings(megabytes, folder / "place"))
        with hosts:
            cluster.start(SYNCER, *LEARNERS)
            cluster.wait_for([*LEARNERS])

            def enough() -> bool:
                """The first one may meet learners who still compile."""
                there = len(whole(cluster)) > snapshots
                return there and all(cluster.steps(each) > STEPS_BEFORE for each in LEARNERS)

            wait_until(enough, f"{snapshots} snapshots", TAKEN_S_MAX)
            cluster.stop()
        taken = whole(cluster)[1 : snapshots + 1]
        store = Store(folder / "place")
        manifests = [store.manifest(line["snapshot"]) for line in taken]
        cuts = [{actor_of(part.who): part.number for part in each.parts} for each in manifests]
        nbytes = median([each.nbytes for each in manifests])
        state_bytes = int(STATES * megabytes * 1e6)
        figures = {
            **times(cluster, taken, cuts),
            "state_mb": state_bytes / 1e6,
            "bytes_mb": nbytes / 1e6,
        }
        figures["copy_s"] = copy_s(state_bytes)
        figures["write_s"] = write_s(folder / "plain", int(nbytes))
    figures["pause_ratio"] = figures["pause_s"] / figures["copy_s"]
    figures["taken_ratio"] = figures["taken_s"] / figures["write_s"]
    return figures


def whole(cluster: Cluster) -> list[dict[str, Any]]:
    """The log's lines on snapshots that stand, with everybody in them."""
    taken = cluster.events(SYNCER, "snapshot taken")
    return [line for line in taken if len(line["parts"]) == len(LEARNERS) + 1]


def times(cluster: Cluster, taken: list[dict[str, Any]], cuts: list[dict[str, int]]) -> Any:
    """Pauses of the learners, seconds of the snapshots, and steps meanwhile.

    Each actor's time is its own, so a learner's cut is found by the number of its event.
    """
    begun = {line["snapshot"]: line["at"] for line in cluster.events(SYNCER, "snapshot begun")}
    lasted = [line["at"] - begun[line["snapshot"]] for line in taken]
    pauses: list[float] = []
    ratios: list[float] = []
    for learner in LEARNERS:
        # The first ones compile.
        steps = [Step(line) for line in cluster.events(learner, "step")][STEPS_BEFORE // 2 :]
        within: list[list[Step]] = []
        for cut, seconds in zip(cuts, lasted, strict=True):
            after = [each for each in steps if each.number > cut[learner]]
            # The step that runs at the cut ends first; the copy, and the next one, come after it.
            long = [each for each in after if each.at <= after[0].at + seconds]
            within.append(after[:TOUCHED] if len(long) < TOUCHED else long)
        touched = {each.number: each for some in within for each in some}
        outside = [each.step_s for each in steps if each.number not in touched]
        usual = median(outside or [each.step_s for each in touched.values()])
        pauses += [max(0.0, *(each.step_s - usual for each in some)) for some in within if some]
        ratios += [each.step_s / usual for each in touched.values()]
    return {
        "pause_s": median(pauses),
        "pause_worst_s": max(pauses),
        "captures": len(pauses),
        "taken_s": median(lasted),
        "step_ratio": median(ratios),
    }


class Step:
    """A learner's step, by its line in the log."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.number = int(line["ref"].rpartition(":")[2])
        self.at, self.step_s = line["at"], line["step_s"]


def copy_s(nbytes: int) -> float:
    """Seconds of one memory copy between two warm buffers; the fastest of three."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    took: list[float] = []
    for _ in range(3):
        begun = time.perf_counter()
        np.copyto(target, source)
        took.append(time.perf_counter() - begun)
    return min(took)


def write_s(path: Path, nbytes: int) -> float:
    """Seconds to write and fsync one file; the faster of two times."""
    data = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    took: list[float] = []
    for _ in range(2):
        begun = time.perf_counter()
        with path.open("wb") as file:
            file.write(data.data)
            file.flush()
            os.fsync(file.fileno())
        took.append(time.perf_counter() - begun)
        path.unlink()
    return min(took)
