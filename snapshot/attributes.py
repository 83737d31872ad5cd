"""The state of an object of any class: its attributes, written as plain data and read by type.

An attribute that the class annotates, or that ``__init__`` assigns with an annotation, has that
type: plain data, tuples, sets, enums, dataclasses and structs. Any other attribute is plain data:
None, bool, int, float, str, bytes, and lists and dicts of these. No name in a state chooses a
class, and an attribute that the class defines otherwise, such as a method, cannot be set.
"""

import ast
import functools
import inspect
import math
import sys
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar

import msgspec

from snapshot.states import WORDS_MAX, StateError, in_short

SCALARS = frozenset({type(None), bool, int, float, str, bytes})

WANT = (
    "want plain data (None, bool, int, float, str, bytes, lists and dicts of these), or an "
    "annotation of the attribute with its type"
)


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """An object's slots and instance attributes, without cached properties."""
    for name in _slots(type(thing)):
        try:
            yield name, getattr(thing, name)
        except AttributeError:
            continue  # The slot was never set.
    for name, value in getattr(thing, "__dict__", {}).items():
        if not isinstance(getattr(type(thing), name, None), functools.cached_property):
            yield name, value


@functools.cache
def _slots(cls: type) -> tuple[str, ...]:
    """The names of a class's slots as they are stored: ``__x`` is ``_Class__x``."""
    found: list[str] = []
    for base in reversed(cls.__mro__):
        own = base.__dict__.get("__slots__", ())
        names = (own,) if isinstance(own, str) else own
        found += [_stored(base, name) for name in names if name not in {"__dict__", "__weakref__"}]
    return tuple(found)


def _stored(cls: type, name: str) -> str:
    hidden = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if hidden else name


def plain_state(machine: object) -> dict[str, Any]:
    """Return a machine's attributes as plain data.

    Raises StateError, which names the attribute, for a value that is no data, would be read as
    another one, or is a list, a dict or an object that is also elsewhere in the state.
    """
    cls, seen = type(machine), dict[int, str]()
    written: dict[str, Any] = {}
    for name, value in attributes(machine):
        place = f"{cls.__name__}.{name}"
        _check_name(cls, name)
        try:
            written[name] = _plain(value, place, seen)
            back = _read(cls, name, written[name])
        except (RecursionError, OverflowError, UnicodeError) as error:
            raise StateError(f"{place}: {in_short(error)}") from None
        difference = _difference(value, back)
        if difference:
            raise StateError(f"{place}: {difference}; {WANT}")
    return written


def machine_from(like: object, plain: Mapping[str, Any]) -> Any:
    """Return a machine with what ``plain_state`` returned; nothing of its class is called.

    ``like`` is a machine of the same class before its first event. Raises StateError if an
    attribute is unknown, missing, or of another type.
    """
    cls = type(like)
    made = object.__new__(cls)
    for name, value in plain.items():
        _check_name(cls, name)
        found = _read(cls, name, value)
        _check_fields(value, _plain(found, f"{cls.__name__}.{name}", {}), f"{cls.__name__}.{name}")
        object.__setattr__(made, name, found)
    _check_names(cls, {name for name, _ in attributes(like)}, plain)
    return made


def _check_names(cls: type, new: set[str], plain: Mapping[str, Any]) -> None:
    """Refuse what a machine of the present source would not have, or would miss: it would go on
    with the values of a new one."""
    known, hints = _names_in_source(cls), declared(cls)
    lacks = new - {*plain, *known.deleted}
    unknown = sorted({*plain} - new - {*hints, *_slots(cls), *known.set_})
    found: list[str] = []
    if unknown and not known.any_name:
        found.append(f"the snapshot has {', '.join(unknown)}, which {cls.__name__} does not have")
        lacks |= {name for name in {*hints} - {*plain} if not name.startswith("_")}
    if lacks:
        found.append(f"{cls.__name__} has {', '.join(sorted(lacks))}, which the snapshot lacks")
    if found:
        raise StateError("; ".join(found)[:WORDS_MAX])


def _check_fields(written: Any, again: Any, place: str) -> None:
    """Refuse fields of structs and dataclasses that were not read, or were not written."""
    if isinstance(written, dict) and isinstance(again, dict):
        for key in sorted({*written} ^ {*again}, key=str):
            where = "is in the snapshot only" if key in written else "is not in the snapshot"
            raise StateError(f"{place}: {str(key)[:100]} {where}")
        pairs = [(written[key], again[key], f"{place}.{key}"[:WORDS_MAX]) for key in written]
    elif isinstance(written, list | tuple) and isinstance(again, list | tuple):
        if len(written) != len(again):
            raise StateError(f"{place}: {len(written)} items in the snapshot, {len(again)} here")
        pairs = [(one, other, place) for one, other in zip(written, again, strict=True)]
    else:
        return
    for one, other, where in pairs:
        _check_fields(one, other, where)


class _Names(typing.NamedTuple):
    """The attributes that the methods of a class set and delete; ``any_name`` if they may set
    others, by names that are not in the source."""

    set_: frozenset[str]
    deleted: frozenset[str]
    any_name: bool


@functools.cache
def _names_in_source(cls: type) -> _Names:
    names: dict[type, set[str]] = {ast.Store: set(), ast.Del: set()}
    any_name = False
    for base in cls.__mro__[:-1]:
        try:
            text = textwrap.dedent(inspect.getsource(base))
            tree = ast.parse(text)
        except (OSError, TypeError, SyntaxError):
            any_name = True
            continue
        any_name |= any(word in text for word in ("setattr(self", "self.__dict__", "vars(self)"))
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(ast.Name("self"), name, context):
                    names.get(type(context), set()).add(_stored(base, name))
                case _:
                    pass
    return _Names(frozenset(names[ast.Store]), frozenset(names[ast.Del]), any_name)


def _read(cls: type, name: str, value: Any) -> Any:
    hint = declared(cls).get(name, Any)
    try:
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=hint)
    except (TypeError, ValueError) as error:
        said = in_short(error).removeprefix("ValidationError: ")
        raise StateError(f"{cls.__name__}.{name}: {said}") from None


def _check_name(cls: type, name: str) -> None:
    """Refuse an attribute that would hide something that the class defines."""
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    slot = type(found) is types.MemberDescriptorType
    default = name in declared(cls) and not callable(found) and not hasattr(found, "__get__")
    if not name.isidentifier() or (name.startswith("__") and name.endswith("__")):
        raise StateError(f"{cls.__name__}: {name[:100]!r} is not the name of an attribute")
    if not (found is None or slot or default):
        raise StateError(f"{cls.__name__}.{name}: the class defines it, and does not annotate it")


@functools.cache
def declared(cls: type) -> Mapping[str, Any]:
    """The types of the attributes that a class annotates, or its ``__init__``."""
    found: dict[str, Any] = {}
    try:
        for base in reversed(cls.__mro__):
            found.update(_annotated_in_init(base))
        found.update(typing.get_type_hints(cls))
    except Exception as error:  # noqa: BLE001, an annotation is any expression
        raise StateError(f"the annotations of {cls.__name__}: {in_short(error)}") from None
    return {
        name: hint
        for name, hint in found.items()
        if hint is not ClassVar and typing.get_origin(hint) is not ClassVar
    }


def _annotated_in_init(cls: type) -> dict[str, Any]:
    """The types of ``self.name: type = ...`` in a class's own ``__init__``."""
    made = vars(cls).get("__init__")
    if type(made) is not types.FunctionType or is_dataclass(cls):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    except (OSError, SyntaxError):
        return {}
    names = vars(sys.modules[cls.__module__])
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Attribute(ast.Name("self"), name), annotation=hint):
                written = hint.value if isinstance(hint, ast.Constant) else ast.unparse(hint)
                found[_stored(cls, name)] = eval(str(written), names)  # noqa: S307, user's source
            case _:
                pass
    return found


def _plain(value: Any, place: str, seen: dict[int, str]) -> Any:
    kind = type(value)
    if kind in SCALARS:
        return value
    if isinstance(value, Enum):
        return _plain(value.value, place, seen)
    if kind is tuple:
        return tuple(_plain(each, place, seen) for each in value)
    if kind in {set, frozenset}:
        members = [_plain(each, place, seen) for each in value]
        return sorted(members, key=msgspec.msgpack.encode)
    if kind is list:
        _once(value, place, seen)
        return [_plain(each, place, seen) for each in value]
    if kind is dict:
        _once(value, place, seen)
        return {_plain(k, place, seen): _plain(v, place, seen) for k, v in value.items()}
    names = _field_names(value)
    if names is None:
        raise StateError(f"{place}: {_kind(value)}; {WANT}")
    config = getattr(kind, "__struct_config__", None)
    if not (config or kind.__dataclass_params__).frozen:
        _once(value, place, seen)
    held = ((name, getattr(value, name)) for name in names)
    members = {name: _plain(each, place, seen) for name, each in held if each is not msgspec.UNSET}
    if config is not None and config.array_like:
        tag = (config.tag,) if config.tag is not None else ()
        return [*tag, *members.values()]
    if config is not None and config.tag is not None:
        return {config.tag_field: config.tag, **members}
    return members


def _once(value: object, place: str, seen: dict[int, str]) -> None:
    """Refuse what can change and is in the state twice: it would be read as two."""
    if id(value) in seen:
        kind, former = type(value).__name__, seen[id(value)]
        raise StateError(f"{place}: the same {kind} is in {former}; want a copy")
    seen[id(value)] = place


def _field_names(value: object) -> tuple[str, ...] | None:
    """The fields of a struct or a dataclass; None for anything else."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(each.name for each in fields(value))
    return None


def _difference(one: Any, other: Any) -> str:
    """How a value that was read differs from the one that was written; empty if it does not."""
    kinds = type(one), type(other)
    if kinds in {(int, float), (float, float)}:  # An int is a float where that is declared.
        same = one == other or (math.isnan(one) and math.isnan(other))
        return "" if same else f"{one} would be read as {other}"
    if kinds[0] is not kinds[1]:
        return f"{_kind(one)} would be read as {_kind(other)}"
    if isinstance(one, dict):
        one, other = [*one.items()], [*other.items()]
    names = _field_names(one)
    if names is not None:
        one, other = ([getattr(each, name) for name in names] for each in (one, other))
    if isinstance(one, list | tuple) and len(one) == len(other):
        found = (said for pair in zip(one, other, strict=True) if (said := _difference(*pair)))
        return next(found, "")
    return "" if one == other else f"{_kind(one)} would be read as another one"


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"
