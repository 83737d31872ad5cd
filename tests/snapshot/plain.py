"""Classes of every kind that may stand in a state, and some that may not."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, Flag, auto
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import msgspec

from snapshot.state_types import StateTypes


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Mode(Flag):
    READ = auto()
    WRITE = auto()


class Fact(msgspec.Struct, frozen=True):
    what: Any
    more: tuple = ()


class Tally(msgspec.Struct):
    count: Any
    things: list = []


class Wide(msgspec.Struct, frozen=True, dict=True):
    n: int

    @cached_property
    def twice(self):
        return 2 * self.n


class Eager(msgspec.Struct):
    n: int

    def __post_init__(self):
        assert self.n > 0, "executed"


@dataclass(slots=True)
class Slotted:
    a: Any
    b: Any = None


@dataclass
class Open:
    a: Any
    b: deque = field(default_factory=deque)

    @cached_property
    def cheap(self):
        return object()


@dataclass(frozen=True, slots=True)
class Key:
    """Hashed by what it holds."""

    name: Any
    parts: frozenset = frozenset()


class Base:
    __slots__ = ("__x", "unset")
    unset: Any

    def __init__(self, x):
        self.__x: Any = x

    def x(self):
        return self.__x


class Derived(Base):
    def __init__(self, x, y):
        super().__init__(x)
        self.__x: Any = y

    def y(self):
        return self.__x


class Counted:
    """Hashed by what its dict holds, as vector clocks are."""

    def __init__(self, counts):
        self.counts: dict = counts

    def __eq__(self, other):
        return self.counts == other.counts

    def __hash__(self):
        return hash(tuple(sorted(self.counts.items())))


class Words(dict):
    """More than its attributes."""


class Pair(NamedTuple):
    one: int
    other: int


class Loud:
    """Its property must never be asked by a reader."""

    word: str = "go"
    many: list[int]
    shared: ClassVar[int] = 0

    def __init__(self, owner: "Loud | None" = None):
        self.owner = owner

    @property
    def trap(self):
        raise AssertionError("executed")

    def go(self):
        return "gone"


class Closed:
    """Is not listed."""


LISTED = (
    *("Base", "Colour", "Counted", "Derived", "Eager", "Fact", "Key", "Loud", "Mode", "Open"),
    *("Pair", "Slotted", "Tally", "Wide", "Words"),
)
ALLOWED = StateTypes({__name__: LISTED})
