"""``ddloco story RUN message:EVENT``: why it was sent, when it came, and what followed."""

import random
from itertools import pairwise

import pytest

from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.story import story_of
from ddloco.stage.files.toml import ConfigError
from transport import MessageArrived, Transmit


def test_a_message_from_its_sender_to_what_it_led_to(run):
    """Asked by the event that it came with: the sender's event and the arrival, in this order."""
    rng, asked = random.Random(4), 0
    for who in run.tapes:
        records = [(record, event) for record, event in run.events(who, MessageArrived)]
        for record, event in rng.sample(records, 5):
            first, second = story_of(run, f"message:{who}:{record.n}")
            assert first.text.startswith(f"{event.sender} sends ")
            assert first.event == f"{event.sender}:{event.clock[event.sender]}"
            assert second.event == f"{who}:{record.n}"
            assert first.at <= second.at
            asked += 1
    assert asked > 20


def test_messages_are_found_by_the_event_that_sent_them(run):
    """Asked by that: each of them, and where it came; the two ways agree."""
    found = lost = 0
    for step in list(run.stepper("syncer.1").steps())[40:400]:
        sent = [each for each in step.effects if type(each) is Transmit]
        if not sent or isinstance(step.event, MessageArrived):
            continue
        lines = story_of(run, f"message:syncer.1:{step.number}")
        assert all(one.at <= other.at for one, other in pairwise(lines))
        assert len(lines) == 2 * len(sent)
        for line in lines:
            who, number = parse_event(line.event)
            if who != "syncer.1":
                _, event = run.event(who, number)
                assert event.clock["syncer.1"] == step.number
                found += 1
            lost += "no tape of" in line.text
    assert (found > 50, lost < found / 10) == (True, True)


def test_an_event_without_a_message_is_refused(run):
    """By what it is."""
    with pytest.raises(ConfigError, match="started: brought no message, and none was sent at it"):
        story_of(run, "message:syncer.1:1")
