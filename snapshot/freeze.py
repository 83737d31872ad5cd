"""A machine's whole state as bytes, and back: plain data, nothing that could be executed.

What may stand in a state: None, bool, int, float, str and bytes; tuples, lists, dicts, sets,
frozensets and deques; members of enums, msgspec structs, objects by their attributes, and bound
methods of such objects. Classes are written by name and belong to the packages that the caller
trusts; reading imports nothing. What two places share is one object again afterwards, so a machine
that was read back goes on as the one that was written.

The bytes depend on the state alone: dicts keep their order, sets are sorted.
"""

import functools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from types import MethodType
from typing import Any, cast

import msgspec

FORMAT = 1

PLAIN = frozenset({type(None), bool, float, str, bytes})
INT_BITS = 63
"""What fits a msgpack integer whatever its sign; a longer one is written as text."""

STRANGE = "not a state as freeze writes it"


class FreezeError(ValueError):
    """Something cannot be part of a state, or bytes are none; names where."""


def freeze(state: object, packages: Collection[str]) -> bytes:
    """Write everything that ``state`` consists of.

    Args:
        state: any object.
        packages: the top-level packages whose classes may occur in it.

    Raises:
        FreezeError: something in it is not plain; names the attributes that lead there.
    """
    writer = _Writer(packages)
    root = writer.put(state)
    return msgspec.msgpack.encode([FORMAT, writer.nodes, root])


def thaw(data: bytes, packages: Collection[str]) -> Any:
    """Read what ``freeze`` wrote.

    Args:
        data: as it was written.
        packages: the top-level packages whose classes may occur in it; their modules must have
            been imported.

    Raises:
        FreezeError: it is no such state, or one of other classes; nothing of it was executed.
    """
    try:
        version, nodes, root = msgspec.msgpack.decode(data)
        return _Reader(packages, version, nodes).whole(root)
    except FreezeError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise FreezeError(f"{STRANGE}: {error}") from None


def _trusted(module: str, packages: Collection[str]) -> bool:
    return module.partition(".")[0] in packages


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """What an object consists of: its slots and its dict, without what it can compute again."""
    cls = type(thing)
    names = [
        name
        for base in reversed(cls.__mro__)
        for name in _names(base.__dict__.get("__slots__", ()))
        if name not in {"__dict__", "__weakref__"}
    ]
    for name in [*names, *getattr(thing, "__dict__", {})]:
        unset = object()
        value = getattr(thing, _mangled(cls, name), unset)
        if value is not unset and not isinstance(
            getattr(cls, name, None), functools.cached_property
        ):
            yield name, value


def _names(slots: str | Collection[str]) -> Collection[str]:
    return (slots,) if isinstance(slots, str) else slots


def _mangled(cls: type, name: str) -> str:
    hidden = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if hidden else name


class _Writer:
    """What is mutable or shared becomes a numbered node; the rest stands where it is used."""

    def __init__(self, packages: Collection[str]) -> None:
        self.nodes: list[Any] = []
        self._packages = packages
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []
        """Written objects are held until the end, so that no number is given twice."""
        self._path: list[str] = []

    def put(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in PLAIN:
            return thing
        if kind is int:
            return thing if thing.bit_length() <= INT_BITS else ["i", str(thing)]
        if kind is tuple:
            return ["t", *map(self.put, thing)]
        if kind is frozenset:
            return ["f", *self._sorted(thing)]
        if isinstance(thing, Enum):
            return ["e", self._name(kind), thing.name]
        if kind is MethodType:
            return ["m", self.put(thing.__self__), thing.__name__]
        return ["r", self._node(thing, kind)]

    def _node(self, thing: Any, kind: type) -> int:
        known = self._seen.get(id(thing))
        if known is not None:
            return known
        number = self._seen[id(thing)] = len(self.nodes)
        self._alive.append(thing)
        self.nodes.append(None)
        self.nodes[number] = self._content(thing, kind)
        return number

    def _content(self, thing: Any, kind: type) -> list[Any]:
        if kind is list:
            return ["l", *map(self.put, thing)]
        if kind is dict:
            return ["d", *(self.put(each) for pair in thing.items() for each in pair)]
        if kind is set:
            return ["s", *self._sorted(thing)]
        if kind is deque:
            return ["q", thing.maxlen, *map(self.put, thing)]
        if isinstance(thing, msgspec.Struct):
            return ["S", self._name(kind), self._fields(thing, _struct_fields(thing))]
        return ["o", self._name(kind), self._fields(thing, attributes(thing))]

    def _fields(self, thing: object, fields: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for name, value in fields:
            self._path.append(f"{type(thing).__name__}.{name}")
            written[name] = self.put(value)
            self._path.pop()
        return written

    def _sorted(self, things: Collection[Any]) -> list[Any]:
        return sorted(map(self.put, things), key=msgspec.msgpack.encode)

    def _name(self, cls: type) -> str:
        if not _trusted(cls.__module__, self._packages) or "<" in cls.__qualname__:
            where = " > ".join(self._path) or "the state itself"
            raise FreezeError(f"{where}: {cls.__module__}.{cls.__qualname__} is not plain data")
        return f"{cls.__module__}:{cls.__qualname__}"


def _struct_fields(struct: msgspec.Struct) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(struct, name)) for name in struct.__struct_fields__)


class _Reader:
    """First the shells, then what is in them: a state may lead back to itself."""

    def __init__(self, packages: Collection[str], version: int, nodes: list[Any]) -> None:
        if version != FORMAT:
            raise FreezeError(f"a state of format {version}, this is {FORMAT}")
        self._packages = packages
        self._nodes = nodes
        self._made: list[Any] = [None] * len(nodes)
        self._filled: list[Callable[[], None]] = []

    def whole(self, root: Any) -> Any:
        for number, node in enumerate(self._nodes):
            self._made[number] = self._shell(node)
        for number, node in enumerate(self._nodes):
            if node[0] == "S":
                self._struct(number)
        # Objects before what may be sorted by their hashes.
        for kinds in ("o", "lq", "ds"):
            for made, node in zip(self._made, self._nodes, strict=True):
                if node[0] in kinds:
                    self._fill(made, node)
        return self.get(root)

    def get(self, thing: Any) -> Any:
        if not isinstance(thing, list):
            return thing
        tag, *rest = cast("list[Any]", thing)
        match tag:
            case "i":
                return int(rest[0])
            case "t":
                return tuple(map(self.get, rest))
            case "f":
                return frozenset(map(self.get, rest))
            case "e":
                return cast("type[Enum]", self._class(rest[0]))[rest[1]]
            case "m":
                return self._method(self.get(rest[0]), rest[1])
            case "r":
                return (
                    self._struct(rest[0]) if self._nodes[rest[0]][0] == "S" else self._made[rest[0]]
                )
            case _:
                raise FreezeError(f"{STRANGE}: {tag!r}")

    def _shell(self, node: list[Any]) -> Any:
        match node[0]:
            case "l":
                return []
            case "d":
                return {}
            case "s":
                return set[Any]()
            case "q":
                return deque[Any](maxlen=node[1])
            case "o":
                cls = self._class(node[1])
                return object.__new__(cls)
            case "S":
                return None
            case _:
                raise FreezeError(f"{STRANGE}: {node[0]!r}")

    def _struct(self, number: int) -> Any:
        """A struct cannot be filled later: what it holds is made with it."""
        if self._made[number] is None:
            _, name, fields = self._nodes[number]
            cls = self._class(name)
            if not issubclass(cls, msgspec.Struct):
                raise FreezeError(f"{STRANGE}: {name} is no struct")
            self._made[number] = cls(**{key: self.get(value) for key, value in fields.items()})
        return self._made[number]

    def _fill(self, made: Any, node: list[Any]) -> None:
        match node[0]:
            case "l":
                made.extend(map(self.get, node[1:]))
            case "q":
                made.extend(map(self.get, node[2:]))
            case "s":
                made.update(map(self.get, node[1:]))
            case "d":
                things = [self.get(each) for each in node[1:]]
                made.update(zip(things[::2], things[1::2], strict=True))
            case _:
                for name, value in node[2].items():
                    object.__setattr__(made, _mangled(type(made), name), self.get(value))

    def _class(self, name: str) -> type:
        module, _, path = name.partition(":")
        if not _trusted(module, self._packages) or module not in sys.modules:
            raise FreezeError(f"{name}: not a class that is known here")
        found: Any = sys.modules[module]
        for step in path.split("."):
            found = getattr(found, step, None)
        if not isinstance(found, type) or found.__module__ != module:
            raise FreezeError(f"{name}: not a class that is known here")
        return found

    def _method(self, owner: Any, name: str) -> Any:
        method = getattr(owner, name)
        if type(method) is not MethodType or method.__self__ is not owner:
            raise FreezeError(f"{type(owner).__name__}.{name} is no method")
        return method
