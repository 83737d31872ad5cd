"""What a snapshot costs a job: the pause of a learner, and how long until it stands.

A job of one syncer and its learners takes snapshots one after another while it trains: a model of
some megabytes, steps of which most is sleep, so that a core is free. Its tapes have all that is
measured.

* Pause, of each learner and snapshot: the step that waited for the copy of the learner's state,
  less the median of its steps while none is taken, divided by one memory copy of as many bytes as
  the state has (parameters and moments). The copy is what cannot be left out: the worker trains on
  in the same memory. 0 where that step was no longer than the median.
* Time: seconds from the snapshot's beginning to its manifest, less those in which the last learner
  finished the step that ran, which is part of the picture; divided by those that one writer needs
  to write and fsync as many bytes to the same file system. What 1 leaves out: the copy, digests,
  participants who write at once, lists, folders, the manifest. Both are told.
* Steps meanwhile: the median of the steps between a learner's cut and the manifest, by the median
  of those outside: what background writing takes from training.

A size is run where there is memory and disk for it; where there is not, a line says so.
"""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bench_return import available_bytes
from msgspec.msgpack import decode
from tools import median, say

from clocks import actor_of
from replay import open_tapes
from replay.tape import Event
from snapshot import Manifest, Store
from tests.hosts.cluster import SYNCER, Cluster, wait_until
from tests.hosts.hosts import Loopback

BEYOND = """\
At 100 MB the copy itself takes 21 to 33 ms, where one copy of as many bytes takes 15.5; four \
threads gained nothing. The aim would need a step that does not overwrite what is to be copied, \
and memory for one more state."""

SNAPSHOTS = 4
TAKEN_S_MAX = 400.0
SPARE_BYTES = 2e9
SYNCER_COPIES = 7
"""Bytes of memory of the syncer for each byte of parameters."""


@dataclass(frozen=True)
class Size:
    """A job.

    Attributes:
        megabytes: of parameters.
        step_s: of sleep in a step.
        learners: how many.
        optimizer: of theirs.
        states: bytes of a learner's state for each byte of parameters.
        copies: bytes of its memory for each byte of parameters.
        steps: before the first snapshot that counts.
        snapshots: that count.
    """

    megabytes: float
    step_s: float = 0.1
    learners: int = 2
    optimizer: str = "adam"
    states: int = 3
    copies: int = 13
    steps: int = 20
    snapshots: int = SNAPSHOTS

    @property
    def names(self) -> list[str]:
        """Of the learners."""
        return [f"learner-{number}" for number in range(self.learners)]

    @property
    def lacking(self) -> str:
        """Why it cannot be run here; empty if it can."""
        copies = self.copies * self.learners + SYNCER_COPIES
        need, free = self.megabytes * 1e6 * copies + SPARE_BYTES, available_bytes()
        if need > free:
            return f"it needs about {need / 1e9:.0f} GB of memory, {free / 1e9:.0f} are free"
        copies = (self.states + 1) * self.learners + 2
        need = self.megabytes * 1e6 * copies * (self.snapshots + 3)
        free = shutil.disk_usage(tempfile.gettempdir()).free
        if need > free:
            return f"it needs about {need / 1e9:.0f} GB of disk, {free / 1e9:.0f} are free"
        return ""

    def settings(self, place: Path) -> tuple[str, ...]:
        """The job's."""
        return (
            "job.task=tests.bench.slab:slab",
            f"task={{megabytes={self.megabytes},step_s={self.step_s}}}",
            "sync.fragments=4",
            "sync.interval=16",
            f"sync.quorum={self.learners}",
            f"inner.optimizer={self.optimizer}",
            f"snapshot.every_s={max(2.0, 8 * self.step_s)}",
            f"snapshot.place={place}",
            "snapshot.keep=1000",
        )


QUICK = Size(1.0)
SIZES = (
    Size(10.0),
    Size(100.0, step_s=0.5),
    Size(
        1000.0, step_s=4.0, learners=1, optimizer="sgd", states=2, copies=11, steps=4, snapshots=2
    ),
)
"""The last one as much as 24 GB of memory hold: one learner, one moment; and fewer snapshots,
because each takes half a minute."""


def measure(quick: bool) -> dict[str, Any]:
    """Pauses, seconds and ratios, by megabytes."""
    figures: dict[str, Any] = {}
    for size in (QUICK,) if quick else SIZES:
        lacks = size.lacking
        if lacks:
            figures[f"{size.megabytes:.0f}"] = f"not run: {lacks}"
            continue
        figures[f"{size.megabytes:.0f}"] = told = one_job(size, 2 if quick else size.snapshots)
        say(f"{size.megabytes:.0f} MB: {told}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    said = []
    for megabytes, each in figures.items():
        if isinstance(each, str):
            said.append(f"{megabytes} MB: {each}")
            continue
        said.append(
            f"{megabytes} MB, {each['learners']} learners: a learner pauses "
            f"{1e3 * each['pause_s']:.0f} ms (median of {each['captures']} captures; worst "
            f"{1e3 * each['pause_worst_s']:.0f} ms), {each['pause_ratio']:.1f} times "
            f"(aim 1.5) one copy of its {each['state_mb']:.0f} MB ({1e3 * each['copy_s']:.1f} ms); "
            f"there after {each['taken_s']:.2f} s, of which {each['ran_s']:.2f} s for the "
            f"step that ran; the rest is {each['taken_ratio']:.1f} times write and fsync of its "
            f"{each['bytes_mb']:.0f} MB ({each['write_s']:.2f} s); "
            + (
                f"further steps {each['step_ratio']:.2f} times as long (median of {each['steps']})"
                if each["steps"]
                else "no further step ended before it was there"
            )
        )
    return said


def one_job(size: Size, snapshots: int) -> dict[str, Any]:
    """Run one until so many snapshots stand, and read its tapes."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        cluster = Cluster(Loopback([SYNCER, *size.names]), folder, size.settings(folder / "place"))
        with cluster.hosts:
            cluster.start(SYNCER, *size.names)
            cluster.wait_for(size.names)
            wait_until(
                lambda: all(cluster.steps(each) >= size.steps for each in size.names),
                f"{size.steps} steps", TAKEN_S_MAX,
            )  # fmt: skip
            before = len(whole(cluster, size))
            wait_until(
                lambda: len(whole(cluster, size)) > before + snapshots,
                f"{snapshots} snapshots", TAKEN_S_MAX,
            )  # fmt: skip
            cluster.stop()
        store = Store(folder / "place")
        # The one after those steps may have begun before them.
        taken = whole(cluster, size)[before + 1 : before + snapshots + 1]
        listed = [store.manifest(each.id) for each in store.snapshots()]
        manifests = [each for each in listed if each.snapshot in taken]
        nbytes = int(median([each.nbytes for each in manifests]))
        state_bytes = int(size.states * size.megabytes * 1e6)
        figures = {
            **times(folder, size, manifests),
            "learners": size.learners,
            "state_mb": state_bytes / 1e6,
            "bytes_mb": nbytes / 1e6,
            "copy_s": copy_s(state_bytes),
            "write_s": write_s(folder / "plain", nbytes),
        }
    figures["pause_ratio"] = figures["pause_s"] / figures["copy_s"]
    figures["taken_ratio"] = (figures["taken_s"] - figures["ran_s"]) / figures["write_s"]
    return figures


def whole(cluster: Cluster, size: Size) -> list[str]:
    """The committed snapshots that contain all actors."""
    taken = cluster.events(SYNCER, "snapshot taken")
    return [line["snapshot"] for line in taken if len(line["parts"]) == size.learners + 1]


@dataclass(frozen=True)
class Told:
    """What a tape says: event ``n``, at ``at`` seconds of its actor."""

    n: int
    at: float
    kind: str


def events(folder: Path, actor: str) -> list[Told]:
    """Those of an actor."""
    tape = next(each for each in open_tapes(folder / actor) if actor_of(each.incarnation) == actor)
    records = (each for each in tape.records() if isinstance(each, Event))
    return [Told(each.n, each.at, decode(each.event)["type"]) for each in records]


class Meanwhile:
    """What a learner's tape says of the snapshots.

    Each actor's time is its own, so a cut is found by the number of the event that brought it.

    Args:
        told: its events.
        settled: how many steps are passed over.
        cuts: the number of its event, and the seconds until the manifest, of each snapshot.

    Attributes:
        ran: seconds in which the step ended that ran at the cut.
        waited: seconds of the one after it, which waited for the copy.
        others: those of further steps until the manifest.
        usual: the median of all that touch no snapshot.
    """

    def __init__(self, told: list[Told], settled: int, cuts: list[tuple[int, float]]) -> None:
        ends = [each for each in told if each.kind == "StepFinished"]
        steps = [(end.n, end.at, end.at - last.at) for last, end in pairwise(ends)]
        self.ran, self.waited, self.others = list[float](), list[float](), list[float]()
        touched: set[int] = set()
        for n, seconds in cuts:
            (begun,) = (each.at for each in told if each.n == n)
            first, second, *more = (each for each in steps if each[0] > n)
            others = [each for each in more if each[1] < begun + seconds]
            self.ran.append(first[1] - begun)
            self.waited.append(second[2])
            self.others += [step_s for _, _, step_s in others]
            touched.update(n for n, _, _ in (first, second, *others))
        self.usual = median([step_s for n, _, step_s in steps[settled:] if n not in touched])


def times(folder: Path, size: Size, manifests: list[Manifest]) -> dict[str, Any]:
    """Pauses of the learners, seconds of the snapshots, and steps meanwhile."""
    cuts = [{actor_of(part.who): part.number for part in each.parts} for each in manifests]
    took: list[float] = []
    told = events(folder, SYNCER)
    for cut in cuts:
        (begun,) = (each for each in told if each.n == cut[SYNCER])
        stood = next(each for each in told if each.n > begun.n and each.kind == "Committed")
        took.append(stood.at - begun.at)
    learners = [
        Meanwhile(
            events(folder, name),
            size.steps // 2,
            list(zip([cut[name] for cut in cuts], took, strict=True)),
        )
        for name in size.names
    ]
    pauses = [max(0.0, each - one.usual) for one in learners for each in one.waited]
    ratios = [each / one.usual for one in learners for each in one.others]
    return {
        "pause_s": median(pauses),
        "pause_worst_s": max(pauses),
        "captures": len(pauses),
        "taken_s": median(took),
        "ran_s": median([max(each) for each in zip(*(one.ran for one in learners), strict=True)]),
        "step_ratio": median(ratios) if ratios else None,
        "steps": len(ratios),
    }


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
