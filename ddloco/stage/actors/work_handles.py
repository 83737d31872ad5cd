"""Which arrays a piece of work reads and makes: its fields of type ``Read`` or ``Made``, also
within tuples, values of dicts, and structs. One that has a default may be empty, and then is left
out."""

from collections.abc import Callable
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from msgspec import Struct
from msgspec.structs import fields

Use = Literal["reads", "makes"]

Read = Annotated[str, "reads"]
"""The handle of an array that the work reads."""

Made = Annotated[str, "makes"]
"""The handle of an array that exists once the work is done."""


def handles_in(kind: type[Struct], use: Use) -> Callable[[Any], tuple[str, ...]]:
    """Return what lists the handles in a struct of this kind, in the order of its fields. It is
    compiled, once for each kind: it is called for each piece of work, and a loop over the fields
    would take three times as long."""
    found = _in_struct(kind, "work", use)
    one = len(found) == 1 and found[0].startswith("*work.")
    return eval(f"lambda work: {found[0][1:] if one else _tuple(found)}")  # noqa: S307, of fields


def _in_struct(kind: type[Struct], value: str, use: Use) -> list[str]:
    """Python for the handles in a struct, as elements of a tuple."""
    found: list[str] = []
    for each in fields(kind):
        at = f"{value}.{each.name}"
        found += (
            [at] if each.required and _is_handle(each.type, use) else _in_value(each.type, at, use)
        )
    return found


def _in_value(hint: Any, value: str, use: Use) -> list[str]:
    if _is_handle(hint, use):
        return [f"*(({value},) if {value} else ())"]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _in_struct(hint, value, use)
    if get_origin(hint) in {None, Annotated}:
        return []
    held = [each for each in get_args(hint) if each not in {NoneType, ...}]
    held = held[1:] if get_origin(hint) is dict else held
    optional = NoneType in get_args(hint)
    inner = [_in_value(each, value if optional else "each", use) for each in held]
    if not any(inner):
        return []
    if any(each != inner[0] for each in inner):
        raise TypeError(f"{value}: {hint} is a handle in some cases only")
    if optional:
        return [f"*(() if {value} is None else {_tuple(inner[0])})"]
    values = f"{value}.values()" if get_origin(hint) is dict else value
    if _is_handle(held[0], use):
        return [f"*{values}"]
    if len(inner[0]) == 1 and not inner[0][0].startswith("*"):
        return [f"*[{inner[0][0]} for each in {values}]"]
    return [f"*[handle for each in {values} for handle in {_tuple(inner[0])}]"]


def _is_handle(hint: Any, use: Use) -> bool:
    return get_origin(hint) is Annotated and use in hint.__metadata__


def _tuple(elements: list[str]) -> str:
    return f"({' '.join(f'{each},' for each in elements)})"
