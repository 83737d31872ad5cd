"""How close one merge comes to the memory traffic that it cannot avoid.

Divided: the time of 2M + 7 passes over the fragment, by the time of ``merge_fragment``. The passes
are Theta and M contributions for the norms; both again for the direction; Theta, momentum and
direction in, both results out, at the bandwidth of a copy that does not fit into any cache.
Fair, because no order of the arithmetic needs fewer passes (the norms must be known before the
direction); writing the direction, one pass more, is our own choice. Aim: 60 % or more with the
compiled arithmetic, where this installation has it; numpy's is beside it. Contributions of
four bits are differences to Theta: their passes are an eighth as long, and most of the time is
arithmetic.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np

from ddloco.job.config import Outer
from ddloco.job.protocol.compression import Format, encoded_bytes
from ddloco.machines.outer.block_kernel import BlockKernel, NumpyKernel
from ddloco.machines.outer.merge import TensorSegment, WeightedFragment, merge_fragment
from ddloco.machines.outer.optimizers.table import zero_state
from ddloco.stage.process.malloc import keep_freed_memory
from ddloco.workers.layout import DecompressedOnDemand
from ddloco.workers.merge_kernel import merge_kernel
from ddloco.workers.quantization_kernel import quantizer

LEARNERS = 8
FRAGMENT_BYTES = 16 << 20
COPY_BYTES = 256 << 20  # Eight times the third-level cache of the machine this was written on.
COMPRESSED = "int4"
DTYPES: tuple[Format, ...] = ("float32", "bfloat16", COMPRESSED)


OUTER = Outer()


def measure(quick: bool) -> dict[str, Any]:
    """Times in seconds and shares of the floor, with one and with two threads, by wire dtype."""
    keep_freed_memory()  # As a syncer does.
    scale, repeats = (16, 2) if quick else (1, 7)
    kernels = (merge_kernel(), NumpyKernel())
    return {
        f"{dtype}, {type(kernel).__name__}": _measure(
            dtype, kernel, FRAGMENT_BYTES // scale, repeats
        )
        for dtype in DTYPES
        for kernel in kernels
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        f"{one['one_thread_share']:.0%} of memory bandwidth with one thread, "
        f"{one['two_threads_share']:.0%} with two{one['aim']}: {LEARNERS} contributions of "
        f"{one['megabytes']:.0f} MiB fragments in {kind}, {1e3 * one['one_thread_s']:.1f} and "
        f"{1e3 * one['two_threads_s']:.1f} ms, floor {1e3 * one['floor_s']:.1f} ms "
        f"at {one['copy_gb_per_s']:.1f} GB/s"
        for kind, one in figures.items()
    ]


def _measure(dtype: Format, kernel: BlockKernel, nbytes: int, repeats: int) -> dict[str, float]:
    size = nbytes // 4
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(size, np.float32)
    state = zero_state(OUTER, theta)
    contributions = [_contribution(theta, m, rng, dtype) for m in range(LEARNERS)]
    read_as = "float32" if dtype == COMPRESSED else dtype
    segments = [TensorSegment(0, size, rule="rda", dtype=read_as, offset=0)]

    def merge(map_chunks: Callable = map) -> None:
        merge_fragment(
            theta, state, contributions, segments, outer=OUTER, map_chunks=map_chunks, kernel=kernel
        )

    source = np.ones(COPY_BYTES // 4, np.float32)
    target = np.zeros_like(source)
    copy_s = _best(lambda: np.copyto(target, source), repeats)
    bandwidth = 2 * COPY_BYTES / copy_s
    item = encoded_bytes(size, dtype) / size
    floor_s = size * (2 * LEARNERS * item + 7 * 4) / bandwidth
    merge()
    one_s = _best(merge, repeats)
    with ThreadPoolExecutor(2) as pool:
        two_s = _best(lambda: merge(pool.map), repeats)
    return {
        "aim": " (aim 60 %)" if dtype != COMPRESSED and kernel is merge_kernel() else "",
        "megabytes": nbytes / 2**20,
        "copy_gb_per_s": bandwidth / 1e9,
        "floor_s": floor_s,
        "one_thread_s": one_s,
        "one_thread_share": floor_s / one_s,
        "two_threads_s": two_s,
        "two_threads_share": floor_s / two_s,
    }


def _contribution(
    theta: np.ndarray, m: int, rng: np.random.Generator, dtype: Format
) -> WeightedFragment:
    values = theta + 0.01 * rng.standard_normal(theta.size, np.float32)
    if dtype == COMPRESSED:
        data = np.zeros(encoded_bytes(theta.size, dtype), np.uint8)
        quantizer().encode(values, dtype, data, base=theta)
        tensor = TensorSegment(0, theta.size, "rda", "float32", 0)
        read = DecompressedOnDemand([(data, tensor)], dtype, theta.size, theta)
        return WeightedFragment(str(m), 1.0, read)
    if dtype == "bfloat16":
        return WeightedFragment(
            str(m), 1.0, (values.view("<u4") >> 16).astype("<u2").view(np.uint8)
        )
    return WeightedFragment(str(m), 1.0, values.astype(dtype).view(np.uint8))


def _best(work: Callable[[], object], repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return min(times)
