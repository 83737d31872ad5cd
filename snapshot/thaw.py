"""Reading of states that ``freeze`` wrote, without importing or executing anything in them.

Whoever writes a state may be a stranger. So only listed classes are made, only attributes that a
class declares are set, each with a value of the declared type, and what a state costs is bounded
before it is read.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

import msgspec

from snapshot.freeze import (
    BYTES_MAX,
    DEPTH_MAX,
    FORMAT,
    HEX_MAX,
    NODES_MAX,
    PLAIN,
    READERS,
    STRANGE,
    FreezeError,
    accepted,
    bare,
    made_bare,
    problem_of,
    slots,
)
from snapshot.state_types import StateTypes, attribute_names, fits

HASHED_MAX = 2**24
"""Maximum number of values that the hashes of all keys and members of sets meet. States as they are
written need less than one for each of their bytes, but structs that hold each other twice would
double the work at each level."""

_MISSING = object()


def thaw(data: bytes, allowed: StateTypes, given: Mapping[type, object] | None = None) -> Any:
    """Read what ``freeze`` wrote.

    Args:
        data: the bytes.
        allowed: the classes that may occur in the state; their modules must have been imported.
        given: structs by type that replace those in the state, such as settings that have changed.

    Raises:
        FreezeError: it is not a valid state, or uses other classes; nothing was executed.
    """
    if len(data) > BYTES_MAX:
        raise FreezeError(f"a state of {len(data)} bytes; want at most {BYTES_MAX}")
    try:
        version, nodes, root = msgspec.msgpack.decode(data)
        return _Reader(allowed, version, nodes, given or {}).whole(root)
    except FreezeError:
        raise
    except Exception as error:  # noqa: BLE001, invalid bytes may raise any exception
        said = f"{type(error).__name__}: {error}"[:200]
        raise FreezeError(f"{STRANGE}: {said}") from None


class _Reader:
    """Creates all objects empty and then fills them, because a state may contain cycles."""

    def __init__(
        self,
        allowed: StateTypes,
        version: int,
        nodes: list[Any],
        given: Mapping[type, object],
    ) -> None:
        if version != FORMAT:
            reader = f"; ddloco {READERS[version]} reads it" if version in READERS else ""
            raise FreezeError(f"a state of format {version!r}, this version reads {FORMAT}{reader}")
        if len(nodes) > NODES_MAX:
            raise FreezeError(f"a state of {len(nodes)} objects; want at most {NODES_MAX}")
        self._allowed = allowed
        self._given = given
        self._nodes = nodes
        self._made: list[Any] = [None] * len(nodes)
        self._filled = [False] * len(nodes)
        self._sizes = [0] * len(nodes)
        """The number of values that a hash of each node meets; -1 while they are counted."""
        self._hashed = 0
        self._depth = 0

    def whole(self, root: Any) -> Any:
        for number, node in enumerate(self._nodes):
            self._made[number] = self._shell(node)
        # Dicts and sets are filled last, when everything that hashes depend on is complete.
        for kinds in ("S", "o", "lq", "ds"):
            for number, node in enumerate(self._nodes):
                if node[0] in kinds:
                    self._fill(number)
        state = self.get(root)
        self._check_types()
        return state

    def get(self, thing: Any) -> Any:
        if not isinstance(thing, list):
            if type(thing) not in PLAIN and type(thing) is not int:
                raise FreezeError(f"{STRANGE}: {type(thing).__name__} within it")
            return thing
        if self._depth > DEPTH_MAX:
            raise FreezeError(f"{STRANGE}: nested more than {DEPTH_MAX} deep")
        self._depth += 1
        made = self._get(*cast("list[Any]", thing))
        self._depth -= 1
        return made

    def _get(self, tag: str, *rest: Any) -> Any:
        match tag:
            case "i":
                if len(rest[0]) > HEX_MAX:
                    raise FreezeError(f"{STRANGE}: an integer of {len(rest[0])} digits")
                return int(rest[0], 16)
            case "t":
                return tuple(map(self.get, rest))
            case "f":
                return frozenset(map(self._member, rest))
            case "e":
                return cast("type[Enum]", self._class(rest[0], Enum)).__members__[rest[1]]
            case "u":
                return msgspec.UNSET
            case "r":
                if self._nodes[self._number(rest[0])][0] == "S":
                    self._fill(rest[0])
                return self._made[rest[0]]
            case _:
                raise FreezeError(f"{STRANGE}: {str(tag)[:20]!r}")

    def _number(self, number: Any) -> int:
        if type(number) is not int or not 0 <= number < len(self._nodes):
            raise FreezeError(f"{STRANGE}: no object of this number")
        return number

    def _member(self, thing: Any) -> Any:
        """A set's member or a dict's key, once everything that its hash depends on is filled."""
        if not isinstance(thing, list):
            return self.get(thing)
        self._hashed += self._settle(cast("list[Any]", thing), 0)
        if self._hashed > HASHED_MAX:
            raise FreezeError(f"{STRANGE}: keys of more than {HASHED_MAX} values")
        return self.get(thing)

    def _settle(self, written: Any, depth: int) -> int:
        """Fill what a hash depends on; returns how many values a hash would meet."""
        if isinstance(written, dict):
            written = list(cast("dict[str, Any]", written).values())
        if not isinstance(written, list):
            return 1
        if depth > DEPTH_MAX:
            raise FreezeError(f"{STRANGE}: nested more than {DEPTH_MAX} deep")
        things = cast("list[Any]", written)
        if things[:1] != ["r"]:
            return 1 + sum(self._settle(each, depth + 1) for each in things)
        number = self._number(things[1])
        if type(self._made[number]).__hash__ is object.__hash__:
            return 1  # Two such objects are told apart by what they are, not by what they hold.
        if not self._sizes[number]:
            self._sizes[number] = -1
            size = 1 + sum(self._settle(each, depth + 1) for each in self._nodes[number])
            self._sizes[number] = size
            self._fill(number)
        return max(self._sizes[number], 1)

    def _shell(self, node: Any) -> Any:
        match cast("list[Any]", node)[0] if isinstance(node, list) else "":
            case "l":
                return []
            case "d":
                return {}
            case "s":
                return set[Any]()
            case "q":
                return deque[Any](maxlen=node[1])
            case "o":
                cls = self._class(node[1], object)
                if not bare(cls):
                    raise FreezeError(f"{STRANGE}: {node[1]} is more than its attributes")
                return object.__new__(cls)
            case "S":
                return None  # A struct is immutable: its contents are made before it.
            case _:
                raise FreezeError(f"{STRANGE}: {str(node)[:20]!r}")

    def _fill(self, number: int) -> None:
        if self._filled[number]:
            return
        self._filled[number] = True
        made, (kind, *rest) = self._made[number], self._nodes[number]
        match kind:
            case "l":
                made.extend(map(self.get, rest))
            case "q":
                made.extend(map(self.get, rest[1:]))
            case "s":
                made.update(map(self._member, rest))
            case "d":
                made.update(
                    zip(map(self._member, rest[::2]), map(self.get, rest[1::2]), strict=True)
                )
            case "S":
                cls = self._class(rest[0], msgspec.Struct)
                if cls in self._given:
                    self._made[number] = self._given[cls]
                    return
                if not made_bare(cls):
                    raise FreezeError(f"{STRANGE}: {rest[0]} is more than its fields")
                fields = cast("Mapping[str, Any]", rest[1])
                self._made[number] = cls(**{key: self.get(value) for key, value in fields.items()})
            case _:
                self._endow(made, rest[1])

    def _endow(self, made: Any, fields: Mapping[str, Any]) -> None:
        """Set an object's attributes, as slots where its class has them."""
        cls = cast("type", type(made))
        declares = self._allowed.declares(cls)
        names, own = accepted(cls, declares=declares), slots(cls)
        for name, value in fields.items():
            if name not in names:
                problem = problem_of(cls, name, declares=declares)
                if problem is not None:
                    raise FreezeError(problem)
            if name in own:
                object.__setattr__(made, name, self.get(value))
            else:
                made.__dict__[name] = self.get(value)

    def _check_types(self) -> None:
        """Compare everything that listed classes declare with what their objects have."""
        known: dict[Any, bool] = {}
        for node, made in zip(self._nodes, self._made, strict=True):
            cls = cast("type", type(made))
            if node[0] not in {"o", "S"} or cls in self._given or not self._allowed.declares(cls):
                continue
            for name, hint in attribute_names(cls).items():
                value = getattr(made, name, _MISSING)
                if not fits(value, hint, known):
                    what = "missing" if value is _MISSING else f"a {type(value).__name__}"
                    raise FreezeError(f"{cls.__qualname__}.{name} is {what}, want {hint}"[:300])

    def _class(self, name: str, base: type) -> type:
        found = self._allowed.named(name)
        if found is None or not issubclass(found, base):
            raise FreezeError(f"{str(name)[:200]}: not a class that is known here")
        return found
