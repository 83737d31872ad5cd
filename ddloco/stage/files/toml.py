"""Files written by users: TOML tables with a schema, and one line for each error. The line names
the file and the field, and says what would be valid."""

import errno
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from clocks import read_regular
from ddloco.stage.files.near_miss import choices, described, did_you_mean, near_key
from replay.tape import UnwrittenError

T = TypeVar("T", bound="Section")

FILE_BYTES_MAX = 16 * 2**20
"""Larger than any plausible file of settings."""

DEPTH_MAX = 32
"""Nesting of tables and lists: five levels are used, and a task's options may have more."""

DOTS_MAX = 64
"""Dots between words without ``=``, comma or bracket: what the parser needs for a dotted key grows
with the square of its parts, so that one of 400 kB would take all memory."""

DOTTED = re.compile(r"""[\w"'-][ \t]{0,9}\.[ \t]{0,9}(?=[\w"'-])""")
NO_KEY = re.compile(r"[=,{}\[\]\n]")

KEY_CHARS_MAX = 80
"""Of a key in an error line; longer ones are not keys of any table here."""

FREE = ("task", "options")
"""Tables with contents defined by users; their numbers may have any value."""


class ConfigError(ValueError):
    """A file or an option is invalid; one line names it and the field."""


class PassingError(ConfigError):
    """What stands in the way now may be gone later, without anybody's doing; one line says what."""


LASTING = frozenset({
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.ENODEV, errno.EADDRNOTAVAIL, errno.EEXIST, errno.ENOTEMPTY, errno.EXDEV),
})  # fmt: skip
"""System errors that stay until a person changes what was typed or written. All others may pass: a
place that refuses, an address in use, no memory, space or descriptors."""


def passes(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno not in LASTING
    return isinstance(error, PassingError | UnwrittenError)


def refused(said: str, error: OSError) -> ConfigError:
    line = f"{said}: {error.strerror or error}"
    return PassingError(line) if passes(error) else ConfigError(line)


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of every table."""


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as plain data; ``ConfigError`` if it cannot be read, or is not TOML."""
    shown = str(path) if str(path).isprintable() else ascii(str(path))
    text = ""
    try:
        data = read_regular(path, FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{shown}: cannot be read: it has more than {FILE_BYTES_MAX} bytes")
        # Accept what editors of all systems write: their line ends, and a byte-order mark.
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
        if any(len(DOTTED.findall(each)) > DOTS_MAX for each in NO_KEY.split(text)):
            raise ConfigError(f"{shown}: not TOML that can be read: a key of too many parts")
        return tomllib.loads(text)
    except OSError as error:
        raise refused(f"{shown}: cannot be read", error) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        said = _twice(str(error), text) or " ".join(str(error).split())
        raise ConfigError(f"{shown}: not TOML: {said}") from None
    except RecursionError:
        raise ConfigError(f"{shown}: not TOML that can be read: nested too deep") from None
    except ValueError as error:  # An impossible date, or a number of thousands of digits.
        raise ConfigError(f"{shown}: not TOML: {error}") from None


def _twice(error: str, text: str) -> str:
    """The parser's error about a key that is set twice, with the key; empty if the error is
    another, or the key is not on the line that the error names."""
    place = re.fullmatch(r"Cannot overwrite a value (\(at line ([0-9]+), column [0-9]+\))", error)
    if place is None:
        return ""
    lines = [line.partition("=")[0].strip() for line in text.split("\n") if "=" in line]
    key = text.split("\n")[int(place[2]) - 1].partition("=")[0].strip()
    found = lines.count(key) > 1 and key.isprintable() and 0 < len(key) <= KEY_CHARS_MAX
    return f"`{key}` is set twice {place[1]}" if found else ""


def convert(plain: Any, kind: type[T], source: str, *, sort_keys: bool = False) -> T:
    """Convert plain data of the file ``source`` to a table, its dicts in the order of the file or
    sorted by key. ``ConfigError`` if a field is unknown, missing, of a wrong type or out of
    bounds."""
    for path, problem in _impossible(plain):
        raise ConfigError(f"{source}: {path}: {problem}")
    try:
        return msgspec.convert(_sorted(plain) if sort_keys else plain, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_in_words(str(error), kind)}") from None


def _impossible(plain: Any) -> Iterator[tuple[str, str]]:
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


def _sorted(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _sorted(plain[key]) for key in sorted(plain, key=str)}
    if isinstance(plain, list | tuple):
        return [_sorted(each) for each in plain]
    return plain


def _short(path: str) -> str:
    shown = path if len(path) <= 80 else f"{path[:77]}..."
    return shown if shown.isprintable() else ascii(shown)


def _in_words(error: str, kind: Any) -> str:
    """Convert msgspec's message, with its path at the end, to ``PATH: PROBLEM``, and say what the
    user may have meant."""
    problem, _, path = error.partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    problem = " ".join(problem.split())
    problem = problem.replace("Object contains unknown field", "unknown key")
    problem = problem.replace("Object missing required field", "missing key")
    name = problem.partition("`")[2].rstrip("`")
    if problem.startswith("unknown key"):
        problem += near_key(kind, where, name)
    if "matching regex" in problem:
        problem = f"want {described(kind, where)}"
    allowed = choices(kind, where)
    if allowed and problem.startswith("Invalid enum value"):
        given = problem.partition("'")[2].rstrip("'")
        problem += f"; want one of {', '.join(allowed)}{did_you_mean(given, allowed)}"
    return f"{where}: {problem}" if where else problem
