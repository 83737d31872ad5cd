"""Compression of fragments: the codec against a copy of memory, and rounds over a shaped link.

The codec's floor is one copy of the same float32 array in the same run, on one core: what any
processing of it costs at least.

A round is that of ``star``: four learners send 64 MiB of parameters each, the hub merges, and all
receive the result. Compressed rounds are divided by the same round with whole fragments, in turns:
over a link of one gigabit per second that all four learners share, in each direction (two network
namespaces and the kernel's token bucket, ``shaped_link``), and over loopback, where the codec's
time is not made up for by a slow line.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from bench_round import Learner, timed
from shaped_link import can_shape, shaped_link
from star import LEARNERS, LOOPBACK, WHOLE, start_ours
from tools import median, median_interval, say

from ddloco.protocol.compression import encoded_bytes
from ddloco.workers.quantization import decode, encode

FORMATS = ("bfloat16", "int8", "int4", "e3m0", "int2", "int1")
ROUNDS_OF = (WHOLE, "bfloat16", "int8", "int4", "e3m0", "int1")
LINK_BITS_S = 1e9
REPEATS = 7
ROUNDS = 5

AIMS = {"link": " (aim 3)", "loopback": " (aim 1)"}
"""For four bits."""


def measure(quick: bool) -> dict[str, Any]:
    """Rates of the codec in bytes of float32 per second of one core, and seconds of rounds."""
    found = codec(quick)
    loopback = (LOOPBACK, LOOPBACK)
    found["rounds"] = {"loopback": rounds("loopback", loopback, quick)}
    found["no_link"] = can_shape()
    if not found["no_link"]:
        with shaped_link(LINK_BITS_S) as places:
            found["rounds"]["link"] = rounds("a link of 1 Gbit/s", places, quick)
    return found


def codec(quick: bool) -> dict[str, Any]:
    """Rates of the codec alone."""
    elements = 2**16 if quick else 2**22
    values = np.random.default_rng(1).normal(size=elements).astype(np.float32)
    values *= np.float32(1e-3)
    copy = np.empty_like(values)
    floor_s = best(lambda: np.copyto(copy, values), quick)
    found: dict[str, Any] = {
        "mb": values.nbytes / 2**20,
        "copy_gb_s": values.nbytes / floor_s / 1e9,
    }
    for form in FORMATS:
        out = np.empty(encoded_bytes(elements, form), np.uint8)
        encode_s = best(lambda: encode(values, form, out), quick)  # noqa: B023, used at once
        noisy_s = best(lambda: encode(values, form, out, 7), quick)  # noqa: B023
        decode_s = best(lambda: decode(out, form, elements), quick)  # noqa: B023
        found[form] = {
            "bits": 8 * out.nbytes / elements,
            "encode_gb_s": values.nbytes / encode_s / 1e9,
            "stochastic_gb_s": values.nbytes / noisy_s / 1e9,
            "decode_gb_s": values.nbytes / decode_s / 1e9,
        }
    return found


def rounds(where: str, places: Any, quick: bool) -> dict[str, Any]:
    """Each format against whole fragments: how many times faster a round is."""
    nbytes, forms = (1 << 20, (WHOLE, "int4")) if quick else (64 << 20, ROUNDS_OF)
    say(f"rounds over {where}")
    with ExitStack() as stack:
        kinds: dict[str, Sequence[Learner]] = {
            form: start_ours(stack, nbytes, form, places) for form in forms
        }
        seconds = timed(kinds, 1 if quick else ROUNDS)
    whole_s = median(seconds[WHOLE])
    times = {
        form: {
            "median_s": median(each),
            "times": whole_s / median(each),
            "interval": sorted(whole_s / bound for bound in median_interval(each)),
        }
        for form, each in seconds.items()
        if form != WHOLE
    }
    return {"whole_s": whole_s, "megabytes": nbytes / 2**20, "forms": times}


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
    """One line for each format, and for each format of a round."""
    said = [f"a copy of {figures['mb']:.0f} MiB: {figures['copy_gb_s']:.1f} GB/s of one core"]
    for form in FORMATS:
        each = figures[form]
        said.append(
            f"{form}: {each['bits']:.3f} bits; encodes {each['encode_gb_s']:.2f} GB/s "
            f"({each['stochastic_gb_s']:.2f} stochastically), decodes {each['decode_gb_s']:.2f}"
        )
    names = {"link": "a link of 1 Gbit/s", "loopback": "loopback"}
    for where, found in figures["rounds"].items():
        shape = f"{found['megabytes']:.0f} MiB x {LEARNERS}"
        for form, each in found["forms"].items():
            aim = AIMS[where] if form in {"int4", "e3m0"} else ""
            low, high = each["interval"]
            said.append(
                f"{form} over {names[where]}: a round {each['times']:.2f} times as fast as whole "
                f"fragments, {low:.2f} to {high:.2f}{aim}: {shape} in {each['median_s']:.3f} s "
                f"against {found['whole_s']:.3f} s"
            )
    if figures["no_link"]:
        said.append(f"a link of 1 Gbit/s: not measured, {figures['no_link']}")
    return said
