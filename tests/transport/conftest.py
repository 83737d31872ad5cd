"""Two link machines back to back, joined by queues that a test can look into."""

import pytest

from clocks import ActorClock
from transport import (
    CONTROL,
    LANES,
    CancelTimer,
    Dial,
    Free,
    Handles,
    Links,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Redial,
    Send,
    SetTimer,
    TimerFired,
    Transmit,
)

AGREED = {"job": "job-1", "plan": "p1"}
HUB, SPOKE = "hub", "spoke.1"


class Side:
    """One actor's links, its clock, and a record of what they told and asked."""

    def __init__(self, me, name):
        self.me, self.name = me, name
        self.handles = Handles()
        self.links = Links(ActorClock(me), self.handles)
        self.heard, self.freed, self.timers = [], [], {}

    def said(self):
        """Give the bodies of the messages that this side has taken in."""
        return [event.body for event in self.heard if isinstance(event, MessageArrived)]

    def news(self):
        """Give joins, losses and refusals."""
        return [type(e) for e in self.heard if isinstance(e, PeerJoined | PeerLost | PeerRefused)]


REDIAL = Redial(HUB)


class Pair:
    """A dialling and a listening side, joined by one FIFO queue for each lane and direction."""

    def __init__(self, agreement=AGREED):
        self.at = 0.0
        self.spoke, self.hub = Side(SPOKE, SPOKE), Side("hub.1", HUB)
        self.queues = {(name, lane): [] for name in (SPOKE, HUB) for lane in LANES}
        self.brought = 0
        self.ask(self.hub, Listen(AGREED))
        self.ask(self.spoke, Dial(HUB, agreement))

    def other(self, side):
        return self.hub if side is self.spoke else self.spoke

    def tick(self, side, clock=None, source="test"):
        """Let one event happen at a side: its clock grows, as its actor would see to."""
        side.links.clock.tick(clock or {}, source)

    def ask(self, side, effect):
        self.tick(side)
        self.collect(side, *side.links.perform(self.at, effect))

    def tell(self, side, event):
        arrived = isinstance(event, MessageArrived)
        if arrived:
            self.tick(side, event.clock, event.sender)
        else:
            self.tick(side)
        handle = event.handle if arrived else ""
        if handle:
            side.handles.hold(handle)
        self.collect(side, *side.links.handle(self.at, event))
        if handle:
            side.freed += [free.handle for free in side.handles.release(handle)]

    def collect(self, side, heard, effects):
        side.heard += heard
        for effect in effects:
            match effect:
                case Transmit():
                    assert effect.peer == self.other(side).name
                    self.queues[side.name, effect.lane].append(self.arrival(side, effect))
                case SetTimer(timer, at):
                    side.timers[timer] = at
                case CancelTimer(timer):
                    side.timers.pop(timer, None)
                case Free(handle):
                    side.freed.append(handle)

    def arrival(self, side, sent):
        handle = ""
        if sent.payload:
            self.brought += 1
            handle = f"in/{self.brought}"
        where = (side.name, sent.lane, side.me, sent.session, sent.seq, sent.clock)
        return MessageArrived(*where, sent.body, b"", handle)

    def deliver(self, side, lane, count=1):
        """Let the other side have the next messages that this side sent in one lane."""
        for _ in range(count):
            self.tell(self.other(side), self.queues[side.name, lane].pop(0))

    def settle(self):
        """Deliver until nothing is under way."""
        while busy := [key for key, queue in self.queues.items() if queue]:
            for name, lane in busy:
                self.deliver(self.spoke if name == SPOKE else self.hub, lane)

    def fire(self, side, timer=REDIAL):
        self.at = max(self.at, side.timers.pop(timer))
        self.tell(side, TimerFired(timer))

    def send(self, side, body, lane=CONTROL, **options):
        payload = options.get("payload")
        if payload:
            side.handles.hold(payload)
        self.ask(side, Send(self.other(side).name, lane, body, **options))
        if payload:
            side.freed += [free.handle for free in side.handles.release(payload)]

    def lose(self, side, lane, index=0):
        return self.queues[side.name, lane].pop(index)


@pytest.fixture(scope="session")
def new_pair():
    """Give a maker of two sides that have just begun to shake hands."""
    return Pair


@pytest.fixture
def pair():
    """Give two sides whose link is up."""
    pair = Pair()
    pair.settle()
    return pair
