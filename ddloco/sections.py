"""Files that people write: TOML tables with a schema, and one line for whatever is wrong.

The line names file and field and says what would be right.
"""

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound="Section")


class ConfigError(ValueError):
    """A file or an option that cannot be used; one line names it and the field."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every table."""


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def convert(plain: Any, kind: type[T], source: str) -> T:
    """Plain data as the table that it must be.

    Raises:
        ConfigError: a field is unknown, missing, of a wrong type or out of bounds.
    """
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_in_words(str(error))}") from None


def _in_words(error: str) -> str:
    """``sync.quorum: Expected `int`, got `str``` from msgspec's sentence with a path at its end."""
    problem, _, path = error.partition(" - at `$")
    where = path.rstrip("`").lstrip(".")
    problem = problem.replace("Object contains unknown field", "unknown key")
    problem = problem.replace("Object missing required field", "missing key")
    return f"{where}: {problem}" if where else problem
