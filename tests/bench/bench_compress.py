"""Compression of fragments: the codec against a copy of memory, and rounds over a shaped link.

The codec compresses the difference of two float32 arrays, and adds it up again. Its floor is one
copy of such an array in the same run, on one core: what any processing of it costs at least.

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
from numpy.typing import NDArray
from shaped_link import can_shape, shaped_link
from star import LEARNERS, LOOPBACK, WHOLE, start_ours
from tools import median, median_interval, say

from ddloco.job.protocol.compression import BITS, Format, encoded_bytes
from ddloco.workers.quantization import NUMPY, Quantizer
from ddloco.workers.quantization_kernel import quantizer

F32 = NDArray[np.float32]

FORMATS: tuple[Format, ...] = ("bfloat16", "int8", "int4", "e3m0", "int2", "int1")
ROUNDS_OF = (WHOLE, "bfloat16", "int8", "int4", "e3m0", "int1")
LINK_BITS_S = 1e9
REPEATS = 7
ROUNDS = 6

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
    base = np.zeros_like(values)
    copy = np.empty_like(values)
    floor_s = best(lambda: np.copyto(copy, values), quick)
    found: dict[str, Any] = {
        "mb": values.nbytes / 2**20,
        "copy_gb_s": values.nbytes / floor_s / 1e9,
    }
    for form in FORMATS:
        found[form] = {
            kind: rates(by, form, values, base, quick)
            for kind, by in (("best", quantizer()), ("numpy", NUMPY))
        }
    return found


def rates(by: Quantizer, form: Format, values: F32, base: F32, quick: bool) -> dict[str, float]:
    """Those of making and compressing a difference, and of adding it up again."""
    out, read = np.empty(encoded_bytes(values.size, form), np.uint8), np.empty_like(values)
    work = {
        "encode_gb_s": lambda: by.encode(values, form, out, base=base),
        "stochastic_gb_s": lambda: by.encode(values, form, out, base=base, noise_seed=7),
        "decode_gb_s": lambda: by.decode(out, form, read, base=base),
    }
    found = {name: values.nbytes / best(each, quick) / 1e9 for name, each in work.items()}
    return {"bits": 8 * out.nbytes / values.size, **found}


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
        best_of, numpys = figures[form]["best"], figures[form]["numpy"]
        said.append(
            "{0}: {bits:.3f} bits; encodes {encode_gb_s:.1f} GB/s ({stochastic_gb_s:.1f} "
            "stochastically), decodes {decode_gb_s:.1f}{1}".format(
                form, " (aim 2)" if BITS[form] == 4 else "", **best_of
            )
            + "; numpy {encode_gb_s:.1f} ({stochastic_gb_s:.1f}) and {decode_gb_s:.1f}".format(
                **numpys
            )
        )
    names = {"link": "a link of 1 Gbit/s", "loopback": "loopback"}
    for where, found in figures["rounds"].items():
        shape = f"{found['megabytes']:.0f} MiB x {LEARNERS}"
        for form, each in found["forms"].items():
            aim = AIMS[where] if BITS[form] == 4 else ""
            low, high = each["interval"]
            said.append(
                f"{form} over {names[where]}: a round {each['times']:.2f} times as fast as whole "
                f"fragments, {low:.2f} to {high:.2f}{aim}: {shape} in {each['median_s']:.3f} s "
                f"against {found['whole_s']:.3f} s"
            )
    if figures["no_link"]:
        said.append(f"a link of 1 Gbit/s: not measured, {figures['no_link']}")
    return said
