"""Text on its way to a terminal: control characters in it are written as escapes.

Names of actors, reasons, lines of a log, notes in a bundle and messages of exceptions come from
files and peers. A terminal obeys control characters: they could clear the screen, forge lines, or
write to other programs. So everything that a command prints goes through here; what the program
itself draws, in colours and on one place of the screen, goes through ``console``.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, and C1.
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # What changes directions and lines.
    "\ud800-\udfff]"  # Halves of characters, which cannot be encoded.
)


def escaped(text: str) -> str:
    """Text with its control characters as in JSON; newlines and tabs stay."""
    if text.isprintable():
        return text
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: object) -> str:
    """The same on one line: newlines and tabs are control characters here."""
    said = str(text)
    if said.isprintable():
        return said
    return escaped(said).replace("\n", "\\u000a").replace("\t", "\\u0009")


class Escaping:
    """A text stream that escapes control characters.

    Args:
        stream: the stream that everything is written to.

    Attributes:
        unescaped: the same stream, for those who write control characters on purpose.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        """Write text."""
        self.unescaped.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Everything else is the stream's own."""
        return getattr(self.unescaped, name)


@contextmanager
def escaping() -> Iterator[None]:
    """Escape what is printed to standard output and standard error."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_over(each) for each in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _over(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, Escaping) else Escaping(stream)
