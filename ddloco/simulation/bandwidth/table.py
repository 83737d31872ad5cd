"""``ddloco simulate bandwidth``: what each method needs, compared with published figures."""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich.table import Table

from ddloco.simulation.bandwidth.figure import range_bars, ratio_bars, svg
from ddloco.simulation.bandwidth.model import (
    LABELS,
    METHODS,
    TARGETS,
    Method,
    Setting,
    as_method,
    copy_gbit,
    in_time_gbit_s,
    needed,
    needed_exactly,
    reduction_copies,
    second_opinion,
    utilisation,
)
from ddloco.simulation.bandwidth.published import (
    HEADLINE,
    HEADLINE_CLAIM,
    HEADLINE_TARGET,
    PAIR_CLAIM,
    REGIONS,
    Reading,
    WideLink,
    agreement,
    search,
    wall_clock,
)
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.console import SafeConsole

WIDTH = 100
"""Columns of the output, for any terminal, because the bars have a fixed length."""

WHOLE_MAX = 10_000
"""Maximum of layers, steps of an interval and fragments; all at their maximum take a few
seconds."""

RANGES: dict[str, tuple[float, float]] = {
    "parameters": (1e6, 1e15),
    "layers": (1, WHOLE_MAX),
    "step_s": (1e-3, 1e5),
    "sites": (2, WHOLE_MAX),
    "interval": (1, WHOLE_MAX),
    "fragments": (1, WHOLE_MAX),
    "overlap": (0, WHOLE_MAX),
}

OPTIONS = {name: f"--{name.replace('_', '-')}" for name in RANGES}

STEPS_S = (0.4, 0.8, 1.6, 3.2, 6.4)
"""Step times for which a ratio is printed, to show how much it depends on them."""

STEPS_GBIT_S = 5.0
"""The link for those ratios."""


def bandwidth(given: argparse.Namespace) -> int:
    """Print everything; returns exit code 0.

    Raises:
        ConfigError: an option is out of range, or the figure cannot be written.
    """
    setting = checked(given)
    if given.svg is not None:
        try:
            given.svg.write_text(svg(setting), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg {given.svg}: {error.strerror}") from None
    console = SafeConsole(width=WIDTH, highlight=False, markup=False, soft_wrap=True)
    if given.json:
        console.print(json.dumps(as_dict(setting), indent=2))
        return 0
    console.print(needed_table(setting))
    for line in lines(setting):
        console.print(line)
    return 0


def checked(given: argparse.Namespace) -> Setting:
    """Convert the options to a setting.

    Raises:
        ConfigError: an option is invalid; names it and the valid range.
    """
    values: dict[str, Any] = {}
    for name, (low, high) in RANGES.items():
        value = getattr(given, name)
        value = values[name] = getattr(HEADLINE, name) if value is None else value
        if not low <= value <= high:
            raise ConfigError(f"{OPTIONS[name]} {value:g}: must be between {low:g} and {high:g}")
    setting = Setting(**values)
    if setting.fragments > setting.interval:
        raise ConfigError(
            f"--fragments {setting.fragments}: at most one is exchanged at each step of "
            f"--interval {setting.interval}"
        )
    if setting.overlap >= setting.interval:
        raise ConfigError(
            f"--overlap {setting.overlap}: must be below --interval {setting.interval}, or a "
            "fragment would be exchanged twice at once"
        )
    return setting


def needed_table(setting: Setting) -> Table:
    """Gbit/s for every method and target; the other model's result below it if that differs."""
    table = Table(title=f"Gbit/s per site for a compute utilisation of ...\n{_said(setting)}")
    table.add_column("", no_wrap=True)
    for target in TARGETS:
        table.add_column(f"{target:.0%}", justify="right", no_wrap=True)
    for method in METHODS:
        main, second = (needed(m, setting, method) for m in (utilisation, second_opinion))
        table.add_row(LABELS[method], *map(_gbit, main))
        if second != main:
            other = "  if it waited (A)" if method.startswith("decoupled") else "  closed form"
            table.add_row(other, *map(_gbit, second), style="dim")
    return table


def lines(setting: Setting) -> Iterator[str]:
    """The text below the table."""
    yield "Simulated layer by layer; each number is the smallest of a grid of 50 that is enough. A"
    yield "Decoupled learner never waits: its share is what the link sustains of its schedule (B)."
    yield "(A) counts time that several fragments share once for each, and can be too low."
    for method in ("decoupled", "decoupled-4bit"):
        yield f"{LABELS[method]}: {_in_time(setting, method)}"
    yield ""
    yield from range_bars(setting)
    yield ""
    yield from _references()
    yield ""
    yield from _headline()
    yield ""
    yield from _pair()
    yield ""
    yield from _wall_clock(setting)


def _in_time(setting: Setting, method: Method) -> str:
    needs = in_time_gbit_s(setting, method)
    if math.isinf(needs):
        return "without overlap no fragment is back in time"
    return f"a fragment is there and back within the overlap from {_gbit(needs)} Gbit/s on"


def _references() -> Iterator[str]:
    yield "Streaming DiLoCo's Table 4 (1B and 10B), cell by cell:"
    for model, name in ((utilisation, "simulated"), (second_opinion, "closed form")):
        found = agreement(model)
        yield (
            f"  {name:<12} {found.exact} of {found.cells} exact, {found.within_one} within one "
            f"step of the grid, worst {found.worst}"
        )
        for cell in found.misses:
            yield (
                f"    {cell.table} {LABELS[cell.method]} at {cell.target:.0%}: "
                f"{_gbit(cell.ours)}, published {cell.published:g}"
            )


def headline_figures() -> tuple[float, float]:
    """Gbit/s of data-parallel training and of Decoupled DiLoCo in the headline's setting."""
    pair: tuple[Method, Method] = ("data-parallel", "decoupled-4bit")
    slow, fast = (needed_exactly(utilisation, HEADLINE, each, HEADLINE_TARGET) for each in pair)
    return slow, fast


def _headline() -> Iterator[str]:
    tried, found = search(HEADLINE_CLAIM)
    slow, fast = headline_figures()
    small = as_method(HEADLINE, "decoupled-4bit")
    copies = reduction_copies(HEADLINE.sites)
    gbit = copy_gbit(HEADLINE) * copies
    wall_s = HEADLINE.step_s / HEADLINE_TARGET
    round_s = HEADLINE.interval * HEADLINE.step_s
    yield "198 against 0.84 Gbit/s for 8 data centres: our reading, the assumptions are not public"
    yield f"  {_said(HEADLINE)}, utilisation {HEADLINE_TARGET:.0%}"
    yield (
        f"  data-parallel: {copies:g} copies of {copy_gbit(HEADLINE):.1f} Gbit (ring of "
        f"{HEADLINE.sites}, 16 bits) in {gbit / slow:.2f} s of a step of {wall_s:.2f} s: {slow:.1f}"
    )
    yield (
        f"  Decoupled: {HEADLINE_TARGET:.0%} of {copy_gbit(small):.2f} Gbit (4 bits) each way in "
        f"{HEADLINE.interval} steps, {round_s:.1f} s: {fast:.2f}"
    )
    yield (
        f"  {len(found)} of {tried:,} settings searched give both: "
        + "; ".join(_short(each) for each in found)
    )
    yield "  size and step count as their ratio; 24 to 64 layers miss by up to 1.4 %,"
    yield "  other targets by 2.6 % and more"


def _pair() -> Iterator[str]:
    tried, found = search(PAIR_CLAIM)
    yield "104.8 against 1.7 Gbit/s at a step of 1 s: not pinned down"
    yield f"  {len(found)} of {tried:,} settings searched give both figures in one column:"
    for model in ("A", "B"):
        some = [each for each in found if each.model == model]
        if some:
            yield f"  model ({model}): {_ranges(some)}"


def _ranges(found: list[Reading]) -> str:
    sizes, sites, targets, bits = (
        sorted({value(each) for each in found})
        for value in (
            lambda each: each.setting.parameters / 1e9,
            lambda each: each.setting.sites,
            lambda each: each.target,
            lambda each: each.setting.bits,
        )
    )
    return (
        f"{_span(sizes)}B, {_span(sites)} sites, utilisation "
        f"{_span([100 * each for each in targets])} %, {_span(bits)} bits"
    )


def _span(values: Sequence[float]) -> str:
    low, high = f"{values[0]:g}", f"{values[-1]:g}"
    return low if low == high else f"{low} to {high}"


def _wall_clock(setting: Setting) -> Iterator[str]:
    named = [("4 regions", REGIONS), ("8 sites", HEADLINE)]
    if setting not in (REGIONS, HEADLINE):
        named.insert(0, ("as given", setting))
    yield "Wall time to the same tokens, data-parallel over Decoupled (whose learners never wait):"
    for name, each in named:
        links = wall_clock(each)
        yield f"{name}: {_said(each)}"
        yield from ratio_bars(links)
        slowest = links[0]
        yield (
            f"  at {slowest.gbit_s:g} Gbit/s a fragment's interval would grow from {each.interval} "
            f"to {slowest.interval:.0f} steps ({slowest.interval_4bit:.0f} with 4 bits)"
        )
    yield "published: over 20x for 12B across 4 regions at 2 to 5 Gbit/s; 10 to 20x across 8 sites,"
    yield f"  on links not stated. Ours: over 20x up to {link_for(REGIONS, 20):.1f} Gbit/s;"
    yield f"  10 to 20x from {link_for(HEADLINE, 20):.1f} to {link_for(HEADLINE, 10):.1f} Gbit/s"
    ratios = (f"{s:g} s {_at_step(s).faster:.0f}x" for s in STEPS_S)
    yield "Such a ratio depends on the step time, so on batch, chips and model. 4 regions at"
    yield f"  {STEPS_GBIT_S:g} Gbit/s: {', '.join(ratios)}."
    yield "It takes a token to be worth the same to both methods, and leaves out latency, lost"
    yield "packets and failures."


def link_for(setting: Setting, ratio: float) -> float:
    """Gbit/s at which a data-parallel step takes ``ratio`` times as long as its compute."""
    return needed_exactly(utilisation, setting, "data-parallel", 1 / ratio)


def _at_step(step_s: float) -> WideLink:
    (link,) = wall_clock(replace(REGIONS, step_s=step_s), np.array([STEPS_GBIT_S]))
    return link


def as_dict(setting: Setting) -> dict[str, Any]:
    """All results as plain data; None where no bandwidth of the grid is sufficient."""
    slow, fast = headline_figures()
    tried, found = search(HEADLINE_CLAIM)
    pairs_tried, pairs = search(PAIR_CLAIM)
    models = (("main", utilisation), ("second_opinion", second_opinion))
    in_time = {m: in_time_gbit_s(setting, m) for m in METHODS if m.startswith("decoupled")}
    settings = {"given": setting, "regions": REGIONS, "sites": HEADLINE}
    return {
        "setting": asdict(setting),
        "targets": TARGETS,
        "gbit_s": {m: {name: needed(f, setting, m) for name, f in models} for m in METHODS},
        "in_time_gbit_s": {m: None if math.isinf(b) else b for m, b in in_time.items()},
        "references": {name: asdict(agreement(model)) for name, model in models},
        "headline": {
            "setting": asdict(HEADLINE),
            "target": HEADLINE_TARGET,
            "data_parallel_gbit_s": slow,
            "decoupled_4bit_gbit_s": fast,
            "settings_tried": tried,
            "readings": [asdict(each) for each in found],
        },
        "pair": {"settings_tried": pairs_tried, "readings": [asdict(each) for each in pairs]},
        "wall_clock": {
            name: {"setting": asdict(each), "links": [asdict(link) for link in wall_clock(each)]}
            for name, each in settings.items()
        },
    }


def _said(setting: Setting) -> str:
    return (
        f"{setting.parameters / 1e9:g}B parameters, {setting.layers} layers, step "
        f"{setting.step_s:g} s, {setting.sites} sites, H {setting.interval}, "
        f"P {setting.fragments}, tau {setting.overlap}"
    )


def _short(reading: Reading) -> str:
    used = reading.setting
    return f"{used.parameters / 1e9:g}B at {used.step_s:g} s with {used.layers} layers"


def _gbit(gbit_s: float | None) -> str:
    if gbit_s is None:
        return ">1000"
    return f"{gbit_s:.1f}" if gbit_s >= 10 else f"{gbit_s:.2f}"
