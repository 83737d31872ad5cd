"""How a difference is shown on 80 columns: a title, a table of the values that differ with what
differs in them marked, and entries of text."""

import textwrap
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ddloco.debugger.wording import clipped

WIDTH = 80
"""Columns of a line; a command may be longer, so that it can be pasted."""

VALUE = 30
"""Columns of a value."""

ROWS_MAX = 3
"""Fields that are shown; how many more differ is said."""

LABEL = "              "
"""Where a line's text begins."""


class Row(Struct, frozen=True):
    """A value that differs: its name, and as recorded and replayed. ``marked`` if the characters
    that differ are worth showing, which those of a digest are not."""

    name: str
    recorded: str
    replayed: str
    marked: bool = False


def title_lines(title: str, where: str) -> list[str]:
    if len(title) + len(where) + 2 <= WIDTH:
        return [f"{title}{where:>{WIDTH - len(title)}}".rstrip()]
    lines = textwrap.wrap(title, WIDTH, subsequent_indent="  ", max_lines=2)
    if len(lines[-1]) + len(where) + 2 <= WIDTH:
        return [*lines[:-1], f"{lines[-1]}{where:>{WIDTH - len(lines[-1])}}"]
    return [clipped(lines[0], WIDTH), f"{where:>{WIDTH}}"]


def table(rows: Sequence[Row], heads: tuple[str, str] = ("recorded", "replayed")) -> Iterator[str]:
    if not rows:
        return
    one, two = (clipped(head, VALUE) for head in heads)
    yield f"{LABEL}{one:<{VALUE}}  {two}"
    for row in rows[:ROWS_MAX]:
        at = _first_difference(row.recorded, row.replayed)
        one, two = (_window(text, at) for text in (row.recorded, row.replayed))
        room = len(LABEL) - 3
        name = row.name if len(row.name) <= room else f"..{row.name[2 - room :]}"
        yield f"  {name:<{room + 1}}{one:<{VALUE}}  {two}".rstrip()
        if row.marked and one != two and len(rows) == 1:
            at = _first_difference(one, two)
            marks = f"{' ' * at}{'^' * max(len(one) - at, 1)}"
            yield f"{LABEL}{marks:<{VALUE}}  {' ' * at}{'^' * max(len(two) - at, 1)}"
    if len(rows) > ROWS_MAX:
        yield f"  and {len(rows) - ROWS_MAX:,} more"


def _first_difference(one: str, two: str) -> int:
    pairs = enumerate(zip(one, two, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(two)))


def _window(text: str, at: int) -> str:
    """As much of a text as fits, with its character number ``at``."""
    if len(text) <= VALUE:
        return text
    begin = max(0, min(at - VALUE // 2, len(text) - VALUE + 3))
    return clipped(f"...{text[begin + 3 :]}" if begin else text, VALUE)


def entry(name: str, text: str, lines: int) -> list[str]:
    first = f"  {name:<{len(LABEL) - 2}}" if len(name) < len(LABEL) - 2 else f"  {name}  "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=LABEL,
        max_lines=lines,
        placeholder=" ...",
    )
