"""The merges of long tapes, computed in processes of their own while this one reads other tapes."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from operator import eq
from pathlib import Path

import msgspec

from ddloco.debugger.merge_history import Merge
from ddloco.debugger.recorded_job import RecordedJob, open_job
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.stage.process.process_pool import process_pool

LONG_EVENTS = 30_000
"""From so many events of syncers on, a process of its own is worth the second that it takes to
start."""

Encoded = list[bytes] | None
"""Merges, each as msgpack; None if they could not be computed."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Merge).decode


def processes_for(recorded: Sequence[RecordedRun]) -> int:
    runs = [run for run in recorded if isinstance(run, RecordedJob)]
    long = sum(run.tapes[syncer].events for run in runs for syncer in run.syncers) >= LONG_EVENTS
    tapes = sum(len(run.syncers) for run in runs)
    return max(min(tapes, len(os.sched_getaffinity(0))), 1) if long else 1


@contextmanager
def merges_in(processes: int, runs: Sequence[RecordedJob]) -> Iterator[list[Iterator[Merge]]]:
    """Compute the merges of some runs; yields, for each run, its merges syncer after syncer."""
    if processes <= 1:
        yield [run.merges() for run in runs]
        return
    with process_pool(processes) as pool:
        asked = [
            [
                (each, pool.submit(_computed, run.path, each, run.salvage, run.trust))
                for each in run.syncers
            ]
            for run in runs
        ]
        yield [_received(run, of_run) for run, of_run in zip(runs, asked, strict=True)]


def _received(run: RecordedJob, asked: Sequence[tuple[str, "Future[Encoded]"]]) -> Iterator[Merge]:
    for syncer, future in asked:
        encoded = future.result()
        if encoded is None:  # Computed here, it raises what is wrong with the tape.
            yield from run.history(syncer).merges()
            continue
        yield from map(_decode, encoded)


def _computed(path: Path, syncer: str, salvage: bool, trust: bool) -> Encoded:
    try:
        run = open_job(path, salvage=salvage, wanted=partial(eq, syncer), trust=trust)
        return [_encode(merge) for merge in run.history(syncer).merges()]
    except Exception:  # noqa: BLE001, not every exception passes from one process to another
        return None
