"""What a user may have meant by a name that is not known."""

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

CUTOFF = 0.6
"""How alike two names are, of 1; difflib's own default."""


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that is most like ``name``; empty if none is."""
    found = difflib.get_close_matches(name, known, 1, CUTOFF)
    return found[0] if found else ""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """The end of an error line: ``; did you mean NAME?``, or nothing."""
    found = nearest(name, known)
    return f"; did you mean {found}?" if found else ""


def near_key(kind: Any, path: str, key: str) -> str:
    table = _at(kind, path)
    prefix = f"{path}." if path else ""
    here = [f"{prefix}{name}" for name in _fields(table)]
    elsewhere = [each for each in _keys(kind) if each.rpartition(".")[2] == key]
    if f"{prefix}{key}" not in here and elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    return did_you_mean(f"{prefix}{key}", here)


def choices(kind: Any, path: str) -> tuple[str, ...]:
    """The allowed values of an enumeration at a path; empty if there is none."""
    found = _bare(_at(kind, path))
    return tuple(map(str, get_args(found))) if get_origin(found) is Literal else ()


def described(kind: Any, path: str) -> str:
    """What the bounds of the value at a path say in words; empty if they say nothing."""
    table, _, name = path.rpartition(".")
    bounds = getattr(_fields(_at(kind, table)).get(name), "__metadata__", ())
    return next((each.description for each in bounds if each.description), "")


def _at(kind: Any, path: str) -> Any:
    """The type at a path, such as ``sync.pull``, ``learner[...].env`` or ``chaos.fault[0]``."""
    for part in re.findall(r"\[[^]]*]|[^.[]+", path):
        kind = _bare(kind)
        if part.startswith("["):
            kind = ([each for each in get_args(kind) if each is not ...] or [None])[-1]
        else:
            kind = _fields(kind).get(part)
    return _bare(kind)


def _bare(kind: Any) -> Any:
    """A type without what surrounds it: bounds, and None as an alternative."""
    while hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    if get_origin(kind) is Union or type(kind).__name__ == "UnionType":
        [kind, *_] = [each for each in get_args(kind) if each is not type(None)]
        return _bare(kind)
    return kind


def _fields(kind: Any) -> dict[str, Any]:
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return {}
    return get_type_hints(kind, include_extras=True)


def _keys(kind: Any) -> Iterator[str]:
    """All keys of tables, as ``table.key``."""
    for table, inner in _fields(_bare(kind)).items():
        yield from (f"{table}.{name}" for name in _fields(_bare(inner)))
