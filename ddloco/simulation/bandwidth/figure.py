"""Figures of bandwidth: text bars on logarithmic scales, and utilisation curves as SVG."""

import math
from collections.abc import Sequence
from html import escape

from ddloco.simulation.bandwidth.model import GRID, LABELS, METHODS, Setting, needed, utilisation
from ddloco.simulation.bandwidth.wide_links import WideLink

LABEL_CHARS = 27
BAR_CHARS = 50
BLOCK = "█"

COLOURS = ("#444444", "#c44e52", "#dd8452", "#ccb974", "#8172b3", "#4c72b0", "#55a868")
WIDTH, HEIGHT = 760, 420
LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 60, 20, 460, 340
DECADES = range(-1, 4)


def range_bars(setting: Setting) -> list[str]:
    """For each method, the bandwidths from the lowest target to the highest; one column per grid
    value."""
    lines = [" " * LABEL_CHARS + _ticks("Gbit/s")]
    for method in METHODS:
        ends = [_column(each) for each in needed(utilisation, setting, method)]
        bar = " " * ends[0] + BLOCK * (min(ends[-1], len(GRID) - 1) - ends[0] + 1)
        lines.append(f"{LABELS[method]:<{LABEL_CHARS}}{bar}{'' if ends[-1] < len(GRID) else '>'}")
    return lines


def _column(gbit_s: float | None) -> int:
    return len(GRID) if gbit_s is None else int(GRID.searchsorted(gbit_s))


def _ticks(unit: str) -> str:
    """A scale with one column per grid value; decades are 12 or 13 columns apart."""
    line = ""
    for decade in DECADES:
        line = line.ljust(_column(10.0**decade * (1 - 1e-9))) + f"{10.0**decade:g}"
    return f"{line} {unit}"


def ratio_bars(links: Sequence[WideLink]) -> list[str]:
    """How many times faster on each link, on a logarithmic scale."""
    longest = max(math.log10(link.faster) for link in links) or 1.0
    lines: list[str] = []
    for link in links:
        chars = round(BAR_CHARS * math.log10(link.faster) / longest)
        lines.append(f"{link.gbit_s:>8g} Gbit/s  {BLOCK * chars} {link.faster:,.1f}x")
    return lines


def svg(setting: Setting) -> str:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for decade in DECADES:
        x = _x(10.0**decade)
        parts += [_line(x, _y(0.0), x, _y(1.0)), _text(x, _y(0.0) + 18, f"{10.0**decade:g}")]
    for percent in range(0, 101, 25):
        y = _y(percent / 100)
        parts += [_line(_x(0.1), y, _x(1e3), y), _text(LEFT - 20, y + 4, f"{percent} %")]
    key_x = LEFT + PLOT_WIDTH + 20
    for n, (method, colour) in enumerate(zip(METHODS, COLOURS, strict=True)):
        curve = zip(GRID.tolist(), utilisation(setting, method, GRID).tolist(), strict=True)
        points = " ".join(f"{_x(gbit_s):.1f},{_y(share):.1f}" for gbit_s, share in curve)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        y = TOP + 20 + 22 * n
        parts.append(f'<rect x="{key_x}" y="{y - 9}" width="12" height="10" fill="{colour}"/>')
        parts.append(_text(key_x + 20, y, LABELS[method], "start"))
    axis = (
        f"compute utilisation at Gbit/s per site: {setting.parameters / 1e9:g}B parameters, "
        f"step {setting.step_s:g} s, {setting.sites} sites"
    )
    parts.append(_text(LEFT + PLOT_WIDTH / 2, HEIGHT - 12, axis))
    return "\n".join([*parts, "</svg>\n"])


def _x(gbit_s: float) -> float:
    return LEFT + PLOT_WIDTH * (math.log10(gbit_s) + 1) / 4


def _y(share: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - share)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
