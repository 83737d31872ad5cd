"""The console on which commands draw: tables, colours, and displays that stay in place."""

from collections.abc import Iterator
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ddloco.stage.process.terminal import Escaping, escaped

PLAIN_WIDTH = 144
"""Columns in a file or a pipe, in place of rich's 80, in which names of learners are cut off;
``COLUMNS`` of the environment wins."""


class SafeConsole(Console):
    """A console whose texts are only text: brackets and colons in them are no markup, and control
    characters are escaped. What rich itself draws with, which are colours and movements of the
    cursor, reaches the terminal. What is to have a colour is a ``rich.text.Text``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)
        if self._width is None and not self.is_terminal:
            self.width = PLAIN_WIDTH

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escaped(segment.text), segment.style)

    @property
    def file(self) -> IO[str]:
        stream = super().file
        return stream.unescaped if isinstance(stream, Escaping) else stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file
