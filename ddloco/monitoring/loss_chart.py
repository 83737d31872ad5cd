"""The losses of a job over its global steps: a sparkline in the live display, and ``loss.svg``."""

import math
from collections.abc import Mapping, Sequence
from html import escape

PARTS = 240
"""Into how many parts a job's global steps are divided; a part shows the mean of its losses."""

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_CHARS = 16

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#8c8c8c")
COLOURED_MAX = len(COLOURS)
"""More learners than this are drawn in one colour, with one entry in the key."""

DIGITS_MAX = 6
"""Digits after the point of a loss; the label would leave the figure with more."""

INK, GRID = "#444444", "#dddddd"
WIDTH, HEIGHT = 720, 360
LEFT, TOP, PLOT_WIDTH, PLOT_HEIGHT = 60, 34, 500, 270
KEY_X, KEY_Y, KEY_STEP = LEFT + PLOT_WIDTH + 20, TOP + 12, 20


class LossCurve:
    """The losses of one learner: their mean in each part of the job's global steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._sums: dict[int, tuple[float, int]] = {}

    def add(self, t: int, loss: float) -> None:
        """Add the loss of a step that ended while the job was at global step ``t``."""
        part = min(t, self._steps) * PARTS // self._steps
        total, count = self._sums.get(part, (0.0, 0))
        self._sums[part] = (total + loss, count + 1)

    def points(self) -> list[tuple[float, float]]:
        width = self._steps / PARTS
        return [(part * width, s / n) for part, (s, n) in sorted(self._sums.items())]

    def spark(self) -> str:
        """The curve in one line of text, its highest point a full block."""
        losses = [loss for _, loss in self.points()]
        cells = [
            losses[n * len(losses) // SPARK_CHARS : max((n + 1) * len(losses) // SPARK_CHARS, 1)]
            for n in range(SPARK_CHARS)
        ]
        means = [sum(cell) / len(cell) for cell in cells if cell]
        if len(losses) < SPARK_CHARS:
            means = losses
        low, high = min(means, default=0.0), max(means, default=0.0)
        scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
        return "".join(SPARKS[round((mean - low) * scale)] for mean in means)


def draw_losses(
    curves: Mapping[str, LossCurve], held_out: Sequence[tuple[int, float]], steps: int, title: str
) -> str:
    """The losses as a self-contained SVG file."""
    lines = {name: curve.points() for name, curve in curves.items()}
    losses = [loss for points in (*lines.values(), held_out) for _, loss in points]
    low, high = _bounds(losses)

    def at(t: float, loss: float) -> str:
        x = LEFT + PLOT_WIDTH * min(t / steps, 1.0)
        y = TOP + PLOT_HEIGHT * (high - loss) / (high - low)
        return f"{x:.1f},{y:.1f}"

    parts = [*_frame(title), *_grid(low, high, steps)]
    entries: list[tuple[str, str]] = []
    for n, (name, points) in enumerate(lines.items()):
        colour = COLOURS[n] if len(lines) <= COLOURED_MAX else COLOURS[0]
        line = " ".join(at(t, loss) for t, loss in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" opacity="0.8"/>')
        entries.append((name, colour))
    if len(lines) > COLOURED_MAX:
        entries = [(f"{len(lines)} learners", COLOURS[0])]
    if held_out:
        line = " ".join(at(t, loss) for t, loss in held_out)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{INK}" stroke-width="2"/>')
        for t, loss in held_out:
            x, y = at(t, loss).split(",")
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{INK}"/>')
        entries.append((f"held out: {held_out[-1][1]:.4f}", INK))
    for n, (name, colour) in enumerate(entries):
        y = KEY_Y + KEY_STEP * n
        parts.append(f'<rect x="{KEY_X}" y="{y - 9}" width="12" height="10" fill="{colour}"/>')
        parts.append(_text(KEY_X + 18, y, name, "start"))
    return "\n".join([*parts, "</svg>\n"])


def _bounds(losses: Sequence[float]) -> tuple[float, float]:
    """The lowest and the highest loss that are shown; never the same."""
    low, high = min(losses, default=0.0), max(losses, default=1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _frame(title: str) -> list[str]:
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, TOP - 14, title, "start"),
    ]


def _grid(low: float, high: float, steps: int) -> list[str]:
    parts: list[str] = []
    right = LEFT + PLOT_WIDTH
    digits = min(max(2 - math.floor(math.log10(high - low)), 0), DIGITS_MAX)
    for n in range(5):
        x, y = LEFT + PLOT_WIDTH * n / 4, TOP + PLOT_HEIGHT * n / 4
        parts += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{GRID}"/>',
            _text(LEFT - 8, y + 4, f"{high - (high - low) * n / 4:.{digits}f}", "end"),
            _text(x, TOP + PLOT_HEIGHT + 18, f"{steps * n / 4:g}", "middle"),
        ]
    parts.append(_text(LEFT + PLOT_WIDTH / 2, HEIGHT - 14, "loss over global steps", "middle"))
    return parts


def _text(x: float, y: float, text: str, anchor: str) -> str:
    said = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}"'
    return f"<text {said}>{escape(text)}</text>"
