"""Runs many worlds in several processes and returns their results in order of seed."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

T = TypeVar("T")

CHUNK = 8
"""Seeds that a process takes at a time: seconds of work, so that progress is visible."""


def sweep(
    run: Callable[[int], T], seeds: Sequence[int], jobs: int, progress: Callable[[int], None]
) -> Iterator[T]:
    """Run ``run`` for every seed in ``jobs`` processes; yields results in the order of ``seeds``.

    ``run`` must be importable by name. ``progress`` is called with the number of finished seeds.
    """
    done = 0
    if jobs == 1 or len(seeds) == 1:
        for seed in seeds:
            yield run(seed)
            done += 1
            progress(done)
        return
    context = multiprocessing.get_context("forkserver")
    chunks = [tuple(seeds[at : at + CHUNK]) for at in range(0, len(seeds), CHUNK)]
    outcomes: dict[int, list[T]] = {}
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(_each, run, chunk): index for index, chunk in enumerate(chunks)}
        for future in as_completed(futures):
            outcomes[futures[future]] = future.result()
            done += len(chunks[futures[future]])
            progress(done)
    for index in range(len(chunks)):
        yield from outcomes[index]


def _each(run: Callable[[int], T], seeds: tuple[int, ...]) -> list[T]:
    return [run(seed) for seed in seeds]
