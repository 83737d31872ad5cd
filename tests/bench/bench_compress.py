"""Compression of fragments: the codec against a copy of memory, and a round over a shaped link.

The codec's floor is one copy of the same float32 array in the same run, on one core: what any
processing of it costs at least. A round is what a sync moves: every learner's contribution to the
syncer, and the result to every learner, over a link of one gigabit per second that all share, as
`tc` would shape it; its floor is the same round uncompressed. Its time is computed from bytes that
the codec really made and from the measured times of the codec, since a benchmark may not change the
network of the machine: upwards all learners encode at the same time, the link carries all payloads,
the syncer decodes them one after the other; downwards the same.
"""

import time
from typing import Any

import numpy as np

from ddloco.protocol.compression import encoded_bytes
from ddloco.workers.quantization import decode, encode

FORMATS = ("bfloat16", "int8", "int4", "e3m0", "int2", "int1")
LINK_BYTES_S = 1e9 / 8
LEARNERS = 4
REPEATS = 7


def measure(quick: bool) -> dict[str, Any]:
    """Rates of the codec in bytes of float32 per second of one core, and the rounds."""
    elements = 2**16 if quick else 2**22
    values = np.random.default_rng(1).normal(size=elements).astype(np.float32)
    values *= np.float32(1e-3)
    copy = np.empty_like(values)
    floor_s = best(lambda: np.copyto(copy, values), quick)
    found: dict[str, Any] = {
        "mb": values.nbytes / 2**20,
        "copy_gb_s": values.nbytes / floor_s / 1e9,
    }
    plain_s = 2 * LEARNERS * values.nbytes / LINK_BYTES_S
    for form in FORMATS:
        out = np.empty(encoded_bytes(elements, form), np.uint8)
        encode_s = best(lambda: encode(values, form, out), quick)  # noqa: B023, used at once
        noisy_s = best(lambda: encode(values, form, out, 7), quick)  # noqa: B023
        decode_s = best(lambda: decode(out, form, elements), quick)  # noqa: B023
        link_s = 2 * LEARNERS * out.nbytes / LINK_BYTES_S
        codec_s = 2 * encode_s + (LEARNERS + 1) * decode_s
        found[form] = {
            "bits": 8 * out.nbytes / elements,
            "encode_gb_s": values.nbytes / encode_s / 1e9,
            "stochastic_gb_s": values.nbytes / noisy_s / 1e9,
            "decode_gb_s": values.nbytes / decode_s / 1e9,
            "round": plain_s / (link_s + codec_s),
        }
    return found


def best(work: Any, quick: bool) -> float:
    """The least CPU seconds of several calls."""
    work()
    times: list[float] = []
    for _ in range(1 if quick else REPEATS):
        begun = time.thread_time()
        work()
        times.append(max(time.thread_time() - begun, 1e-9))
    return min(times)


def lines(figures: dict[str, Any]) -> list[str]:
    """One line for each format."""
    said = [f"a copy of {figures['mb']:.0f} MiB: {figures['copy_gb_s']:.1f} GB/s of one core"]
    for form in FORMATS:
        each = figures[form]
        said.append(
            f"{form}: {each['bits']:.3f} bits; encodes {each['encode_gb_s']:.2f} GB/s "
            f"({each['stochastic_gb_s']:.2f} stochastically), decodes {each['decode_gb_s']:.2f}; "
            f"computed, a round of {LEARNERS} over 1 Gbit/s {each['round']:.1f} times faster"
        )
    return said
