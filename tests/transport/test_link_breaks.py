"""Every way in which a link breaks, and how the two sides find each other again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clocks import ActorClock, VectorClock
from ddloco.job.protocol.messages import Pull
from transport import (
    BULK,
    CONTROL,
    LANES,
    BytesArrived,
    Hangup,
    LaneBroken,
    Links,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Redial,
    Stall,
)
from transport.flow_control import WINDOW_MESSAGES
from transport.link_state import REDIAL_S_MIN
from transport.message import Hello, Refused, Reset, Welcome

AGREED = {"job": "job-1", "plan": "p1"}
HUB, SPOKE = "hub", "spoke.1"


def numbers(bodies):
    return [body.t for body in bodies]


def say_hello(pair, session):
    """What any process could send under the dialling side's name."""
    for lane in LANES:
        hello = Hello(AGREED)
        pair.tell(pair.hub, MessageArrived(SPOKE, lane, SPOKE, session, 0, {SPOKE: 1}, hello))


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
def test_a_welcome_to_a_handshake_that_was_given_up_is_stale(new_pair, lane):
    """A lane that breaks while hands are shaken ends that session; nothing said is lost in it.

    Found by the stateful test: the late Welcome opened a link whose numbers had started again, and
    the first message was dropped as a duplicate of Hello.
    """
    pair = new_pair()
    pair.tell(pair.spoke, LaneBroken(HUB, lane, "cut"))
    pair.settle()
    assert pair.spoke.news() == []

    pair.fire(pair.spoke)
    pair.settle()
    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()

    assert numbers(pair.hub.said()) == [1]
    assert "duplicate" not in pair.hub.links.counters


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
    assert pair.spoke.timers == {Redial(HUB): REDIAL_S_MIN}

    pair.fire(pair.spoke)
    hellos = [pair.queues[SPOKE, each][0] for each in LANES]
    assert [(type(e.body), e.session > 1, e.seq) for e in hellos] == [(Hello, True, 0)] * 2
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
    """No peer can know an event of this actor that is yet to come, nor this one."""
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
    """An answer may say that it knows the event that it answers, and nothing later."""
    pair.send(pair.hub, Pull(1, 0))
    newest = pair.hub.links.clock["hub.1"]
    pair.settle()
    pair.send(pair.spoke, Pull(2, 0))
    answer = pair.lose(pair.spoke, CONTROL)
    assert "hub.1" not in answer.clock, "no actor is told what it sent itself"
    pair.tell(pair.hub, replace(answer, clock={**answer.clock, "hub.1": newest}))

    assert pair.spoke.links.clock["hub.1"] == newest
    assert numbers(pair.hub.said()) == [2]
    assert pair.hub.news() == [PeerJoined]


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


def test_a_broken_lane_of_an_unknown_peer_is_nothing(pair):
    """A break of what is no link is not even heard."""
    pair.tell(pair.hub, LaneBroken("unknown_peer", BULK, "cut"))

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
    assert (pair.spoke.links.counters, pair.hub.links.counters) == ({"stale": 7}, {"stale": 2})


@pytest.mark.parametrize("session", [2**20 + 2, 2**62, 2**63 - 1])
def test_no_hello_jumps_to_the_end_of_numbers(pair, session):
    """A session number without a successor is not taken; the link stays."""
    say_hello(pair, session)
    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()

    assert numbers(pair.hub.said()) == [1]
    assert pair.hub.news() == pair.spoke.news() == [PeerJoined]


def test_a_peer_whose_session_another_process_raised_goes_beyond(pair):
    """Its next words are of an old session, and so is its next dial; it is told which one stands,
    exceeds that, and is heard."""
    say_hello(pair, 2**20)
    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()
    for _ in range(2):
        pair.fire(pair.spoke)
        pair.settle()
    pair.send(pair.spoke, Pull(2, 0))
    pair.settle()

    assert numbers(pair.hub.said()) == [2]
    assert pair.spoke.links.peers() == [HUB]


def test_a_side_that_counted_too_far_begins_again(new_pair):
    """That session is unknown, and its number is far from the first: the next dial is accepted."""
    pair = new_pair()
    pair.queues = {key: [] for key in pair.queues}
    pair.spoke.links.links[HUB].session = 2**40
    for _ in range(2):
        pair.fire(pair.spoke)
        pair.settle()

    assert pair.hub.links.peers() == [SPOKE]


def test_a_listening_side_that_starts_anew_is_dialled_again(pair):
    """The new incarnation knows nothing of the session, says so, and is then joined by name."""
    pair.hub.me = "hub.2"
    pair.hub.links = Links(ActorClock("hub.2"), pair.hub.handles)
    pair.ask(pair.hub, Listen(AGREED))

    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()
    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.heard[-1] == PeerJoined(HUB, "hub.2")
    assert pair.hub.heard[-1] == PeerJoined(SPOKE, SPOKE)


def test_a_handshake_while_the_link_is_up_is_a_loss_and_a_join(pair):
    """A peer that dials again has lost the old link; what waited for it is given up."""
    for number in range(9):
        pair.send(pair.hub, Pull(number, 0), BULK, payload=f"p/{number}")
    pair.queues = {key: [] for key in pair.queues}
    clock = pair.spoke.links.clock.wire()

    for lane in LANES:
        pair.tell(pair.hub, MessageArrived(SPOKE, lane, SPOKE, 9, 0, clock, Hello(AGREED)))

    assert pair.hub.news() == [PeerJoined, PeerLost, PeerJoined]
    assert pair.hub.freed == [f"p/{number}" for number in range(9)]
    assert len(pair.hub.handles) == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("sdlbt"), st.integers(0, 3)), max_size=60))
def test_every_array_that_is_held_is_freed_exactly_once(new_pair, steps):
    """Sent, replaced, lost, broken or hung up: at the end nothing is held, nothing freed twice."""
    pair = new_pair()
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


def test_a_lane_that_lost_all_its_credit_is_given_up(pair):
    """Everything on its way is lost with nothing after it; what waits does not wait for ever.

    Found by the stateful test: no hole is ever seen, since nothing more may leave.
    """
    window = WINDOW_MESSAGES[BULK]
    for t in range(window):
        pair.send(pair.spoke, Pull(t, 0), BULK)
    pair.queues[SPOKE, BULK].clear()
    pair.send(pair.spoke, Pull(window, 0), BULK)
    pair.settle()
    assert pair.hub.said() == []

    pair.fire(pair.spoke, Stall(HUB, BULK))
    assert pair.spoke.news()[-1] is PeerLost
    assert pair.spoke.links.counters["stalled"] == 1
    pair.fire(pair.spoke)
    pair.settle()
    pair.send(pair.spoke, Pull(99, 0), BULK)
    pair.settle()
    assert numbers(pair.hub.said()) == [99]


def test_a_lane_whose_bytes_still_arrive_is_not_given_up(pair):
    """A message that takes minutes costs no link: the sender hears that its bytes arrive."""
    window = WINDOW_MESSAGES[BULK]
    for t in range(window + 1):
        pair.send(pair.spoke, Pull(t, 0), BULK)
    under_way = pair.queues[SPOKE, BULK][:]
    pair.queues[SPOKE, BULK].clear()
    pair.settle()
    for nbytes in (10, 20, 30):
        pair.tell(pair.hub, BytesArrived(SPOKE, BULK, nbytes))
        pair.settle()
        pair.fire(pair.spoke, Stall(HUB, BULK))
        assert PeerLost not in pair.spoke.news()
    pair.queues[SPOKE, BULK][:] = under_way
    pair.settle()
    assert numbers(pair.hub.said()) == list(range(window + 1))
    assert "stalled" not in pair.spoke.links.counters


def test_bytes_of_no_open_lane_are_dropped(pair):
    """Those of an unknown peer, or of a link that has just been lost."""
    before = {lane: list(waiting) for lane, waiting in pair.queues.items()}
    pair.tell(pair.hub, BytesArrived("unknown_peer.1", BULK, 10))
    assert before == {lane: list(waiting) for lane, waiting in pair.queues.items()}
    assert BytesArrived not in pair.hub.news()
