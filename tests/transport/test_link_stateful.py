"""Three actors, any faults in any order: what is heard is what was said, and links come back."""

from collections import defaultdict
from itertools import product

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clocks import VectorClock
from ddloco.job.protocol.messages import Pull
from ddloco.stage.actors.actor import new_actor
from transport import (
    LANES,
    CancelTimer,
    Dial,
    Drop,
    Event,
    Free,
    Hangup,
    Keep,
    LaneBroken,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Send,
    SetTimer,
    TimerFired,
    Transmit,
)
from transport.message import Hello

AGREED = {"job": "job-1"}
HUB = "hub"
SPOKES = ("one.1", "two.1")
ROUTES = [*product(SPOKES, [HUB], LANES), *product([HUB], SPOKES, LANES)]
"""Who says something to whom, and in which lane; each is a FIFO queue."""

ROUNDS_MAX = 8
"""After the last fault: resets, a redial, a handshake, and one more for a lost goodbye."""


class Order(Event, frozen=True):
    """The test tells an actor's machine what to ask for."""

    effects: tuple


class Talker:
    """A machine that does as it is told, writes down what it hears, and keeps the last array."""

    def __init__(self):
        self.joined, self.heard, self.kept = set(), [], ""

    def handle(self, at, event):
        match event:
            case Order(effects):
                return list(effects)
            case PeerJoined(peer):
                assert peer not in self.joined
                self.joined.add(peer)
            case PeerLost(peer):
                self.joined.remove(peer)
            case MessageArrived():
                assert event.peer in self.joined, "heard of a peer that has not joined"
                self.heard.append(event)
                older, self.kept = self.kept, event.handle
                return [Keep(self.kept), *([Drop(older)] if older else [])]
        return []


class Network(RuleBasedStateMachine):
    """Actors, the queues between them, and a model of what may be heard."""

    @initialize(up=st.sampled_from([True, True, False]))
    def start(self, up):
        self.at = 0.0
        self.actors = {name: new_actor(name, Talker()) for name in (HUB, *SPOKES)}
        self.queues = {route: [] for route in ROUTES}
        self.timers = {name: {} for name in self.actors}
        self.live = {name: set() for name in self.actors}
        self.ended = defaultdict(int)
        self.sent = defaultdict(list)
        self.said = {}
        self.number = 0
        self.tell(HUB, Order((Listen(AGREED),)))
        for spoke in SPOKES:
            self.tell(spoke, Order((Dial(HUB, AGREED),)))
        if up:
            self.settle()

    # The world.

    def tell(self, name, event):
        """Let one event happen at an actor, and do what it asks for."""
        actor = self.actors[name]
        before = actor.clock.frozen()
        if isinstance(event, MessageArrived) and event.handle:
            self.live[name].add(event.handle)
        effects = actor.handle(self.at, event)
        stamp = actor.clock.frozen()
        assert before < stamp
        assert actor.number == before[name] + 1
        for effect in effects:
            match effect:
                case Transmit(peer, lane, session, _, _, body):
                    assert effect.payload in {"", *self.live[name]}, "sent after it was freed"
                    self.queues[name, peer, lane].append((effect, stamp))
                    if isinstance(body, Pull):
                        self.sent[name, peer, lane, session].append(body.t)
                case SetTimer(timer, at):
                    self.timers[name][timer] = at
                case CancelTimer(timer):
                    self.timers[name].pop(timer, None)
                case Free(handle):
                    self.live[name].remove(handle)

    def arrive(self, route, index=0):
        """Let a message come in, and check what its receiver makes of it."""
        (sent, stamp), (source, target, lane) = self.queues[route].pop(index), route
        actor, heard = self.actors[target], len(self.actors[target].machine.heard)
        where = (source, lane, source, sent.session, sent.seq, sent.clock, sent.body)
        handle = f"in/{actor.number + 1}" if sent.payload else ""
        self.tell(target, MessageArrived(*where, b"", handle))
        for event in actor.machine.heard[heard:]:
            assert (event.body, event.seq) == (sent.body, sent.seq)
            assert stamp < actor.clock.frozen(), "a message is received after it was sent"

    def say(self, route, key, count=1):
        source, target, lane = route
        for _ in range(count):
            self.number += 1
            handle = f"out/{self.number}"
            self.live[source].add(handle)
            self.said[self.number] = key
            body = Pull(self.number, 0)
            send = Send(target, lane, body, handle, key)
            self.tell(source, Order((Keep(handle), send, Drop(handle))))

    def settle(self):
        while busy := [route for route in ROUTES if self.queues[route]]:
            for route in busy:
                self.arrive(route)

    # What may happen.

    @rule(
        route=st.sampled_from(ROUTES),
        key=st.sampled_from(["", "", "k", "l"]),
        count=st.sampled_from([1, 2, 9]),
    )
    def an_actor_speaks(self, route, key, count):
        self.say(route, key, count)

    def some_queue(self, data):
        """Draw a route in which something is under way."""
        return data.draw(st.sampled_from([route for route in ROUTES if self.queues[route]]))

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data(), count=st.sampled_from([1, 2, 9]))
    def messages_arrive(self, data, count):
        route = self.some_queue(data)
        for _ in range(min(count, len(self.queues[route]))):
            self.arrive(route)

    @rule()
    def all_messages_arrive(self):
        self.settle()

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def a_message_is_lost(self, data):
        queue = self.queues[self.some_queue(data)]
        queue.pop(data.draw(st.integers(0, min(len(queue) - 1, 3))))

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def a_message_comes_twice(self, data):
        queue = self.queues[self.some_queue(data)]
        if not isinstance(queue[0][0].body, Hello):
            queue.insert(0, queue[0])

    @rule(route=st.sampled_from(ROUTES))
    def a_lane_breaks(self, route):
        source, target, lane = route
        self.tell(target, LaneBroken(source, lane, "cut"))

    @precondition(lambda self: any(self.timers.values()))
    @rule()
    def the_next_timer_fires(self):
        due = ((t, n, k) for n, ks in self.timers.items() for k, t in ks.items())
        at, name, timer = min(due, key=lambda each: (*each[:2], repr(each[2])))
        self.at = max(self.at, at)
        del self.timers[name][timer]
        self.tell(name, TimerFired(timer))

    # What always holds.

    @invariant()
    def what_is_heard_is_a_beginning_of_what_was_sent(self):
        for name, actor in self.actors.items():
            heard = defaultdict(list)
            for event in actor.machine.heard:
                heard[event.peer, name, event.lane, event.session].append(event.body.t)
            for key, numbers in heard.items():
                assert numbers == self.sent[key][: len(numbers)]

    @invariant()
    def what_is_sent_is_what_was_said(self):
        for numbers in self.sent.values():
            for key in ("", "k", "l"):
                of_key = [number for number in numbers if self.said[number] == key]
                assert of_key == sorted(set(of_key))

    @invariant()
    def no_clock_is_ahead_of_its_actor(self):
        for actor, other in product(self.actors.values(), repeat=2):
            assert actor.clock[other.incarnation] <= other.number

    @invariant()
    def joins_are_what_links_say(self):
        for actor in self.actors.values():
            assert actor.links.peers() == sorted(actor.machine.joined)

    def teardown(self):
        """No more faults: links come up and carry every lane; then all leave, nothing is left."""
        if not hasattr(self, "actors"):
            return
        for _ in range(ROUNDS_MAX):
            self.settle()
            while any(self.timers.values()):
                self.the_next_timer_fires()
                self.settle()
            for route in ROUTES:
                self.say(route, "")
            heard = {name: len(actor.machine.heard) for name, actor in self.actors.items()}
            self.settle()
            if all(
                len(actor.machine.heard) - heard[name] >= len([r for r in ROUTES if r[1] == name])
                for name, actor in self.actors.items()
            ):
                break
        assert self.actors[HUB].links.peers() == sorted(SPOKES)
        assert all(self.actors[spoke].links.peers() == [HUB] for spoke in SPOKES)
        self.all_that_was_said_arrives()
        self.everyone_leaves()

    def all_that_was_said_arrives(self):
        """On links that are up, messages without a key all come, in order."""
        first = self.number + 1
        for route in ROUTES:
            self.say(route, "", 9)
        self.settle()
        came = [
            event.body.t
            for actor in self.actors.values()
            for event in actor.machine.heard
            if event.body.t >= first
        ]
        assert sorted(came) == list(range(first, self.number + 1))
        for name, actor in self.actors.items():
            for other in self.actors:
                if other != name and HUB in (name, other):
                    assert actor.clock[other] > 0
        assert VectorClock() < self.actors[HUB].clock.frozen()

    def everyone_leaves(self):
        """After goodbye no timer, no link and no array is left, but the one that is kept."""
        for spoke in SPOKES:
            self.tell(spoke, Order((Hangup(HUB, "done"),)))
        self.settle()
        for name, actor in self.actors.items():
            assert actor.links.peers() == []
            assert self.timers[name] == {}
            if actor.machine.kept:
                assert self.live[name] == {actor.machine.kept}
                self.tell(name, Order((Drop(actor.machine.kept),)))
            assert self.live[name] == set()
            assert len(actor.handles) == 0


Network.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


class TestNetwork(Network.TestCase):
    """Faults in any order neither change what is heard nor keep links down."""
