"""The actor: every event one tick, arrays counted in order, clocks believed only where true."""

import pytest

from clocks import VectorClock
from ddloco.actor import Actor
from ddloco.events import StopRequested
from ddloco.messages import Pull
from transport import (
    BULK,
    CONTROL,
    LANES,
    Drop,
    Free,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Send,
    SetTimer,
    TimerFired,
    Transmit,
)
from transport.message import Hello, Reset

ME, PEER = "hub.1", "spoke.1"


class Script:
    """A machine that answers each kind of event with fixed effects, and writes down what it hears.

    ``effects`` is looked up by the event's type.
    """

    def __init__(self, effects=None):
        self.heard, self.effects = [], effects or {}

    def handle(self, at, event):
        self.heard.append(event)
        return list(self.effects.get(type(event), []))


def arrived(seq, body, lane=CONTROL, *, clock=None, handle=""):
    return MessageArrived(PEER, lane, PEER, 1, seq, clock or {PEER: seq + 1}, body, b"", handle)


def joined(effects=None):
    """Give an actor whose only peer has joined."""
    actor = Actor(ME, Script({TimerFired: [Listen({})], **(effects or {})}))
    actor.handle(0.0, TimerFired("start"))
    for lane in LANES:
        actor.handle(0.0, arrived(0, Hello({}), lane))
    actor.machine.heard.clear()
    actor.machine.effects.pop(TimerFired)
    return actor


def test_every_event_is_one_tick():
    """An event's number is the actor's own entry, whatever the event is and whoever hears it."""
    actor = joined()
    start = actor.number

    for index, event in enumerate([TimerFired("x"), StopRequested("y"), arrived(9, Pull(1, 0))]):
        assert actor.witness(event)[ME] == start + index + 1
        actor.handle(0.0, event)
        assert actor.number == start + index + 1


def test_witnessing_changes_nothing_and_foretells_the_clock():
    """The door may write an event's clock before it is handled."""
    actor = joined()
    event, before = arrived(1, Pull(1, 0), clock={PEER: 7, "third.1": 3}), actor.clock

    foretold = actor.witness(event)

    assert actor.clock is before
    actor.handle(0.0, event)
    assert actor.clock == foretold
    assert foretold == before.merge({PEER: 7, "third.1": 3}).tick(ME)


@pytest.mark.parametrize("ahead", [0, 1, 10**6, 2**63 - 2])
def test_nobody_moves_an_actors_own_count(ahead):
    """A message that knows this event or later ones counts no tick, and breaks the link."""
    actor = joined()
    number = actor.number + 1

    effects = actor.handle(0.0, arrived(1, Pull(1, 0), clock={PEER: 2, ME: number + ahead}))

    assert actor.number == number
    assert [type(event) for event in actor.machine.heard] == [PeerLost]
    assert [type(effect.body) for effect in effects] == [Reset]


def test_a_true_clock_is_heard():
    """A message may know every event that has happened here."""
    actor = joined()

    actor.handle(0.0, arrived(1, Pull(1, 0), clock={PEER: 2, ME: actor.number}))

    assert [type(event) for event in actor.machine.heard] == [MessageArrived]


def test_messages_carry_the_clock_of_the_event_that_they_answer():
    """What is sent while an event is handled knows that event."""
    actor = joined({MessageArrived: [Send(PEER, CONTROL, Pull(2, 0))]})

    [said] = actor.handle(0.0, arrived(1, Pull(1, 0)))

    assert isinstance(said, Transmit)
    assert said.clock[ME] == actor.number
    assert VectorClock(said.clock)[PEER] == 2


def test_an_array_that_came_is_freed_at_the_end_unless_it_is_kept():
    """Arrays live through the event that brought them, and longer only where somebody holds."""
    actor = joined()
    assert actor.handle(0.0, arrived(1, Pull(1, 0), handle="in/1")) == [Free("in/1")]

    actor.machine.effects[MessageArrived] = [Keep("in/2")]
    assert actor.handle(0.0, arrived(2, Pull(1, 0), handle="in/2")) == []

    actor.machine.effects = {TimerFired: [Drop("in/2")]}
    assert actor.handle(0.0, TimerFired("x")) == [Free("in/2")]
    assert len(actor.handles) == 0


def test_an_array_that_came_in_vain_is_freed():
    """What a duplicate or a stranger brings is not left lying."""
    actor = joined()
    actor.handle(0.0, arrived(1, Pull(1, 0)))

    assert actor.handle(0.0, arrived(1, Pull(1, 0), handle="in/1")) == [Free("in/1")]
    *_, last = actor.handle(0.0, arrived(5, Pull(1, 0), BULK, handle="in/2"))
    assert last == Free("in/2")
    assert len(actor.handles) == 0


def test_an_array_is_sent_before_it_is_freed():
    """Named, sent and dropped in one event: the transmission comes first, then the release."""
    effects = [Keep("wire/1"), Send(PEER, BULK, Pull(1, 0), "wire/1"), Drop("wire/1")]
    actor = joined({StopRequested: effects})

    said, freed = actor.handle(0.0, StopRequested("x"))

    assert (type(said), said.payload, freed) == (Transmit, "wire/1", Free("wire/1"))


def test_what_is_for_the_world_passes_in_order():
    """Effects that neither links nor handles take are the driver's, in the order asked for."""
    wanted = [SetTimer("a", 1.0), SetTimer("b", 2.0)]
    actor = joined({StopRequested: wanted})

    assert actor.handle(0.0, StopRequested("x")) == wanted


def test_news_of_links_reaches_the_machine():
    """A join is heard in the very event that completes the handshake."""
    actor = Actor(ME, Script({TimerFired: [Listen({})]}))
    actor.handle(0.0, TimerFired("start"))
    for lane in LANES:
        actor.handle(0.0, arrived(0, Hello({}), lane))

    assert actor.machine.heard == [TimerFired("start"), PeerJoined(PEER, PEER)]
