"""Files that people write: TOML tables with a schema, and one line for whatever is wrong.

The line names file and field and says what would be right.
"""

import math
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from clocks import read_regular

T = TypeVar("T", bound="Section")

FILE_BYTES_MAX = 16 * 2**20
"""Nobody writes more settings than this."""

DEPTH_MAX = 32
"""Tables and lists within each other: five are used, and a task may have options of its own."""

FREE = ("task", "options")
"""Tables whose contents are somebody else's: numbers there may be anything."""


class ConfigError(ValueError):
    """A file or an option that cannot be used; one line names it and the field."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every table."""


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    try:
        data = read_regular(path, FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{shown}: cannot be read: it has more than {FILE_BYTES_MAX} bytes")
        # Lines may end as any system ends them, as in a file that is opened as text.
        return tomllib.loads(data.decode().replace("\r\n", "\n"))
    except OSError as error:
        raise ConfigError(f"{shown}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{shown}: not TOML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{shown}: not TOML that can be read: nested too deep") from None
    except ValueError as error:  # A date that there is not, or a number of thousands of digits.
        raise ConfigError(f"{shown}: not TOML: {error}") from None


def convert(plain: Any, kind: type[T], source: str) -> T:
    """Plain data as the table that it must be.

    Raises:
        ConfigError: a field is unknown, missing, of a wrong type or out of bounds.
    """
    for path, problem in _impossible(plain):
        raise ConfigError(f"{source}: {path}: {problem}")
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_in_words(str(error))}") from None


def _impossible(plain: Any) -> Iterator[tuple[str, str]]:
    """What no table may hold, whatever its schema: with its path, what is wrong."""
    waiting: list[tuple[str, Any, int]] = [("", plain, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        if depth > DEPTH_MAX:
            yield _short(path), f"nested deeper than {DEPTH_MAX} tables"
            return
        free = path.partition(".")[0] in FREE
        if isinstance(value, dict):
            waiting += [(f"{path}.{k}".lstrip("."), each, depth + 1) for k, each in value.items()]
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}[{n}]", each, depth + 1) for n, each in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value) and not free:
            yield _short(path), f"{value}: want a finite number"
        elif isinstance(value, str) and "\0" in value and not free:
            yield _short(path), "has a NUL byte"


def _short(path: str) -> str:
    shown = path if len(path) <= 80 else f"{path[:77]}..."
    return shown if shown.isprintable() else ascii(shown)


def _in_words(error: str) -> str:
    """``sync.quorum: Expected `int`, got `str``` from msgspec's sentence with a path at its end."""
    problem, _, path = error.partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    problem = " ".join(problem.split())
    problem = problem.replace("Object contains unknown field", "unknown key")
    problem = problem.replace("Object missing required field", "missing key")
    return f"{where}: {problem}" if where else problem
