"""The handles of work, found by the types of its fields."""

import pytest
from msgspec import Struct

from ddloco.stage.actors.effects import Calculation, CaptureState, Work
from ddloco.stage.actors.work_handles import Made, Read


class Held(Struct, frozen=True):
    """A struct within work."""

    name: str
    handle: Read
    more: Read = ""


class Everything(Work, frozen=True):
    """Handles in every place that they can have."""

    one: Read
    many: tuple[Read, ...]
    named: dict[str, Read]
    held: tuple[Held, ...]
    pair: tuple[Made, Made]
    maybe: Held | None = None
    never: Read | None = None
    last: Made = ""


class More(Calculation, frozen=True):
    """A kind that adds a field to those of its base."""

    again: Read


def test_handles_are_found_wherever_they_are():
    """In fields, tuples, dicts and structs, in the order of the fields; an empty one is not."""
    work = Everything(7, "a", ("b",), {"x": "c"}, (Held("n", "d"), Held("n", "e", "f")), ("g", "h"))
    assert (work.reads, work.makes) == (("a", "b", "c", "d", "e", "f"), ("g", "h"))
    full = Everything(7, "a", (), {}, (), ("g", "h"), Held("n", "i", "j"), "l", "k")
    assert (full.reads, full.makes) == (("a", "i", "j", "l"), ("g", "h", "k"))


def test_a_kind_has_the_handles_of_its_base_and_its_own():
    """Whichever of the two is asked first."""
    base, more = Calculation(1, ("a",), ("b",)), More(2, ("a",), ("b",), "c")
    assert (base.reads, more.reads, more.makes) == (("a",), ("a", "c"), ("b",))
    assert CaptureState(3, "s", b"", ("x", "y")).reads == ("x", "y")


class Mixed(Work, frozen=True):
    """A tuple of a name and a handle."""

    pair: tuple[str, Read]


def test_a_field_of_handles_and_something_else_is_refused():
    """Rather than that a handle is overlooked; a struct is what such a pair must be."""
    with pytest.raises(TypeError, match=r"work.pair: tuple.* is a handle in some cases only"):
        assert Mixed(1, ("a", "b")).reads
