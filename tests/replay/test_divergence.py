"""A finding, as people and programs read it."""

import json

import pytest

from replay import Divergence
from replay.divergence import VALUE_CHARS_MAX

FOUND = Divergence(
    actor="learner-1.1",
    number=42,
    aspect="effects",
    expected="1 effects",
    actual="2 effects",
    clock={"learner-1.1": 42, "syncer.1": 7},
    event="TimerFired(timer='x')",
    context=("learner-1.1:40 A", "learner-1.1:41 B"),
)


def test_one_line_says_where_and_what():
    """The short form names actor, event and aspect."""
    assert str(FOUND) == "learner-1.1:42 differs in its effects"


def test_the_report_names_everything():
    """Event, both sides with their names, clock, and what led to it, oldest first."""
    assert FOUND.report().splitlines() == [
        "DIVERGENCE at learner-1.1:42 (effects)",
        "  event     TimerFired(timer='x')",
        "  recorded  1 effects",
        "  replayed  2 effects",
        "  clock     learner-1.1:42, syncer.1:7",
        "  before    learner-1.1:40 A",
        "  before    learner-1.1:41 B",
    ]


def test_the_plain_form_goes_through_json():
    """Programs get every field, as plain data."""
    plain = json.loads(json.dumps(FOUND.as_dict()))

    assert plain == FOUND.as_dict()
    assert (plain["actor"], plain["event"], plain["aspect"]) == ("learner-1.1", 42, "effects")
    assert (plain["recorded"], plain["replayed"]) == ("1 effects", "2 effects")
    assert plain["before"] == ["learner-1.1:40 A", "learner-1.1:41 B"]
    assert plain["clock"] == FOUND.clock
    assert plain["at"] == FOUND.event


def test_long_values_are_shortened_in_the_report_alone():
    """A report stays readable; the plain form is complete."""
    text = "x" * (VALUE_CHARS_MAX + 1)
    found = Divergence("a.1", 1, "result", text, "y", {})

    assert f"{'x' * VALUE_CHARS_MAX}... ({len(text)} characters)" in found.report()
    assert text not in found.report()
    assert found.as_dict()["recorded"] == text


def test_it_can_be_raised_and_caught():
    """A finding travels as an exception and keeps its fields."""
    with pytest.raises(Divergence, match="differs in its effects") as caught:
        raise FOUND

    assert caught.value is FOUND
