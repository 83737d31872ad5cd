"""Reading of states that ``freeze`` wrote, without importing or executing anything in them."""

from collections import deque
from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any, cast

import msgspec

from snapshot.freeze import (
    FORMAT,
    READERS,
    STRANGE,
    FreezeError,
    bare,
    class_of,
    made_bare,
    method_of,
    slots,
)


def thaw(data: bytes, packages: Collection[str], given: Mapping[type, object] | None = None) -> Any:
    """Read what ``freeze`` wrote.

    Args:
        data: the bytes.
        packages: the top-level packages whose classes may occur in the state; their modules must
            have been imported.
        given: structs by type that replace those in the state, such as settings that have changed.

    Raises:
        FreezeError: it is not a valid state, or uses other classes; nothing was executed.
    """
    try:
        version, nodes, root = msgspec.msgpack.decode(data)
        return _Reader(packages, version, nodes, given or {}).whole(root)
    except FreezeError:
        raise
    except Exception as error:  # noqa: BLE001, invalid bytes may raise any exception
        raise FreezeError(f"{STRANGE}: {type(error).__name__}: {error}") from None


class _Reader:
    """Creates all objects empty and then fills them, because a state may contain cycles."""

    def __init__(
        self,
        packages: Collection[str],
        version: int,
        nodes: list[Any],
        given: Mapping[type, object],
    ) -> None:
        if version != FORMAT:
            reader = f"; ddloco {READERS[version]} reads it" if version in READERS else ""
            raise FreezeError(f"a state of format {version!r}, this version reads {FORMAT}{reader}")
        self._packages = packages
        self._given = given
        self._nodes = nodes
        self._made: list[Any] = [None] * len(nodes)
        self._filled = [False] * len(nodes)
        self._hashable = [False] * len(nodes)

    def whole(self, root: Any) -> Any:
        for number, node in enumerate(self._nodes):
            self._made[number] = self._shell(node)
        # Dicts and sets are filled last, when everything that hashes depend on is complete.
        for kinds in ("S", "o", "lq", "ds"):
            for number, node in enumerate(self._nodes):
                if node[0] in kinds:
                    self._fill(number)
        return self.get(root)

    def get(self, thing: Any) -> Any:
        if not isinstance(thing, list):
            return thing
        tag, *rest = cast("list[Any]", thing)
        match tag:
            case "i":
                return int(rest[0], 16)
            case "t":
                return tuple(map(self.get, rest))
            case "f":
                return frozenset(map(self._member, rest))
            case "e":
                return cast("type[Enum]", self._class(rest[0], Enum))[rest[1]]
            case "m":
                method = method_of(self.get(rest[0]), rest[1])
                if method is None:
                    raise FreezeError(f"{STRANGE}: {rest[1]!r} is not a method")
                return method
            case "u":
                return msgspec.UNSET
            case "r":
                if self._nodes[rest[0]][0] == "S":
                    self._fill(rest[0])
                return self._made[rest[0]]
            case _:
                raise FreezeError(f"{STRANGE}: {tag!r}")

    def _member(self, thing: Any) -> Any:
        """A set's member or a dict's key, once everything that its hash depends on is filled."""
        if not isinstance(thing, list):
            return thing
        self._settle(cast("list[Any]", thing))
        return self.get(thing)

    def _settle(self, written: Any) -> None:
        if isinstance(written, dict):
            written = list(cast("dict[str, Any]", written).values())
        if not isinstance(written, list):
            return
        things = cast("list[Any]", written)
        if things[:1] != ["r"]:
            for each in things:
                self._settle(each)
        elif not self._hashable[things[1]]:
            self._hashable[things[1]] = True
            for each in self._nodes[things[1]]:
                self._settle(each)
            self._fill(things[1])

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
                cls = self._class(node[1], object)
                if not bare(cls):
                    raise FreezeError(f"{STRANGE}: {node[1]} is more than its attributes")
                return object.__new__(cls)
            case "S":
                return None  # A struct is immutable: its contents are made before it.
            case _:
                raise FreezeError(f"{STRANGE}: {node[0]!r}")

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
        own = slots(type(made))
        for name, value in fields.items():
            if name in own:
                object.__setattr__(made, name, self.get(value))
            elif hasattr(made, "__dict__"):
                made.__dict__[name] = self.get(value)
            else:
                raise FreezeError(f"{type(made).__qualname__} has no {name} here")

    def _class(self, name: str, base: type) -> type:
        found = class_of(name, self._packages)
        if found is None or not issubclass(found, base):
            raise FreezeError(f"{name}: not a class that is known here")
        return found
