"""A round over links of given rates, as a share of what the line can carry.

Divided: the seconds that the line needs for the bytes of a round, by those that the round takes.
The hub's link has the rate in each direction, and all learners share it. A round is that of
``star``: learners send their parameters in 16 fragments, the hub merges each once all parts of it
are there, and sends the result to all. Both directions work at once, so the line needs the time of
all bytes in one direction, and then that of one fragment in the other: no round can take less.
Headers of TCP and Ethernet count as the line's loss: with packets of 1,500 bytes 95.6 % are left.

Parameters are sent whole, and as differences of four bits. Beside whole ones the same bytes in the
same star over plain sockets, whose hub looks at nothing: what is lost there is TCP's.

The links of given rates are the kernel's token bucket (``shaped_link``). The last ones have a
round trip of 50 ms and lose one packet in a hundred, with two algorithms of congestion control;
what their rate is limited to is what a switch in Python can carry.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from bench_round import Learner, timed
from raw_star import start_raw
from shaped_link import Place, bad_link, can_shape, control_congestion, shaped_link
from star import FRAGMENTS, WHOLE, start_ours
from tools import median, say

from ddloco.job.protocol.compression import Format, relative_size

BEYOND = """\
Up to 1 Gbit/s, and on the line that loses packets, whole parameters come within five points of \
plain sockets: the line and TCP bound them. With BBR, the algorithm of this machine, 16 learners \
have 69 % of 1 Gbit/s, with Reno 91 %; where packets are lost it is the other way around \
([Several hosts](multi-host.md#lines-that-lose-packets)). At 10 Gbit/s, and with four bits at 1 \
Gbit/s, the two cores are the bound, on which hub, learners and kernel run together. The aim \
would need a core for each of them."""

MEGABYTES: dict[float, dict[Format, int]] = {
    1e8: {WHOLE: 8, "int4": 64},
    1e9: {WHOLE: 64, "int4": 256},
    1e10: {WHOLE: 512, "int4": 512},
}
"""Parameters of all learners together, by rate in bits per second and by format: half a second of
the line or more, if no more than that fits into memory in several versions."""

LEARNERS = (1, 4, 16)
ROUNDS, BAD_ROUNDS = 4, 2
RAW = "plain sockets"
DELAY_S, LOSS, BAD_BITS_S = 0.025, 0.01, 1e8
CONTROLS = ("bbr", "reno")
PORTION = 64 * FRAGMENTS * 1024
"""Parameters of a learner are a multiple of so many bytes."""


def measure(quick: bool) -> dict[str, Any]:
    """Seconds of each cell, and of whole parameters over plain sockets."""
    if can_shape():
        return {"missing": can_shape(), "cells": []}
    rates, learners, controls = MEGABYTES, LEARNERS, CONTROLS
    if quick:
        rates, learners, controls = {1e9: {WHOLE: 1}}, LEARNERS[:1], CONTROLS[:1]
    cells: list[dict[str, Any]] = []
    for bits_s, megabytes in rates.items():
        for m in learners:
            with shaped_link(bits_s) as places:
                name = f"{bits_s / 1e9:g} Gbit/s"
                cells += measured(name, bits_s, m, megabytes, places)
    some, megabytes = learners[len(learners) // 2], {WHOLE: rates[min(rates)][WHOLE]}
    for control in controls:
        name = f"0.1 Gbit/s with 50 ms and 1 % loss, {control}"
        with bad_link(BAD_BITS_S, DELAY_S, LOSS) as places:
            if control_congestion(places, control):
                cells += measured(name, BAD_BITS_S, some, megabytes, places, BAD_ROUNDS)
    return {"cells": cells}


def measured(
    link: str,
    bits_s: float,
    learners: int,
    megabytes: Mapping[Format, int],
    places: tuple[Place, Place],
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Rounds with all formats and over plain sockets, in turns."""
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        kinds: dict[str, Sequence[Learner]] = {}
        for form, mb in megabytes.items():
            nbytes = max((mb << 20) // learners // PORTION, 1) * PORTION
            sent = nbytes * learners * relative_size(form)
            floor_s = 8 * sent * (1 + 1 / FRAGMENTS) / bits_s
            kinds[form] = start_ours(stack, nbytes, form, places, learners=learners)
            found[form] = {
                "link": link,
                "learners": learners,
                "form": form,
                "megabytes": nbytes / 2**20,
                "floor_s": floor_s,
            }
            if form == WHOLE:
                kinds[RAW] = start_raw(stack, nbytes, FRAGMENTS, False, places, learners)
        seconds = {kind: median(each) for kind, each in timed(kinds, rounds).items()}
    for form, each in found.items():
        each["median_s"], each["share"] = seconds[form], each["floor_s"] / seconds[form]
        say(line(each))
    found[WHOLE]["raw_share"] = found[WHOLE]["floor_s"] / seconds[RAW]
    return list(found.values())


def lines(figures: dict[str, Any]) -> list[str]:
    """A line for each link, number of learners and format."""
    if "missing" in figures:
        return [f"not measured: {figures['missing']}"]
    return [line(each) for each in figures["cells"]]


def line(cell: dict[str, Any]) -> str:
    """A cell in words."""
    raw = f"; {RAW} {cell['raw_share']:.0%}" if "raw_share" in cell else ""
    learners = "1 learner" if cell["learners"] == 1 else f"{cell['learners']} learners"
    return (
        "{link}, {0}, {form}: {share:.0%} of the line (aim 90 %), {megabytes:.0f} MiB each in "
        "{median_s:.2f} s against {floor_s:.2f} s{1}".format(learners, raw, **cell)
    )
