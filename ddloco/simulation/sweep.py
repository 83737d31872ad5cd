"""Runs many worlds in several processes and returns their results in order of seed."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import TypeVar

from ddloco.runtime.process_pool import process_pool

T = TypeVar("T")


def sweep(
    run: Callable[[int], T], seeds: Sequence[int], jobs: int, progress: Callable[[int], None]
) -> Iterator[T]:
    """Run ``run`` for every seed in ``jobs`` processes; yields results in the order of ``seeds``.

    A process takes one seed at a time, since worlds differ in length: of the cases of Table 1 the
    longest takes twenty times as long as the shortest.

    ``run`` must be importable by name. ``progress`` is called with the number of finished seeds.
    """
    if jobs == 1 or len(seeds) == 1:
        for done, seed in enumerate(seeds, 1):
            yield run(seed)
            progress(done)
        return
    with process_pool(jobs) as pool:
        futures = [pool.submit(run, seed) for seed in seeds]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            progress(done)
    for future in futures:
        yield future.result()
