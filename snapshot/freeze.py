"""Conversion of a machine's whole state to bytes and back, as plain data without executable code.

A state may contain None, bool, int, float, str and bytes; tuples, lists, dicts, sets, frozensets
and deques; members of enums, msgspec structs, objects with their attributes, and bound methods of
such objects. Classes are written by name and must belong to packages that the caller trusts.
Reading imports nothing, and calls no constructor except msgspec's for structs. An object that is
referenced from two places is one object again after reading, so a machine that was read back
continues exactly like the one that was written.

The bytes depend only on the state: dicts keep their order, sets are sorted.
"""

import functools
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from itertools import chain, pairwise
from types import FunctionType, MethodType
from typing import Any, cast

import msgspec

FORMAT = 2
"""The format of a state's bytes. Moving or renaming a class changes the bytes, as they name it."""

READERS = {1: "0.1"}
"""The version of ddloco that reads each older format."""

DEPTH_MAX = 100
"""Maximum depth of nesting. Machines need a tenth of it, and Python's own recursion limit depends
on the depth of the caller."""

PLAIN = frozenset({type(None), bool, float, str, bytes})
UNTOUCHED = PLAIN - {str}
"""Types whose values are written unchanged and unchecked."""

INT_BITS = 63
"""Integers of up to this many bits fit a msgpack integer of either sign; longer ones are written as
text."""

INT_END = 2**INT_BITS

NODES = frozenset({list, dict, set, deque})

STRANGE = "not a state as freeze writes it"

HOME = __name__.removesuffix("snapshot.freeze")
"""What precedes the name of this package where it and its siblings are parts of another one. The
names of classes are written without it, so that a state means the same in both."""


class FreezeError(ValueError):
    """A value cannot be part of a state, or bytes are not a state; names the place."""


def freeze(state: object, packages: Collection[str]) -> bytes:
    """Write everything that ``state`` consists of.

    Args:
        state: any object.
        packages: the top-level packages whose classes may occur in it.

    Raises:
        FreezeError: a value in it is not plain data; names the attributes that lead to it.
    """
    return _Writer(packages, [], 0).whole(state)


def attributes(thing: object) -> Iterator[tuple[str, Any]]:
    """An object's slots and instance attributes, without cached properties."""
    for name in slots(type(thing)):
        try:
            yield name, getattr(thing, name)
        except AttributeError:
            continue  # The slot was never set.
    for name, value in getattr(thing, "__dict__", {}).items():
        if not isinstance(getattr(type(thing), name, None), functools.cached_property):
            yield name, value


@functools.cache
def slots(cls: type) -> tuple[str, ...]:
    """The names of a class's slots as they are stored: ``__x`` is ``_Class__x``."""
    found: list[str] = []
    for base in reversed(cls.__mro__):
        own: str | Collection[str] = base.__dict__.get("__slots__", ())
        for name in (own,) if isinstance(own, str) else own:
            if name not in {"__dict__", "__weakref__"}:
                hidden = name.startswith("__") and not name.endswith("__")
                found.append(f"_{base.__name__.lstrip('_')}{name}" if hidden else name)
    return tuple(found)


def method_of(owner: object, name: str) -> MethodType | None:
    """The method of an object with this name, found without calling anything."""
    for base in type(owner).__mro__:
        found = base.__dict__.get(name)
        if found is not None:
            return MethodType(found, owner) if type(found) is FunctionType else None
    return None


def _stored(method: MethodType) -> str:
    """The name under which a method's class stores it: ``__x`` is ``_Class__x``."""
    for base in type(method.__self__).__mro__:
        for name, found in base.__dict__.items():
            if found is method.__func__:
                return name
    return ""


@functools.cache
def bare(cls: type) -> bool:
    """Whether objects of a class consist only of their attributes, unlike containers, exceptions
    and named tuples."""
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return not issubclass(cls, Enum)


class _Writer:
    """Writes mutable and shared objects as numbered nodes, and other values in place."""

    def __init__(self, packages: Collection[str], path: list[tuple[type, str]], depth: int) -> None:
        self._packages = packages
        self._nodes: list[Any] = []
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []
        """Keeps written objects alive until the end, so that ids are not reused."""
        self._path = path
        self._depth = depth
        self._known: dict[type, str] = {}
        """Classes that have been accepted, with their written names."""
        self._around: tuple[int, ...] = ()
        """The nodes of the structs that directly contain what is being written."""

    def whole(self, state: object) -> bytes:
        try:
            root = self.put(state)
            return msgspec.msgpack.encode([FORMAT, self._nodes, root])
        except RecursionError:
            raise self._refusal("nested too deep for the caller's stack") from None

    def put(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in PLAIN:
            if kind is str and not thing.isascii():
                self._encodable(thing)
            return thing
        if kind is int:
            return thing if thing.bit_length() <= INT_BITS else ["i", hex(thing)]
        if self._depth == DEPTH_MAX:
            raise self._refusal(f"nested more than {DEPTH_MAX} deep")
        self._depth += 1
        node = kind in NODES or kind in self._known  # There are no enums among these.
        written = ["r", self._node(thing, kind)] if node else self._put(thing, kind)
        self._depth -= 1
        return written

    def _encodable(self, text: str) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self._refusal(f"{text!r} is not valid text") from None

    def _put(self, thing: Any, kind: type) -> list[Any]:
        if kind is tuple:
            return ["t", *self._all(thing)]
        if kind is frozenset:
            return ["f", *self._sorted(thing)]
        if isinstance(thing, Enum):
            if kind.__members__.get(thing.name) is not thing:
                raise self._refusal(f"{thing} is not a single member of an enum")
            return ["e", self._class(kind), thing.name]
        if kind is MethodType:
            name = _stored(thing)
            if method_of(thing.__self__, name) != thing:
                raise self._refusal(f"{thing.__qualname__} is not a method of its object's class")
            return ["m", self.put(thing.__self__), name]
        if thing is msgspec.UNSET:
            return ["u"]
        return ["r", self._node(thing, kind)]

    def _node(self, thing: Any, kind: type) -> int:
        known = self._seen.get(id(thing))
        if known is not None:
            if known in self._around:
                raise self._refusal("a struct that leads back to itself")
            return known
        number = self._seen[id(thing)] = len(self._nodes)
        self._alive.append(thing)
        self._nodes.append(None)
        around = self._around
        self._around = (*around, number) if is_struct(kind) else ()
        self._nodes[number] = self._content(thing, kind)
        self._around = around
        return number

    def _content(self, thing: Any, kind: type) -> list[Any]:
        if kind is list:
            return ["l", *self._all(thing)]
        if kind is dict:
            return ["d", *self._all(chain.from_iterable(thing.items()))]
        if kind is set:
            return ["s", *self._sorted(thing)]
        if kind is deque:
            return ["q", thing.maxlen, *self._all(thing)]
        if is_struct(kind):
            more = not only_fields(kind) or getattr(thing, "__dict__", None)
            if (more and _more(thing)) or not made_bare(kind):
                raise self._refusal(f"{kind.__qualname__} is more than its fields")
            fields = ((name, getattr(thing, name)) for name in thing.__struct_fields__)
            return ["S", self._name(kind), self._fields(thing, fields)]
        name = self._name(kind)
        if not bare(kind):
            raise self._refusal(f"{kind.__qualname__} is more than its attributes")
        return ["o", name, self._fields(thing, attributes(thing))]

    def _fields(self, thing: object, fields: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        written: dict[str, Any] = {}
        for name, value in fields:
            kind = type(value)
            if (
                kind in UNTOUCHED
                or (kind is int and -INT_END < value < INT_END)
                or (kind is str and value.isascii())
            ):
                written[name] = value
                continue
            self._path.append((type(thing), name))
            written[name] = self.put(value)
            self._path.pop()
        return written

    def _all(self, things: Iterable[Any]) -> list[Any]:
        """Write several values; plain ones, which are the most, without a call for each."""
        return [
            each
            if (kind := type(each)) in UNTOUCHED
            or (kind is int and -INT_END < each < INT_END)
            or (kind is str and each.isascii())
            else self.put(each)
            for each in things
        ]

    def _sorted(self, things: Collection[Any]) -> list[Any]:
        """Write the members of a set, sorted by the bytes of each member written on its own, since
        node numbers here depend on what was written before. A member may not refer to the set."""
        alone = [(self._alone(each), each) for each in things]
        alone.sort(key=lambda each: each[0])
        for (one, _), (other, _) in pairwise(alone):
            if one == other:
                raise self._refusal("two members of a set cannot be told apart")
        return [self.put(each) for _, each in alone]

    def _alone(self, thing: Any) -> bytes:
        return _Writer(self._packages, [*self._path], self._depth).whole(thing)

    def _name(self, cls: type) -> str:
        known = self._known.get(cls)
        if known is not None:
            return known
        name = self._known[cls] = self._class(cls)
        return name

    def _class(self, cls: type) -> str:
        name = f"{cls.__module__.removeprefix(HOME)}:{cls.__qualname__}"
        if class_of(name, self._packages) is not cls:
            raise self._refusal(f"{cls.__module__}.{cls.__qualname__} is not plain data")
        return name

    def _refusal(self, what: str) -> FreezeError:
        path = " > ".join(f"{cls.__name__}.{name}" for cls, name in self._path)
        return FreezeError(f"{path or 'the state itself'}: {what}")


def _more(struct: msgspec.Struct) -> bool:
    """Whether a struct has attributes besides its fields."""
    return bool(dict(attributes(struct)).keys() - {*struct.__struct_fields__})


@functools.cache
def is_struct(cls: type) -> bool:
    """Whether a class is a msgspec struct; cached, because ``isinstance`` is slow on structs."""
    return issubclass(cls, msgspec.Struct)


@functools.cache
def only_fields(cls: type[msgspec.Struct]) -> bool:
    """Whether all slots of a struct's class are fields."""
    return {*slots(cls)} <= {*cls.__struct_fields__}


@functools.cache
def made_bare(cls: type) -> bool:
    """Whether creating a struct executes no code of its class."""
    return not hasattr(cls, "__post_init__")


def class_of(name: str, packages: Collection[str]) -> type | None:
    """The class of this name, if it has been imported and belongs to a trusted package."""
    module, _, path = name.partition(":")
    if module.partition(".")[0] not in packages:
        return None
    return _class_in(f"{HOME}{module}", path) or _class_in(module, path)


def _class_in(module: str, path: str) -> type | None:
    found: Any = sys.modules.get(module)
    for step in path.split("."):
        found = vars(found).get(step) if found is not None else None
    same = isinstance(found, type) and (found.__module__, found.__qualname__) == (module, path)
    return cast("type", found) if same else None
