"""Conversion of a machine's whole state to bytes and back, as plain data without executable code.

A state may contain None, bool, int, float, str and bytes; tuples, lists, dicts, sets, frozensets
and deques; members of enums, msgspec structs, and objects with their attributes. Classes are
written by name and must be listed (``state_types``); functions and methods have no place in it.
Reading imports nothing, and calls no constructor except msgspec's for structs. An object that is
referenced from two places is one object again after reading, so a machine that was read back
continues exactly like the one that was written.

The bytes depend only on the state: dicts keep their order, sets are sorted.
"""

import functools
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from enum import Enum
from itertools import chain, pairwise
from typing import Any

import msgspec

from snapshot.state_types import StateTypes, attribute_names, may_set, written_name

FORMAT = 3
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

BYTES_MAX = 2**25
"""Maximum size of a state. A syncer of a thousand learners needs an eighth of it; arrays and the
payloads of messages are stored apart."""

NODES_MAX = 2**20
"""Maximum number of lists, dicts, sets, structs and objects in a state. Each takes some hundred
bytes of memory when it is read."""

HEX_MAX = 2**10
"""Maximum length of an integer that is written as text."""


class FreezeError(ValueError):
    """A value cannot be part of a state, or bytes are not a state; names the place."""


def freeze(state: object, allowed: StateTypes) -> bytes:
    """Write everything that ``state`` consists of.

    Args:
        state: any object.
        allowed: the classes that may occur in it.

    Raises:
        FreezeError: a value in it is not plain data; names the attributes that lead to it.
    """
    return _Writer(allowed, [], 0).whole(state)


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

    def __init__(self, allowed: StateTypes, path: list[tuple[type, str]], depth: int) -> None:
        self._allowed = allowed
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
            written = msgspec.msgpack.encode([FORMAT, self._nodes, root])
        except RecursionError:
            raise self._refusal("nested too deep for the caller's stack") from None
        if len(written) > BYTES_MAX:
            raise self._refusal(f"{len(written)} bytes; want at most {BYTES_MAX}")
        return written

    def put(self, thing: Any) -> Any:
        kind = type(thing)
        if kind in PLAIN:
            if kind is str and not thing.isascii():
                self._encodable(thing)
            return thing
        if kind is int:
            return thing if thing.bit_length() <= INT_BITS else self._long(thing)
        if self._depth == DEPTH_MAX:
            raise self._refusal(f"nested more than {DEPTH_MAX} deep")
        self._depth += 1
        node = kind in NODES or kind in self._known  # There are no enums among these.
        written = ["r", self._node(thing, kind)] if node else self._put(thing, kind)
        self._depth -= 1
        return written

    def _long(self, number: int) -> list[Any]:
        if number.bit_length() > 4 * (HEX_MAX - len("-0x")):
            raise self._refusal(f"an integer of {number.bit_length()} bits")
        return ["i", hex(number)]

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
        if number >= NODES_MAX:
            raise self._refusal(f"more than {NODES_MAX} lists, dicts, sets, structs and objects")
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
        written = self._fields(thing, attributes(thing))
        if not accepted(kind, declares=self._allowed.declares(kind)).issuperset(written):
            self._check_names(kind, written)
        return ["o", name, written]

    def _check_names(self, kind: type, names: Iterable[str]) -> None:
        declares = self._allowed.declares(kind)
        for name in names:
            problem = problem_of(kind, name, declares=declares)
            if problem is not None:
                raise self._refusal(problem)

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
        return _Writer(self._allowed, [*self._path], self._depth).whole(thing)

    def _name(self, cls: type) -> str:
        known = self._known.get(cls)
        if known is not None:
            return known
        name = self._known[cls] = self._class(cls)
        return name

    def _class(self, cls: type) -> str:
        name = written_name(cls)
        if self._allowed.named(name) is not cls:
            raise self._refusal(
                f"{cls.__module__}.{cls.__qualname__} is not plain data; want a dataclass, a "
                "struct or an enum"
            )
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


@functools.cache
def accepted(cls: type, *, declares: bool) -> frozenset[str]:
    """The declared attributes of a class that a state may set."""
    return frozenset(
        name
        for name in (*attribute_names(cls), *slots(cls))
        if problem_of(cls, name, declares=declares) is None
    )


def problem_of(cls: type, name: str, *, declares: bool) -> str | None:
    """Return why a state may not set an attribute; None if it may.

    Args:
        cls: the class.
        name: the attribute as it is stored.
        declares: whether the class must declare it.
    """
    if declares and name not in attribute_names(cls):
        return f"{cls.__qualname__} declares no {name}"
    if name not in slots(cls) and not cls.__dictoffset__:
        return f"{cls.__qualname__} has no {name} here"
    if not may_set(cls, name):
        return f"{name} is something that {cls.__qualname__} defines"
    return None
