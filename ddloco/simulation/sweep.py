"""Runs many worlds in several processes and returns their results in order of seed."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from ddloco.stage.process.process_pool import process_pool

T = TypeVar("T")

GIVEN = 2
"""Seeds that are given to a process at a time: the one that it runs, and the next."""


def sweep(
    run: Callable[[int], T], seeds: Sequence[int], jobs: int, progress: Callable[[int], None]
) -> Iterator[T]:
    """Run ``run``, which must be importable by name, for every seed in ``jobs`` processes; yields
    results in the order of ``seeds``. A process runs one seed at a time, since worlds differ in
    length: of the cases of Table 1 the longest takes eight times as long as the shortest."""
    if jobs == 1 or len(seeds) == 1:
        for done, seed in enumerate(seeds, 1):
            yield run(seed)
            progress(done)
        return
    waiting = deque(enumerate(seeds))
    running: dict[Future[T], int] = {}
    outcomes: dict[int, T] = {}
    with process_pool(jobs) as pool:
        while waiting or running:
            while waiting and len(running) < GIVEN * jobs:
                index, seed = waiting.popleft()
                running[pool.submit(run, seed)] = index
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                outcomes[running.pop(future)] = future.result()
                progress(len(outcomes))
    yield from (outcomes[index] for index in range(len(seeds)))
