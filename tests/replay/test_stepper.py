"""Walking along a tape both ways: every event has one state, however it was reached."""

import copy
import pickle
from random import Random

import pytest

from replay import Divergence, Stepper, Tape, stepper
from tests.replay.test_player import ME, Counter, Said, record

MANY = [Said(number % 7, number) for number in range(1, 41)]


@pytest.fixture
def few(monkeypatch):
    """Keyframes every four events, at most eight of them."""
    monkeypatch.setattr(stepper, "KEYFRAME_EVENTS", 4)
    monkeypatch.setattr(stepper, "KEYFRAMES_MAX", 8)


def walk(path, faults=None, written=None):
    record(path, written, MANY)
    return Stepper(Tape(path).scan(), Said, Counter(faults), pickle.dumps, pickle.loads)


def totals():
    """The counter's total after each event, by number."""
    found, total = {}, 0
    for number, said in enumerate(MANY, start=1):
        total += said.number
        found[number] = total
    return found


def test_steps_come_in_order_with_what_they_led_to(tmp_path):
    """Steps come in order with what they led to."""
    walker, sums = walk(tmp_path / f"{ME}.tape"), totals()
    for step in walker.steps():
        assert step.event == MANY[step.number - 1]
        assert [effect.total for effect in step.effects] == [sums[step.number]]
        assert walker.actor.total == sums[step.number]
    assert walker.number == len(MANY)
    assert not walker.forward()


def test_every_event_has_one_state_however_it_is_reached(tmp_path, few):
    """Every event has one state however it is reached."""
    walker, sums, rng = walk(tmp_path / f"{ME}.tape"), totals(), Random(7)
    for _ in range(300):
        number = rng.randrange(1, len(MANY) + 1)
        step = walker.goto(number)
        assert (step.number, walker.number, walker.actor.total) == (number, number, sums[number])
        assert walker.goto(number) == step


def test_going_back_costs_no_more_than_the_events_since_a_keyframe(tmp_path, few):
    """Going back costs no more than the events since a keyframe."""
    walker = walk(tmp_path / f"{ME}.tape")
    walker.goto(30)
    handled = []
    played = stepper.Player.play

    def counted(self, *given):
        handled.append(1)
        return played(self, *given)

    stepper.Player.play = counted
    try:
        walker.goto(29)
    finally:
        stepper.Player.play = played
    assert len(handled) <= 8


def test_a_number_that_the_tape_has_not_is_refused(tmp_path):
    """A number that the tape has not is refused."""
    walker = walk(tmp_path / f"{ME}.tape")
    for number in (0, -1, len(MANY) + 1):
        with pytest.raises(LookupError, match="the tape has events 1 to 40"):
            walker.goto(number)


def test_a_machine_that_decides_otherwise_is_a_divergence(tmp_path):
    """A machine that decides otherwise is a divergence."""
    walker = walk(tmp_path / f"{ME}.tape", faults={9: "sum"})
    with pytest.raises(Divergence) as found:
        walker.goto(12)
    assert found.value.number == 9


def test_a_failure_that_is_on_the_tape_is_told(tmp_path):
    """A failure that is on the tape is told."""
    walker = walk(tmp_path / f"{ME}.tape", {5: "raise"}, {5: "raise"})
    step = walker.goto(5)
    assert str(step.failure) == "raise"
    assert step.effects == ()


def test_it_can_begin_after_an_event(tmp_path):
    """Its first event is the next one."""
    path = tmp_path / f"{ME}.tape"
    first = walk(path)
    first.goto(10)
    actor = copy.deepcopy(first.actor)
    later = Stepper(Tape(path).scan(), Said, actor, pickle.dumps, pickle.loads, after=10)
    assert later.first == 11
    assert later.goto(20).effects == first.goto(20).effects
    with pytest.raises(LookupError, match="events 11 to 40"):
        later.goto(10)
