"""Text on its way to a terminal: control characters in it are written as escapes. Names, reasons,
log lines and messages come from files and peers; control characters could clear the screen, forge
lines, or write to other programs. What the program itself draws goes through ``console``."""

import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
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


def quoted(words: Iterable[object]) -> str:
    """Words as a shell reads them; a path that begins with a dash is no option."""
    texts = (f"./{w}" if isinstance(w, Path) and str(w)[0] == "-" else str(w) for w in words)
    return " ".join(map(shlex.quote, texts))


def one_line(text: object) -> str:
    """The same on one line: newlines and tabs are control characters here."""
    said = str(text)
    if said.isprintable():
        return said
    return escaped(said).replace("\n", "\\u000a").replace("\t", "\\u0009")


class Escaping:
    """A text stream that escapes control characters; ``unescaped`` is for those who write them on
    purpose."""

    def __init__(self, stream: Any) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        self.unescaped.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


class Outliving:
    """A text stream for a program that goes on when nobody reads it, or its disk is full: a
    terminal that is closed, a log driver that has ended, ``| head``. What cannot be written is
    lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def let_go(self) -> None:
        """Leave nothing that Python would write, and complain about, when the process ends."""
        try:
            self._stream.flush()
        except OSError:
            with suppress(OSError):  # Also where it has no descriptor.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Have this program go on when its standard output or standard error cannot be written."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Escaping) and not isinstance(stream.unescaped, Outliving):
            stream.unescaped = Outliving(stream.unescaped)
        elif stream is not None and not isinstance(stream, Escaping | Outliving):
            setattr(sys, name, Outliving(stream))


def let_go() -> None:
    for stream in (sys.stdout, sys.stderr):
        inner = stream.unescaped if isinstance(stream, Escaping) else stream
        if isinstance(inner, Outliving):
            inner.let_go()


@contextmanager
def escaping() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_over(each) for each in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _over(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, Escaping) else Escaping(stream)
