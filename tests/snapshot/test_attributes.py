"""The state of an object of any class: read as it was written, or refused in one line."""

import random
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar

import msgspec
import pytest

from snapshot import StateError, write_state
from snapshot.attributes import attributes, machine_from, plain_state
from tests.seeds import seeds


class Colour(Enum):
    """A member is written by its value."""

    RED = "red"
    BLUE = "blue"


class Fact(msgspec.Struct, frozen=True, tag=True):
    """A value."""

    what: int
    more: tuple[str, ...] = ()


class Guess(msgspec.Struct, frozen=True, tag=True):
    """Another kind of value."""

    what: float


@dataclass
class Tally:
    """Can change."""

    count: int = 0
    things: list[Fact] = field(default_factory=list)


class Machine:
    """Declares its attributes in both ways."""

    facts: list[Fact | Guess]
    ways: dict[tuple[str, int], float]
    word: str = "go"
    shared: ClassVar[int] = 0

    def __init__(self):
        self.plain = {"a": [1, None, "x", b"y", 0.5], "b": {2: True}}
        self.colour: Colour | None = Colour.RED
        self.names: set[str] = {"x", "y", "z"}
        self.tally: Tally = Tally(1, [Fact(2)])
        self.pair: tuple[int, str] = (1, "x")
        self.facts, self.ways = [Fact(1, ("x",)), Guess(0.5)], {("b", 1): 1.0, ("a", 2): 2.0}
        self.__hidden: list[int] = [3]

    @property
    def trap(self):
        """Must never be asked by a reader."""
        raise AssertionError("executed")

    def handle(self, at, event):
        """What makes it a machine."""
        return [at, event, self.__hidden]


class Slotted:
    """Has slots."""

    __slots__ = ("count", "unset")
    count: int
    unset: int

    def __init__(self):
        self.count = 1


def test_a_machine_is_read_as_it_was_written():
    """Every attribute, of its type; dicts keep their order, and nothing of the class is called."""
    machine = Machine()
    again = machine_from(Machine(), plain_state(machine))
    assert dict(attributes(again)) == dict(attributes(machine))
    assert [*again.ways] == [*machine.ways]
    assert again.handle(0, None)[2] == [3]
    assert "word" not in vars(again)
    assert 1 == machine_from(Slotted(), plain_state(Slotted())).count


def test_two_sets_of_the_same_are_the_same_bytes():
    """Whatever was added first."""
    one, other = Machine(), Machine()
    other.names = {"z", "y", "x"}
    assert write_state(plain_state(one)) == write_state(plain_state(other))


TWICE = [1]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda: 0, "Machine.value: a function; want plain data"),
        (Machine(), "Machine.value: a Machine; want plain data"),
        (deque([1]), "a deque"),
        (object, "a type"),
        ((1, 2), "a tuple would be read as a list; want .* an annotation"),
        ([1, {"x": {2}}], "a set would be read as a list"),
        (Fact(1), "a Fact would be read as a dict"),
        (Colour.RED, "a Colour would be read as a str"),
        (2**64, "serialize ints"),
        ("\ud800", "surrogates"),
        ([TWICE, TWICE], "the same list is in Machine.value; want a copy"),
    ],
)
def test_what_would_be_read_otherwise_is_not_written(value, why):
    """One line names the attribute, and says what would do."""
    machine = Machine()
    machine.value = value
    with pytest.raises(StateError, match=why) as error:
        plain_state(machine)
    assert "Machine.value" in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_in_two_attributes_is_not_written():
    """It would be read as two."""
    machine = Machine()
    machine.value = machine.plain
    with pytest.raises(StateError, match=r"Machine.value: the same dict is in Machine.plain"):
        plain_state(machine)


@pytest.mark.parametrize(
    ("plain", "why"),
    [
        ({"handle": 1}, "Machine.handle: the class defines it"),
        ({"trap": 1}, "Machine.trap: the class defines it"),
        ({"shared": 1}, "Machine.shared: the class defines it"),
        ({"__class__": 1}, "not the name of an attribute"),
        ({"a b": 1}, "not the name of an attribute"),
        ({"facts": [{"type": "Popen", "what": 1}]}, "Invalid value 'Popen'"),
        ({"facts": {}}, "Machine.facts: Expected `array`"),
        ({"colour": "green"}, "Invalid enum value 'green'"),
        ({"word": 1}, "Machine.word: Expected `str`, got `int`"),
        ({"tally": {"count": "x"}}, r"Machine.tally: Expected `int`, got `str` - at `\$.count`"),
    ],
)
def test_what_a_class_does_not_declare_is_not_read(plain, why):
    """Neither its methods, nor another name, nor another type."""
    with pytest.raises(StateError, match=why):
        machine_from(Machine(), plain)


class Doubtful:
    """Has an annotation of which nothing is known here."""

    thing: "Nowhere"  # noqa: F821


def test_an_annotation_that_cannot_be_read_is_named():
    """Instead of a traceback."""
    with pytest.raises(StateError, match=r"the annotations of Doubtful: NameError"):
        machine_from(Doubtful(), {"thing": 1})


def absurd(rng, depth=0):
    """Some value, mostly of no machine."""
    atoms = (0, 1, -1, 2**63, 0.5, float("nan"), None, True, "", "red", "Fact", b"", "x" * 99)
    if depth == 3 or rng.random() < 0.5:
        return rng.choice(atoms)
    more = [absurd(rng, depth + 1) for _ in range(rng.randrange(3))]
    keys = [rng.choice(["type", "what", "count", "things", "more", 1]) for _ in more]
    return rng.choice([more, dict(zip(keys, more, strict=True))])


@pytest.mark.parametrize("seed", seeds(20, fast=6))
def test_absurd_attributes_are_refused_or_of_their_types(seed):
    """Whatever is read can be written again, as it was."""
    rng, machine = random.Random(seed), plain_state(Machine())
    refused = 0
    for _ in range(50):
        plain: dict[str, Any] = {**machine, rng.choice([*machine, "handle", "new"]): absurd(rng)}
        try:
            again = machine_from(Machine(), plain)
        except StateError:
            refused += 1
            continue
        assert again.colour in {None, *Colour}
        assert all(isinstance(each, Fact | Guess) for each in again.facts)
        assert type(again.tally) is Tally
        written = plain_state(again)
        assert plain_state(machine_from(Machine(), written)) == written or "nan" in repr(written)
    assert 0 < refused < 50


class Renamed(Machine):
    """The same with an attribute of another name, with a default."""

    title: str = "new"

    def __init__(self):
        super().__init__()
        self.title = "new"

    def handle(self, at, event):
        """Sets what a new machine does not have, and deletes what it has."""
        self.later = at
        del self.pair
        return []


def test_an_attribute_that_was_renamed_is_missed():
    """Instead of the value of a new machine in its place."""
    with pytest.raises(StateError, match=r"^Renamed has title, which the snapshot lacks$"):
        machine_from(Renamed(), plain_state(Machine()))
    with pytest.raises(
        StateError, match=r"^the snapshot has later, title, which Machine does not have; "
    ):
        machine_from(Machine(), plain_state(Machine()) | {"title": "old", "later": 1})


def test_what_a_machine_sets_and_deletes_later_may_be_there_or_not():
    """Its methods say so."""
    machine = Renamed()
    assert machine_from(Renamed(), plain_state(machine)).pair == (1, "x")
    machine.handle(2.5, None)
    again = machine_from(Renamed(), plain_state(machine))
    assert again.later == 2.5
    assert not hasattr(again, "pair")


@pytest.mark.parametrize(
    ("tally", "why"),
    [
        ({"count": 1}, "Machine.tally: things is not in the snapshot"),
        ({"count": 1, "things": [], "kind": 2}, "Machine.tally: kind is in the snapshot only"),
        ({"count": 1, "things": [{"type": "Fact", "what": 1}]}, "more is not in the snapshot"),
    ],
)
def test_fields_within_an_attribute_are_compared_too(tally, why):
    """Of dataclasses and structs that have defaults."""
    with pytest.raises(StateError, match=why):
        machine_from(Machine(), plain_state(Machine()) | {"tally": tally})
