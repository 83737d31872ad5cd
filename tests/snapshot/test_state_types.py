"""Declared attributes and their types: found where classes say them, and compared with values."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import pytest

from snapshot.state_types import attribute_names, fits, may_set
from tests.snapshot.plain import Base, Counted, Derived, Fact, Loud, Slotted, Wide

Bound = TypeVar("Bound", bound=str)


class Said:
    """Declares in every way that there is."""

    fixed = 3
    above: int = 1

    def __init__(self, given: "list[int]", named: Fact):
        self.given = given
        self.first = self.second = named
        self.text: str | None = None
        self.made = Wide(1)
        self.on, self.off = True, False
        self.count = 0
        self.word = f"{given}"
        self.same = given == []
        self.open = given[0]


def test_what_a_class_declares_is_found():
    """Annotations, parameters, literals and new objects; nothing else is guessed."""
    expected = {
        "above": int,
        "given": list[int],
        "first": Fact,
        "second": Fact,
        "text": str | None,
        "made": Wide,
        "count": int,
        "word": str,
        "same": bool,
    }
    assert expected == attribute_names(Said)
    assert {"a": Any, "b": Any} == attribute_names(Slotted)
    assert {"_Base__x", "_Derived__x", "unset"} == attribute_names(Derived).keys()
    assert {"counts": dict} == attribute_names(Counted)


def test_what_a_class_defines_is_not_set():
    """Methods, properties, constants and names of Python; annotated defaults and slots are."""
    for cls, name in (
        *((Loud, "go"), (Loud, "trap"), (Loud, "shared"), (Loud, "__class__"), (Loud, "__dict__")),
        *((Wide, "twice"), (Base, "x"), (Derived, "y"), (Said, "fixed"), (Said, "a b")),
    ):
        assert not may_set(cls, name)
    for cls, name in (
        *((Loud, "word"), (Loud, "many"), (Loud, "other"), (Said, "above"), (Base, "unset")),
        *((Base, "_Base__x"), (Slotted, "a")),
    ):
        assert may_set(cls, name)


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, 2**70], [True, 1.0, "1", None]),
        (float, [1, 1.0], [True, "1", None]),
        (bool, [True], [1, None]),
        (str | None, ["", None], [b"", 1]),
        (None, [None], [0]),
        (Any, [None, 1, [object()]], []),
        (Literal["a", 1], ["a", 1], ["b", True, None]),
        (list[int], [[], [1]], [[1, "x"], (1,), None]),
        (tuple[int, ...], [(), (1, 2)], [(1, "x"), [1]]),
        (tuple[int, str], [(1, "x")], [(1,), (1, "x", 2), ("x", 1)]),
        (dict[str, list[int]], [{"a": [1]}], [{"a": 1}, {1: [1]}, {"a": ["b"]}, []]),
        (Mapping[str, int], [{"a": 1}], [{"a": "b"}]),
        (set[str] | frozenset[int], [{"a"}, frozenset({1})], [{1}, frozenset({"a"})]),
        (deque[int], [deque([1])], [deque(["a"]), [1]]),
        (Fact, [Fact(1)], [Wide(1), None]),
        (Bound, ["x"], [1]),
        (Callable[[], int], [], [len, 1, None]),
    ],
)
def test_values_are_compared_with_their_types(hint, good, bad):
    """Exactly, but that whole numbers are numbers, too."""
    assert all(fits(each, hint, {}) for each in good)
    assert not any(fits(each, hint, {}) for each in bad)


def test_containers_that_hold_themselves_are_compared_once():
    """And one that is refused for one type may be of another."""
    ring: list[Any] = []
    ring.append(ring)
    assert fits(ring, list[list[Any]], {})
    assert not fits(ring, list[int], {})
    assert fits([ring], list[list[int]] | list[list[Any]], {})
