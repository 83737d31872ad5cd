"""``ddloco simulate bandwidth``: what each method needs of the links between sites."""

import argparse
import json
import math
from collections.abc import Iterator
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
    in_time_gbit_s,
    needed,
    needed_exactly,
    second_opinion,
    utilisation,
)
from ddloco.simulation.bandwidth.wide_links import HEADLINE, REGIONS, WideLink, wall_clock
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
    """Print everything; ``ConfigError`` if an option is out of range, or the figure cannot be
    written."""
    setting = checked(given)
    if given.svg is not None:
        try:
            given.svg.write_text(svg(setting), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--svg {given.svg}: {error.strerror}") from None
    console = SafeConsole(width=WIDTH, highlight=False, soft_wrap=True)
    if given.json:
        console.print(json.dumps(as_dict(setting), indent=2))
        return 0
    console.print(needed_table(setting))
    for line in lines(setting):
        console.print(line)
    return 0


def checked(given: argparse.Namespace) -> Setting:
    """Convert the options to a setting; ``ConfigError`` names an invalid option and the valid
    range."""
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
    yield "Simulated layer by layer; each number is the smallest of a grid of 50 that is enough. A"
    yield "Decoupled learner never waits: its share is what the link sustains of its schedule (B)."
    yield "(A) counts time that several fragments share once for each, and can be too low."
    for method in ("decoupled", "decoupled-4bit"):
        yield f"{LABELS[method]}: {_in_time(setting, method)}"
    yield ""
    yield from range_bars(setting)
    yield ""
    yield from _wall_clock(setting)


def _in_time(setting: Setting, method: Method) -> str:
    needs = in_time_gbit_s(setting, method)
    if math.isinf(needs):
        return "without overlap no fragment is back in time"
    return f"a fragment is there and back within the overlap from {_gbit(needs)} Gbit/s on"


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
    models = (("main", utilisation), ("second_opinion", second_opinion))
    in_time = {m: in_time_gbit_s(setting, m) for m in METHODS if m.startswith("decoupled")}
    settings = {"given": setting, "regions": REGIONS, "sites": HEADLINE}
    return {
        "setting": asdict(setting),
        "targets": TARGETS,
        "gbit_s": {m: {name: needed(f, setting, m) for name, f in models} for m in METHODS},
        "in_time_gbit_s": {m: None if math.isinf(b) else b for m, b in in_time.items()},
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


def _gbit(gbit_s: float | None) -> str:
    if gbit_s is None:
        return ">1000"
    return f"{gbit_s:.1f}" if gbit_s >= 10 else f"{gbit_s:.2f}"
