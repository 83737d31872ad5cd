"""How close one merge comes to the memory traffic that it cannot avoid.

The floor is 2M + 7 passes over the fragment (Theta and M contributions for the norms; both again
for the direction; Theta, momentum and direction in, both results out), at the bandwidth of a copy
that does not fit into any cache. Writing the direction, one pass more, is our own choice.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np

from ddloco.merging import Contribution, Segment, merge_fragment

LEARNERS = 8
FRAGMENT_BYTES = 16 << 20
COPY_BYTES = 256 << 20  # Eight times the third-level cache of the machine this was written on.


def measure(*, repeats: int = 5, dtype: str = "float32") -> dict[str, float]:
    """Return the times in seconds and the shares of the floor, with one and with two threads."""
    size = FRAGMENT_BYTES // 4
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(size, np.float32)
    momentum = np.zeros(size, np.float32)
    contributions = [_contribution(theta, m, rng, dtype) for m in range(LEARNERS)]
    segments = [Segment(0, size, average=False, dtype=dtype, offset=0)]

    def merge(map_chunks: Callable = map) -> None:
        merge_fragment(
            theta,
            momentum,
            contributions,
            segments,
            lr=0.7,
            momentum_factor=0.9,
            map_chunks=map_chunks,
        )

    source = np.ones(COPY_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    copy_s = _best(lambda: np.copyto(target, source), repeats)
    bandwidth = 2 * COPY_BYTES / copy_s
    item = contributions[0].buffer.size / size
    floor_s = size * (2 * LEARNERS * item + 7 * 4) / bandwidth
    merge()
    one_s = _best(merge, repeats)
    with ThreadPoolExecutor(2) as pool:
        two_s = _best(lambda: merge(pool.map), repeats)
    return {
        "copy_gb_per_s": bandwidth / 1e9,
        "floor_s": floor_s,
        "one_thread_s": one_s,
        "one_thread_share": floor_s / one_s,
        "two_threads_s": two_s,
        "two_threads_share": floor_s / two_s,
    }


def _contribution(theta: np.ndarray, m: int, rng: np.random.Generator, dtype: str) -> Contribution:
    values = theta + 0.01 * rng.standard_normal(theta.size, np.float32)
    if dtype == "bfloat16":
        return Contribution(str(m), 1.0, (values.view("<u4") >> 16).astype("<u2").view(np.uint8))
    return Contribution(str(m), 1.0, values.astype(dtype).view(np.uint8))


def _best(work: Callable[[], object], repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    for dtype in ("float32", "bfloat16"):
        figures = {name: round(value, 4) for name, value in measure(dtype=dtype).items()}
        print("merge of 8 x 16 MB of float32" if dtype == "float32" else dtype, figures)
