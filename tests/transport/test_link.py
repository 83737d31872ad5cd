"""The link machine, two of them back to back: handshake, order, credit, and every way to break."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clocks import VectorClock
from ddloco.messages import GlobalFragment, Pull
from transport import (
    BULK,
    CONTROL,
    LANES,
    CancelTimer,
    Dial,
    Free,
    Handles,
    Hangup,
    LaneBroken,
    Links,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Send,
    SetTimer,
    TimerFired,
    Transmit,
)
from transport.link import REDIAL_S_MAX, REDIAL_S_MIN
from transport.message import Bye, Credit, Hello, Refused, Reset, Welcome
from transport.outbox import WAITING_MAX, WINDOW_MESSAGES

AGREED = {"job": "job-1", "plan": "p1"}
HUB, SPOKE = "hub", "spoke.1"


class Side:
    """One actor's links, its clock, and a record of what they told and asked."""

    def __init__(self, me, name):
        self.me, self.name = me, name
        self.handles = Handles()
        self.links = Links(me, self.handles)
        self.heard, self.freed, self.timers = [], [], {}

    def said(self):
        """Give the bodies of the messages that this side has taken in."""
        return [event.body for event in self.heard if isinstance(event, MessageArrived)]

    def news(self):
        """Give joins, losses and refusals."""
        return [type(e) for e in self.heard if isinstance(e, PeerJoined | PeerLost | PeerRefused)]


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

    def tick(self, side, clock=None):
        """Let one event happen at a side: its clock grows, as its actor would see to."""
        known = {k: v for k, v in (clock or {}).items() if k != side.me}
        side.links.clock = side.links.clock.merge(known).tick(side.me)

    def ask(self, side, effect):
        self.tick(side)
        self.collect(side, *side.links.perform(self.at, effect))

    def tell(self, side, event):
        arrived = isinstance(event, MessageArrived)
        self.tick(side, event.clock if arrived else None)
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

    def fire(self, side, timer=f"redial/{HUB}"):
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


@pytest.fixture
def pair():
    """Give two sides whose link is up."""
    pair = Pair()
    pair.settle()
    return pair


def numbers(bodies):
    return [body.t for body in bodies]


# Handshake.


def test_a_link_comes_up_on_both_lanes(pair):
    """Each side hears once that the other has joined, by name and incarnation."""
    assert pair.spoke.heard == [PeerJoined(HUB, "hub.1")]
    assert pair.hub.heard == [PeerJoined(SPOKE, SPOKE)]
    assert (pair.spoke.links.peers(), pair.hub.links.peers()) == ([HUB], [SPOKE])
    assert pair.spoke.links.knows(HUB)
    assert not pair.spoke.links.knows("somebody")
    assert pair.spoke.timers == {}


@pytest.mark.parametrize("lane", LANES)
def test_one_lane_is_not_enough(lane):
    """The listening side welcomes nobody before both lanes have said Hello."""
    pair = Pair()

    pair.deliver(pair.spoke, lane)

    assert pair.hub.heard == []
    assert [pair.queues[HUB, each] for each in LANES] == [[], []]
    pair.send(pair.hub, Pull(1, 0))
    assert pair.hub.links.counters == {"said to a peer without a link": 1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_lanes_may_be_as_uneven_as_they_like(picks):
    """Nothing assumes an order across lanes: a peer is heard only while it has joined."""
    pair = Pair()
    keys = list(pair.queues)
    for pick in picks:
        name, lane = keys[pick]
        side = pair.spoke if name == SPOKE else pair.hub
        if pair.queues[name, lane]:
            pair.deliver(side, lane)
        if side.links.peers():
            pair.send(side, Pull(pick, 0), lane)
    pair.settle()

    for side in (pair.spoke, pair.hub):
        assert isinstance(side.heard[0], PeerJoined)
        assert len(side.news()) == 1
        assert "stale" not in side.links.counters


def test_a_message_that_overtakes_the_second_welcome_finds_a_peer_that_has_joined():
    """One Welcome says that the other side is ready; its first request can be answered."""
    pair = Pair()
    for lane in LANES:
        pair.deliver(pair.spoke, lane)
    pair.send(pair.hub, Pull(7, 0))

    pair.deliver(pair.hub, CONTROL, 2)
    pair.send(pair.spoke, Pull(8, 0), BULK)
    pair.settle()

    assert [PeerJoined, MessageArrived] == [type(event) for event in pair.spoke.heard]
    assert numbers(pair.hub.said()) == [8]


def test_a_lost_second_welcome_is_asked_for_again():
    """A link with one lane dumb is given up when its timer is due, and shaken anew."""
    pair = Pair()
    for lane in LANES:
        pair.deliver(pair.spoke, lane)
    pair.lose(pair.hub, BULK)
    pair.settle()

    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.news() == [PeerJoined, PeerLost, PeerJoined]
    assert pair.hub.news() == [PeerJoined, PeerLost, PeerJoined]
    assert pair.spoke.timers == {}


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"job": "job-2", "plan": "p1"}, "job differs: job-1 here, job-2 there"),
        ({"job": "job-1"}, "plan differs: p1 here, None there"),
        ({**AGREED, "seed": "5"}, "seed differs: None here, 5 there"),
    ],
)
def test_who_does_not_agree_is_refused_and_told_what_differs(theirs, reason):
    """A refusal names the first difference, is final, and leaves nothing behind."""
    pair = Pair(theirs)
    pair.settle()

    assert pair.spoke.heard == [PeerRefused(HUB, reason)]
    assert pair.spoke.timers == {}
    assert not pair.spoke.links.knows(HUB)
    assert pair.hub.heard == []
    assert not pair.hub.links.knows(SPOKE)
    assert pair.hub.links.counters == {"refused at the handshake": 2}


def test_who_listens_late_is_reached_by_the_next_dial():
    """Hello to a side that does not listen yet is repeated, and then works."""
    pair = Pair()
    pair.hub.links = Links("hub.1", pair.hub.handles)
    pair.settle()
    assert pair.spoke.heard == []

    pair.ask(pair.hub, Listen(AGREED))
    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.news() == pair.hub.news() == [PeerJoined]


@pytest.mark.parametrize("lane", LANES)
def test_a_lost_hello_is_repeated(lane):
    """A handshake that lost one half is done again as a whole."""
    pair = Pair()
    pair.lose(pair.spoke, lane)
    pair.settle()

    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.news() == pair.hub.news() == [PeerJoined]


def test_dialling_slows_down_and_never_stops():
    """Waits double from half a second to eight, and stay there for hours."""
    pair = Pair()
    waits = []
    for _ in range(1200):
        waits.append(pair.spoke.timers[f"redial/{HUB}"] - pair.at)
        pair.fire(pair.spoke)
        pair.queues = {key: [] for key in pair.queues}

    assert waits[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert set(waits[4:]) == {REDIAL_S_MAX}


def test_success_makes_the_next_dial_soon_again():
    """The waits start from the beginning once a link was up."""
    pair = Pair()
    for _ in range(5):
        pair.fire(pair.spoke)
    pair.settle()

    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "cut"))

    assert pair.spoke.timers == {f"redial/{HUB}": pair.at + REDIAL_S_MIN}


# Order, clocks, credit.


def test_messages_arrive_in_the_order_of_their_lane(pair):
    """What is said in one lane is heard in that order, numbered without holes."""
    for number in range(20):
        pair.send(pair.spoke, Pull(number, 0))
        pair.send(pair.hub, Pull(number, 1), BULK)
    pair.settle()

    assert numbers(pair.hub.said()) == list(range(20))
    assert numbers(pair.spoke.said()) == list(range(20))
    assert [event.seq for event in pair.hub.heard[1:]] == list(range(1, 21))


def test_clocks_travel_as_deltas_that_teach_everything(pair):
    """After every message its receiver knows what its sender knew; later deltas are short."""
    pair.tick(pair.hub, {"third.1": 5})
    pair.send(pair.hub, Pull(1, 0))
    [first] = pair.queues[HUB, CONTROL]
    pair.settle()
    pair.send(pair.hub, Pull(2, 0))
    [second] = pair.queues[HUB, CONTROL]
    knew = pair.hub.links.clock
    pair.settle()

    assert first.clock["third.1"] == 5
    assert set(second.clock) == {"hub.1"}
    assert knew < pair.spoke.links.clock


@pytest.mark.parametrize("lane", LANES)
def test_a_peer_that_takes_nothing_gets_a_window_and_then_the_rest(pair, lane):
    """Without credit at most the window is under way; with credit everything comes, in order."""
    window = WINDOW_MESSAGES[lane]
    total = 3 * window + 1
    for number in range(total):
        pair.send(pair.spoke, Pull(number, 0), lane)

    assert len(pair.queues[SPOKE, lane]) == window
    pair.deliver(pair.spoke, lane, window)
    assert pair.queues[SPOKE, lane] == []
    assert [type(e.body) for e in pair.queues[HUB, CONTROL]] == [Credit, Credit]
    pair.settle()
    assert numbers(pair.hub.said()) == list(range(total))


def test_two_sides_that_both_wait_for_credit_do_not_wait_for_ever(pair):
    """Word of credit never queues behind what waits for credit."""
    total = 3 * WINDOW_MESSAGES[CONTROL]
    for number in range(total):
        pair.send(pair.spoke, Pull(number, 0))
        pair.send(pair.hub, Pull(number, 0))

    pair.settle()

    assert numbers(pair.spoke.said()) == numbers(pair.hub.said()) == list(range(total))


def test_credit_is_no_message_to_the_machine(pair):
    """The machine above hears what was said to it, never the link's own words."""
    for number in range(50):
        pair.send(pair.spoke, Pull(number, 0), BULK)
    pair.settle()

    assert {type(body) for body in pair.hub.said()} == {Pull}
    assert pair.spoke.said() == []


def test_a_frozen_peer_gets_the_newest_of_each_statement(pair):
    """Behind the window only the newest version of a fragment waits, and its array alone."""
    for version in range(20):
        body = GlobalFragment(0, version)
        pair.send(pair.hub, body, BULK, payload=f"wire/{version}", key="fragment/0")
    left = [f"wire/{version}" for version in range(19)]

    assert pair.hub.freed == left
    pair.settle()

    assert [body.version for body in pair.spoke.said()] == [0, 1, 2, 3, 19]
    assert pair.hub.freed == [*left, "wire/19"]
    assert len(pair.hub.handles) == len(pair.spoke.handles) == 0


def test_no_statement_is_replaced_across_a_barrier(pair):
    """What waits before a marker is sent before it, whatever is newer."""
    for number in range(4):
        pair.send(pair.hub, Pull(number, 0), BULK)
    pair.send(pair.hub, Pull(10, 0), BULK, key="k")
    pair.send(pair.hub, Pull(11, 0), BULK, barrier=True)
    pair.send(pair.hub, Pull(12, 0), BULK, key="k")
    pair.send(pair.hub, Pull(13, 0), BULK, key="k")
    pair.settle()

    assert numbers(pair.spoke.said()) == [0, 1, 2, 3, 10, 11, 13]


def test_an_outbox_too_full_gives_the_link_up(pair):
    """Beyond the limit of what may wait the link is lost, not the memory."""
    for number in range(WINDOW_MESSAGES[BULK] + WAITING_MAX):
        pair.send(pair.hub, Pull(number, 0), BULK, payload=f"p/{number}")
    assert pair.hub.news() == [PeerJoined]

    pair.send(pair.hub, Pull(0, 0), BULK, payload="one too many")

    assert pair.hub.news() == [PeerJoined, PeerLost]
    assert pair.hub.links.counters["outbox full"] == 1
    assert len(pair.hub.handles) == 0
    assert len(pair.hub.freed) == len(set(pair.hub.freed))
    assert pair.hub.freed[-1] == "one too many"


def test_what_is_said_to_nobody_is_counted_and_holds_nothing():
    """Without a link nothing is sent, nothing waits, no array is held."""
    side = Pair().hub

    heard, effects = side.links.perform(0.0, Send("nobody", BULK, Pull(1, 0), "array"))

    assert (heard, effects) == ([], [])
    assert side.links.counters == {"said to a peer without a link": 1}
    assert len(side.handles) == 0


# Breaking.


def test_a_duplicate_is_dropped_and_counted(pair):
    """A message that comes twice is heard once, and the link stays up."""
    pair.send(pair.spoke, Pull(1, 0))
    [twice] = pair.queues[SPOKE, CONTROL]
    pair.settle()

    pair.tell(pair.hub, twice)
    pair.send(pair.spoke, Pull(2, 0))
    pair.settle()

    assert numbers(pair.hub.said()) == [1, 2]
    assert pair.hub.links.counters == {"duplicate": 1}


@pytest.mark.parametrize("lane", LANES)
def test_a_gap_towards_the_listening_side_breaks_the_link_and_a_new_one_comes(pair, lane):
    """The listening side asks for a reset; the dialling side dials again, one session later."""
    pair.tick(pair.spoke, {"third.1": 9})
    for number in range(3):
        pair.send(pair.spoke, Pull(number, 0), lane)
    pair.lose(pair.spoke, lane, 1)
    pair.deliver(pair.spoke, lane, 2)

    assert numbers(pair.hub.said()) == [0]
    assert pair.hub.heard[-1] == PeerLost(SPOKE, f"{lane} lane: message 3 where 2 was due")
    [reset] = pair.queues[HUB, CONTROL]
    assert (type(reset.body), reset.session) == (Reset, 1)
    pair.settle()
    assert pair.spoke.news() == [PeerJoined, PeerLost]
    assert pair.spoke.timers == {f"redial/{HUB}": REDIAL_S_MIN}

    pair.fire(pair.spoke)
    hellos = [pair.queues[SPOKE, each][0] for each in LANES]
    assert [(type(e.body), e.session, e.seq) for e in hellos] == [(Hello, 2, 0)] * 2
    whole = pair.spoke.links.clock.wire()
    assert [VectorClock(e.clock).wire() for e in hellos] == [whole] * 2
    assert whole["third.1"] == 9
    pair.settle()
    pair.send(pair.spoke, Pull(5, 0), lane)
    pair.settle()

    assert pair.spoke.news() == pair.hub.news() == [PeerJoined, PeerLost, PeerJoined]
    assert numbers(pair.hub.said()) == [0, 5]
    assert pair.hub.links.clock["third.1"] == 9


@pytest.mark.parametrize("lane", LANES)
def test_a_gap_towards_the_dialling_side_breaks_the_link_and_a_new_one_comes(pair, lane):
    """The dialling side gives the link up, waits a little, and shakes hands again."""
    for number in range(3):
        pair.send(pair.hub, Pull(number, 0), lane)
    pair.lose(pair.hub, lane, 0)
    pair.settle()

    assert pair.spoke.said() == []
    assert pair.spoke.news() == [PeerJoined, PeerLost]
    assert pair.spoke.links.counters == {"gap or false clock": 1, "stale": 1}
    pair.fire(pair.spoke)
    pair.settle()
    welcome_after = pair.hub.news()
    pair.send(pair.hub, Pull(5, 0), lane)
    pair.settle()

    assert welcome_after == [PeerJoined, PeerLost, PeerJoined]
    assert numbers(pair.spoke.said()) == [5]


def test_the_clock_is_whole_after_every_handshake(pair):
    """The first message of a new session holds all entries, in both directions."""
    pair.tick(pair.hub, {"third.1": 4, "fourth.1": 2})
    pair.send(pair.hub, Pull(0, 0))
    pair.settle()
    pair.tell(pair.spoke, LaneBroken(HUB, CONTROL, "cut"))
    pair.fire(pair.spoke)
    for lane in LANES:
        pair.deliver(pair.spoke, lane)

    welcomes = [pair.queues[HUB, lane][0] for lane in LANES]

    assert [(type(e.body), e.seq) for e in welcomes] == [(Welcome, 0)] * 2
    assert [e.clock for e in welcomes] == [pair.hub.links.clock.wire()] * 2


@pytest.mark.parametrize("lane", LANES)
def test_a_clock_that_knows_what_has_not_happened_breaks_the_link(pair, lane):
    """Nobody can have heard of an event of ours that is yet to come, nor of this one."""
    for ahead in (1, 1000):
        pair.send(pair.spoke, Pull(1, 0), lane)
        false = pair.lose(pair.spoke, lane)
        claim = {**false.clock, "hub.1": pair.hub.links.clock["hub.1"] + ahead}
        where = (false.peer, lane, SPOKE, false.session, false.seq)

        pair.tell(pair.hub, MessageArrived(*where, claim, false.body))

        assert pair.hub.said() == []
        assert isinstance(pair.hub.heard[-1], PeerLost)
        assert "events that have not happened" in pair.hub.heard[-1].reason
        pair.settle()
        pair.fire(pair.spoke)
        pair.settle()
    assert pair.hub.news()[-1] is PeerJoined


def test_a_true_clock_of_our_last_event_is_no_breach(pair):
    """An answer knows the event that it answers, and nothing later."""
    pair.send(pair.hub, Pull(1, 0))
    newest = pair.hub.links.clock["hub.1"]
    pair.settle()
    pair.send(pair.spoke, Pull(2, 0))
    [answer] = pair.queues[SPOKE, CONTROL]
    pair.settle()

    assert answer.clock["hub.1"] == newest
    assert numbers(pair.hub.said()) == [2]


@pytest.mark.parametrize("who", [SPOKE, HUB])
@pytest.mark.parametrize("lane", LANES)
def test_a_broken_lane_breaks_the_link_until_hands_are_shaken_again(pair, who, lane):
    """Whichever side notices, both come back with a new session; the quiet one when it speaks."""
    side = pair.spoke if who == SPOKE else pair.hub
    pair.tell(side, LaneBroken(pair.other(side).name, lane, "refused: $.seq"))
    assert side.heard[-1] == PeerLost(pair.other(side).name, f"{lane} lane: refused: $.seq")

    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()
    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.news()[-1] is pair.hub.news()[-1] is PeerJoined
    assert side.links.counters["lane broken"] == 1


def test_a_broken_lane_of_a_stranger_is_nothing(pair):
    """A break of what is no link is not even heard."""
    pair.tell(pair.hub, LaneBroken("stranger", BULK, "cut"))

    assert pair.hub.news() == [PeerJoined]


def test_messages_of_an_old_session_are_stale(pair):
    """What was under way when hands were shaken again is dropped, counted, and breaks nothing."""
    for number in range(3):
        pair.send(pair.spoke, Pull(number, 0), BULK)
        pair.send(pair.hub, Pull(number, 0), BULK)
    old = [pair.lose(pair.spoke, BULK) for _ in range(3)]
    older = [pair.lose(pair.hub, BULK) for _ in range(3)]
    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "cut"))
    pair.fire(pair.spoke)
    pair.settle()

    for event in old:
        pair.tell(pair.hub, event)
    for event in older:
        pair.tell(pair.spoke, event)
    pair.settle()

    assert (pair.hub.said(), pair.spoke.said()) == ([], [])
    assert pair.hub.links.counters["stale"] == 3
    assert pair.spoke.news() == pair.hub.news() == [PeerJoined, PeerLost, PeerJoined]


def test_old_words_of_a_handshake_are_stale(pair):
    """Hello, Welcome, Reset and Refused of another session change nothing."""
    clock = {SPOKE: 1, "hub.1": 1}
    for session in (0, 7):
        for body in (Welcome(), Reset("x"), Refused("x")):
            pair.tell(pair.spoke, MessageArrived(HUB, CONTROL, "hub.1", session, 0, clock, body))
    pair.tell(pair.hub, MessageArrived(SPOKE, BULK, SPOKE, 0, 0, clock, Hello(AGREED)))
    pair.tell(pair.hub, MessageArrived(SPOKE, BULK, SPOKE, 1, 0, clock, Hello(AGREED)))
    pair.settle()

    assert pair.spoke.news() == pair.hub.news() == [PeerJoined]
    assert (pair.spoke.links.counters, pair.hub.links.counters) == ({"stale": 6}, {"stale": 2})


def test_a_listening_side_that_starts_anew_is_dialled_again(pair):
    """The new incarnation knows nothing of the session, says so, and is then joined by name."""
    pair.hub.me = "hub.2"
    pair.hub.links = Links("hub.2", pair.hub.handles)
    pair.ask(pair.hub, Listen(AGREED))

    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()
    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.heard[-1] == PeerJoined(HUB, "hub.2")
    assert pair.hub.heard[-1] == PeerJoined(SPOKE, SPOKE)


def test_a_handshake_while_the_link_is_up_is_a_loss_and_a_join(pair):
    """Whoever dials again has lost the old link; what waited for it is given up."""
    for number in range(9):
        pair.send(pair.hub, Pull(number, 0), BULK, payload=f"p/{number}")
    pair.queues = {key: [] for key in pair.queues}
    clock = pair.spoke.links.clock.wire()

    for lane in LANES:
        pair.tell(pair.hub, MessageArrived(SPOKE, lane, SPOKE, 9, 0, clock, Hello(AGREED)))

    assert pair.hub.news() == [PeerJoined, PeerLost, PeerJoined]
    assert pair.hub.freed == [f"p/{number}" for number in range(9)]
    assert len(pair.hub.handles) == 0


# Leaving.


@pytest.mark.parametrize("who", [SPOKE, HUB])
def test_who_hangs_up_says_goodbye(pair, who):
    """The other side hears the reason, forgets the link and does not dial again."""
    side = pair.spoke if who == SPOKE else pair.hub

    pair.ask(side, Hangup(pair.other(side).name, "done"))
    pair.settle()

    assert pair.other(side).heard[-1] == PeerLost(side.name, "done")
    assert side.news() == [PeerJoined]
    for each in (pair.spoke, pair.hub):
        assert each.links.peers() == []
        assert not each.links.knows(pair.other(each).name)
        assert each.timers == {}


def test_goodbye_is_said_also_to_a_peer_that_gives_no_credit(pair):
    """Goodbye costs nothing; what still waits is given up, and its arrays are freed."""
    for number in range(WINDOW_MESSAGES[CONTROL] + 5):
        pair.send(pair.hub, Pull(number, 0), payload=f"p/{number}")

    pair.ask(pair.hub, Hangup(SPOKE, "done"))

    assert len(pair.hub.freed) == WINDOW_MESSAGES[CONTROL] + 5
    assert isinstance(pair.queues[HUB, CONTROL][-1].body, Bye)
    pair.settle()
    assert pair.spoke.heard[-1] == PeerLost(HUB, "done")
    assert len(pair.hub.handles) == len(pair.spoke.handles) == 0


def test_hanging_up_before_the_link_is_up_stops_dialling():
    """A link that never came up is forgotten with its timer."""
    pair = Pair()

    pair.ask(pair.spoke, Hangup(HUB, "never mind"))
    pair.ask(pair.spoke, Hangup(HUB, "again"))
    pair.settle()

    assert pair.spoke.timers == {}
    assert pair.spoke.heard == []


def test_a_redial_that_is_due_after_all_is_over_does_nothing(pair):
    """A timer that fires late finds the link up, or gone, and leaves it so."""
    pair.tell(pair.spoke, TimerFired(f"redial/{HUB}"))
    pair.tell(pair.spoke, TimerFired("redial/stranger"))

    assert pair.queues == {key: [] for key in pair.queues}
    assert pair.spoke.news() == [PeerJoined]


def test_what_does_not_concern_links_passes_by(pair):
    """Other timers and other effects are the machine's and the world's."""
    pair.tell(pair.spoke, TimerFired("grace"))

    assert pair.spoke.heard[-1] == TimerFired("grace")
    assert pair.spoke.links.perform(0.0, SetTimer("grace", 1.0)) is None
    assert pair.spoke.links.perform(0.0, Free("x")) is None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sdlbt"), st.integers(0, 3)), max_size=60))
def test_every_array_that_is_held_is_freed_exactly_once(steps):
    """Sent, replaced, lost, broken or hung up: at the end nothing is held, nothing freed twice."""
    pair = Pair()
    pair.settle()
    keys = list(pair.queues)
    named = {SPOKE: [], HUB: []}
    for step, pick in steps:
        name, lane = keys[pick]
        side = pair.spoke if name == SPOKE else pair.hub
        if step == "s":
            named[name].append(f"{name}/{len(named[name])}")
            key = f"k{pick % 2}" if pick else ""
            pair.send(side, Pull(pick, 0), lane, payload=named[name][-1], key=key)
        elif step in "dl" and pair.queues[name, lane]:
            pair.deliver(side, lane) if step == "d" else pair.lose(side, lane)
        elif step == "b" and pick == 0:
            pair.tell(side, LaneBroken(pair.other(side).name, lane, "cut"))
        elif step == "t" and pair.spoke.timers:
            pair.fire(pair.spoke)
    for side in (pair.spoke, pair.hub):
        pair.ask(side, Hangup(pair.other(side).name, "end"))
    pair.settle()

    for side in (pair.spoke, pair.hub):
        own = [handle for handle in side.freed if not handle.startswith("in/")]
        assert sorted(own) == sorted(named[side.name])
        assert len(side.freed) == len(set(side.freed))
        assert len(side.handles) == 0
