"""The link machine, two of them back to back: handshake, order, credit and goodbye."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from clocks import ActorClock
from ddloco.job.protocol.messages import GlobalFragment, Pull
from transport import (
    BULK,
    CONTROL,
    LANES,
    Dial,
    Free,
    Hangup,
    LaneBroken,
    Links,
    Listen,
    Mark,
    Marker,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Redial,
    Send,
    SetTimer,
    Superseded,
    Timer,
    TimerFired,
)
from transport.flow_control import WAITING_MAX, WINDOW_MESSAGES
from transport.link_state import (
    CLAIM_S,
    REDIAL_S_MAX,
    REDIAL_S_MIN,
    RUNS_MAX,
    SUPERSEDED_UNLINKED,
    AcceptedRuns,
)
from transport.message import Bye, Credit, Hello, Refused, Welcome

AGREED = {"job": "job-1", "plan": "p1"}
HUB, SPOKE = "hub", "spoke.1"


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
def test_one_lane_is_not_enough(new_pair, lane):
    """The listening side welcomes no peer before both lanes have said Hello."""
    pair = new_pair()

    pair.deliver(pair.spoke, lane)

    assert pair.hub.heard == []
    assert [pair.queues[HUB, each] for each in LANES] == [[], []]
    pair.send(pair.hub, Pull(1, 0))
    assert pair.hub.links.counters == {"said to a peer without a link": 1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40))
def test_lanes_may_be_as_uneven_as_they_like(new_pair, picks):
    """Nothing assumes an order across lanes: a peer is heard only while it has joined."""
    pair = new_pair()
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


def test_a_message_that_overtakes_the_second_welcome_finds_a_peer_that_has_joined(new_pair):
    """One Welcome says that the other side is ready; its first request can be answered."""
    pair = new_pair()
    for lane in LANES:
        pair.deliver(pair.spoke, lane)
    pair.send(pair.hub, Pull(7, 0))

    pair.deliver(pair.hub, CONTROL, 2)
    pair.send(pair.spoke, Pull(8, 0), BULK)
    pair.settle()

    assert [PeerJoined, MessageArrived] == [type(event) for event in pair.spoke.heard]
    assert numbers(pair.hub.said()) == [8]


def test_a_lost_second_welcome_is_asked_for_again(new_pair):
    """A link with one lane dumb is given up when its timer is due, and shaken again."""
    pair = new_pair()
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
def test_who_does_not_agree_is_refused_and_told_what_differs(new_pair, theirs, reason):
    """A refusal names the first difference, is final, and leaves nothing behind."""
    pair = new_pair(theirs)
    pair.settle()

    assert pair.spoke.heard == [PeerRefused(HUB, reason)]
    assert pair.spoke.timers == {}
    assert not pair.spoke.links.knows(HUB)
    assert pair.hub.heard == []
    assert not pair.hub.links.knows(SPOKE)
    assert pair.hub.links.counters == {"refused at the handshake": 2}


def dial_anew(pair, *, settled, run="b"):
    """The listening side begins again in an empty folder, as another run; the dialling side finds
    out by itself."""
    for lane in LANES:
        pair.queues[HUB, lane].clear()
    number = int(pair.hub.links.clock.me.removeprefix("hub."))
    pair.hub = type(pair.hub)(f"hub.{number + 1}", HUB)
    pair.ask(pair.hub, Listen(AGREED, run, settled))
    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "reset"))
    pair.fire(pair.spoke)
    pair.settle()


def test_a_member_of_another_run_takes_part_until_this_one_is_settled(new_pair):
    """Before that it joins, and so may the others of its run, also later; after that it is told to
    begin again, and the next incarnation, which is of no run, is welcome."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    pair.settle()
    dial_anew(pair, settled=False)
    assert pair.spoke.news() == [PeerJoined, PeerLost, PeerJoined]
    pair.ask(pair.hub, Listen(AGREED, "b", settled=True))
    other = Hello(AGREED, "a")
    assert pair.hub.links.teaches(MessageArrived("c.1", CONTROL, "c.1", 1, 0, {"c.1": 1}, other))
    foreign = Hello(AGREED, "z")
    assert not pair.hub.links.teaches(
        MessageArrived("c.1", CONTROL, "c.1", 1, 0, {"c.1": 1}, foreign)
    )

    dial_anew(pair, settled=True, run="c")
    said = "it took part in run b, and this is run c, which has merged without it"
    refused = PeerRefused(HUB, f"{said}; started again, it takes part in this one", again=True)
    assert refused == pair.spoke.heard[-1]
    assert [] == pair.hub.heard
    pair.ask(pair.spoke, Dial(HUB, AGREED))
    pair.settle()
    assert PeerJoined(HUB, "hub.3") == pair.spoke.heard[-1]


def begin_as(pair, me):
    """The listening side is another incarnation now, and the dialling side finds out."""
    pair.queues = {key: [] for key in pair.queues}
    pair.hub = type(pair.hub)(me, HUB)
    pair.ask(pair.hub, Listen(AGREED, "a"))
    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "reset"))
    pair.fire(pair.spoke)
    pair.settle()


def test_an_incarnation_hears_that_a_later_one_was_followed(new_pair):
    """It makes no link; the one after that is followed. Each is named in the peers' clocks."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    pair.settle()
    begin_as(pair, "hub.3")
    assert [PeerJoined(SPOKE, SPOKE)] == pair.hub.heard
    begin_as(pair, "hub.2")
    assert [] == pair.hub.heard, "it waits for another one that says so"
    pair.at += CLAIM_S
    pair.fire(pair.spoke)
    pair.settle()
    assert Superseded(SPOKE, 3) == pair.hub.heard[0]
    assert PeerJoined not in pair.hub.news()
    assert 3 == pair.hub.links.clock.newest(HUB)
    assert [] == pair.spoke.links.peers()
    begin_as(pair, "hub.4")
    assert [PeerJoined(SPOKE, SPOKE)] == pair.hub.heard
    assert PeerJoined(HUB, "hub.4") == pair.spoke.heard[-1]


def test_one_peer_alone_does_not_end_an_actor(new_pair):
    """While others are linked that know of no later incarnation; it is counted. Once they are gone
    it is believed: then it may be right."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    pair.settle()
    forged = {"other.1": 1, "hub.2": 1}
    hello = MessageArrived("other.1", CONTROL, "other.1", 1, 0, forged, Hello(AGREED))
    assert not pair.hub.links.teaches(hello)
    before = len(pair.hub.heard)
    pair.tell(pair.hub, hello)
    assert before == len(pair.hub.heard)
    assert 1 == pair.hub.links.counters["one peer alone names another incarnation"]
    assert [SPOKE] == [*pair.hub.links.peers()]
    for lane in LANES:
        pair.tell(pair.hub, LaneBroken(SPOKE, lane, "reset"))
    pair.tell(pair.hub, hello)
    assert before + 1 == len(pair.hub.heard), "the loss of the link"
    pair.at += CLAIM_S
    pair.tell(pair.hub, hello)
    assert Superseded("other.1", 2) == pair.hub.heard[-1]
    assert "superseded" in pair.hub.links.counters


def test_a_claim_is_forgotten_once_somebody_else_comes(new_pair):
    """It begins again when that one is gone: links may be lost for a moment."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    forged = {"other.1": 1, "hub.2": 1}
    hello = MessageArrived("other.1", CONTROL, "other.1", 1, 0, forged, Hello(AGREED))
    pair.tell(pair.hub, hello)
    pair.settle()
    pair.at += CLAIM_S
    for lane in LANES:
        pair.tell(pair.hub, LaneBroken(SPOKE, lane, "reset"))
    pair.tell(pair.hub, hello)
    assert Superseded not in [type(each) for each in pair.hub.heard]


def test_two_peers_that_say_the_same_are_believed_at_once(new_pair):
    """As after the loss of a run folder, when all learners come from the one before."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    for name in ("one", "two"):
        forged = {f"{name}.1": 1, "hub.2": 1}
        pair.tell(
            pair.hub, MessageArrived(f"{name}.1", CONTROL, f"{name}.1", 1, 0, forged, Hello(AGREED))
        )
    assert [Superseded("two.1", 2)] == pair.hub.heard
    assert {"one peer alone names another incarnation": 1, SUPERSEDED_UNLINKED: 1} == (
        pair.hub.links.counters
    )


def test_another_one_of_the_same_number_is_noticed(new_pair):
    """Somebody else, in another folder, had this name and number: members of another run know of
    it, or an event of it is known that is yet to happen here. Members of its run are not sent away
    before that."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "b", settled=True))

    def hello(who, count, run):
        known = {who: 1, "hub.1": count}
        return MessageArrived(who, CONTROL, who, 1, 0, known, Hello(AGREED, run))

    pair.tell(pair.hub, hello(SPOKE, 0, "a"))
    assert {"refused at the handshake": 1} == pair.hub.links.counters
    assert not pair.hub.links.claims
    pair.tell(pair.hub, hello("one.1", 1, "a"))
    pair.tell(pair.hub, hello("two.1", 900, "b"))
    assert [Superseded("two.1", 1)] == pair.hub.heard
    assert 1 == pair.hub.links.counters[SUPERSEDED_UNLINKED]
    assert 1 == pair.hub.links.counters["refused at the handshake"]


def test_the_welcome_of_an_older_incarnation_is_stale(new_pair):
    """Whatever it does not know."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    pair.settle()
    begin_as(pair, "hub.3")
    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "reset"))
    pair.fire(pair.spoke)
    session, before = pair.spoke.links.links[HUB].session, len(pair.spoke.heard)
    for lane in LANES:
        welcome = MessageArrived(HUB, lane, "hub.2", session, 0, {"hub.2": 9}, Welcome("a"))
        pair.tell(pair.spoke, welcome)
    assert before == len(pair.spoke.heard)
    assert 2 == pair.spoke.links.counters["older incarnation"]


@pytest.mark.parametrize("number", [2**20 + 2, 999_999_999])
def test_a_number_that_cannot_follow_is_not_heard_of(new_pair, number):
    """It would leave none for the next; and it must not travel on, for others to believe in."""
    pair = new_pair()
    pair.ask(pair.hub, Listen(AGREED, "a"))
    for lane in LANES:
        clock = {SPOKE: 1, f"hub.{number}": 1}
        pair.tell(pair.hub, MessageArrived(SPOKE, lane, SPOKE, 1, 0, clock, Hello(AGREED)))
    assert [PeerJoined(SPOKE, SPOKE)] == pair.hub.heard
    clock = {SPOKE: 2, "hub.2": 1}
    pair.tell(pair.hub, MessageArrived(SPOKE, CONTROL, SPOKE, 1, 1, clock, Bye("it ends")))
    assert 0 == pair.hub.links.clock.newest(HUB)


def test_members_of_few_other_runs_take_part():
    """The limit is named; without a run of its own it refuses no peer for theirs."""
    here = AcceptedRuns("own")
    for number in range(RUNS_MAX):
        assert here.objection(f"run {number}") is None
        here.join(f"run {number}")
    assert here.objection("one more") is not None
    assert here.objection("run 0") is here.objection("own") is here.objection("") is None
    assert AcceptedRuns(settled=True).objection("any") is None


def test_who_listens_late_is_reached_by_the_next_dial(new_pair):
    """Hello to a side that does not listen yet is repeated, and then works."""
    pair = new_pair()
    pair.hub.links = Links(ActorClock("hub.1"), pair.hub.handles)
    pair.settle()
    assert pair.spoke.heard == []

    pair.ask(pair.hub, Listen(AGREED))
    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.news() == pair.hub.news() == [PeerJoined]


@pytest.mark.parametrize("lane", LANES)
def test_a_lost_hello_is_repeated(new_pair, lane):
    """A handshake that lost one half is done again as a whole."""
    pair = new_pair()
    pair.lose(pair.spoke, lane)
    pair.settle()

    pair.fire(pair.spoke)
    pair.settle()

    assert pair.spoke.news() == pair.hub.news() == [PeerJoined]


def test_dialling_slows_down_and_never_stops(new_pair):
    """Waits double from half a second to eight, and stay there for hours."""
    pair = new_pair()
    waits = []
    for _ in range(1200):
        waits.append(pair.spoke.timers[Redial(HUB)] - pair.at)
        pair.fire(pair.spoke)
        pair.queues = {key: [] for key in pair.queues}

    assert waits[:7] == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert set(waits[4:]) == {REDIAL_S_MAX}


def test_success_makes_the_next_dial_soon_again(new_pair):
    """The waits start from the beginning once a link was up."""
    pair = new_pair()
    for _ in range(5):
        pair.fire(pair.spoke)
    pair.settle()

    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "cut"))

    assert pair.spoke.timers == {Redial(HUB): pair.at + REDIAL_S_MIN}


# Order, clocks, credit.


def test_messages_arrive_in_the_order_of_their_lane(pair):
    """What is said in one lane is heard in that order, numbered without holes."""
    for number in range(20):
        pair.send(pair.spoke, Pull(number, 0))
        pair.send(pair.hub, Pull(number, 1), BULK)
    pair.settle()

    assert numbers(pair.hub.said()) == list(range(20))
    assert numbers(pair.spoke.said()) == list(range(20))
    heard = [event.seq for event in pair.hub.heard[1:] if isinstance(event, MessageArrived)]
    assert list(range(1, 21)) == heard


def test_clocks_travel_as_deltas_that_teach_everything(pair):
    """After every message its receiver knows what its sender knew; later deltas are short."""
    pair.tick(pair.hub, {"third.1": 5})
    pair.send(pair.hub, Pull(1, 0))
    [first] = pair.queues[HUB, CONTROL]
    pair.settle()
    pair.send(pair.hub, Pull(2, 0))
    [second] = pair.queues[HUB, CONTROL]
    knew = pair.hub.links.clock.frozen()
    pair.settle()

    assert first.clock["third.1"] == 5
    assert set(second.clock) == {"hub.1"}
    assert knew < pair.spoke.links.clock.frozen()


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
    assert [e.body for e in pair.queues[HUB, CONTROL]] == [Credit(lane, 3 * window // 4)]
    pair.settle()
    assert numbers(pair.hub.said()) == list(range(total))


@pytest.mark.parametrize("lane", LANES)
def test_credit_for_half_a_window_leaves_with_what_is_said_next(pair, lane):
    """Not before, so that many who have answered are told all at once; and only once."""
    half = WINDOW_MESSAGES[lane] // 2
    for number in range(half):
        pair.send(pair.spoke, Pull(number, 0), lane)
    pair.deliver(pair.spoke, lane, half)
    assert pair.queues[HUB, CONTROL] == []

    pair.send(pair.hub, Pull(0, 0))
    pair.send(pair.hub, Pull(1, 0))

    assert [e.body for e in pair.queues[HUB, CONTROL]] == [
        Credit(lane, half),
        Pull(0, 0),
        Pull(1, 0),
    ]


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


def test_what_is_sent_to_no_peer_is_counted_and_holds_nothing(new_pair):
    """Without a link nothing is sent, nothing waits, no array is held."""
    side = new_pair().hub

    heard, effects = side.links.perform(0.0, Send("nobody", BULK, Pull(1, 0), "array"))

    assert (heard, effects) == ([], [])
    assert side.links.counters == {"said to a peer without a link": 1}
    assert len(side.handles) == 0


# Leaving.


@pytest.mark.parametrize("who", [SPOKE, HUB])
def test_who_hangs_up_says_goodbye(pair, who):
    """The other side hears the reason; if it had dialled, it dials again a little later."""
    side = pair.spoke if who == SPOKE else pair.hub

    pair.ask(side, Hangup(pair.other(side).name, "done"))
    pair.settle()

    assert pair.other(side).heard[-1] == PeerLost(side.name, "done")
    assert side.news() == [PeerJoined]
    for each in (pair.spoke, pair.hub):
        assert each.links.peers() == []
        redials = who == HUB and each is pair.spoke
        assert redials == each.links.knows(pair.other(each).name)
        assert redials == bool(each.timers)


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


def test_a_final_goodbye_is_the_last(pair):
    """The dialling side is refused, and never dials again; without a refusal it would."""
    pair.send(pair.spoke, Pull(1, 0), payload="p/1")
    pair.ask(pair.hub, Hangup(SPOKE, "your place is taken", final=True))
    pair.settle()

    assert pair.spoke.heard[-1] == PeerRefused(HUB, "your place is taken")
    assert (pair.hub.news(), pair.spoke.timers) == ([PeerJoined], {})
    assert not pair.spoke.links.knows(HUB)
    assert not pair.hub.links.knows(SPOKE)


def test_a_final_goodbye_costs_no_credit_either(pair):
    """A peer that takes nothing in is refused all the same, and what waits for it is given up."""
    for number in range(WINDOW_MESSAGES[CONTROL] + 5):
        pair.send(pair.hub, Pull(number, 0), payload=f"p/{number}")

    pair.ask(pair.hub, Hangup(SPOKE, "your place is taken", final=True))

    assert pair.queues[HUB, CONTROL][-1].body == Refused("your place is taken")
    assert len(pair.hub.handles) == 0
    pair.settle()
    assert pair.spoke.heard[-1] == PeerRefused(HUB, "your place is taken")


def test_a_refusal_of_an_old_session_is_stale(pair):
    """A final goodbye that comes after new hands were shaken is not for the new link."""
    pair.ask(pair.hub, Hangup(SPOKE, "your place is taken", final=True))
    late = pair.lose(pair.hub, CONTROL)
    pair.tell(pair.spoke, LaneBroken(HUB, BULK, "cut"))
    pair.fire(pair.spoke)
    pair.settle()
    pair.tell(pair.spoke, late)

    assert pair.spoke.news() == [PeerJoined, PeerLost, PeerJoined]
    assert pair.spoke.links.peers() == [HUB]


def test_what_waits_in_a_lane_can_be_asked(pair):
    """So many messages wait, and whether there is credit for one more."""
    assert pair.hub.links.waiting(SPOKE, BULK) == (0, True)
    for number in range(WINDOW_MESSAGES[BULK] + 2):
        pair.send(pair.hub, Pull(number, 0), BULK)
    assert pair.hub.links.waiting(SPOKE, BULK) == (2, False)
    assert pair.hub.links.waiting(SPOKE, CONTROL) == (0, True)
    pair.settle()
    assert pair.hub.links.waiting(SPOKE, BULK) == (0, True)


def test_hanging_up_before_the_link_is_up_stops_dialling(new_pair):
    """A link that never came up is forgotten with its timer."""
    pair = new_pair()

    pair.ask(pair.spoke, Hangup(HUB, "never mind"))
    pair.ask(pair.spoke, Hangup(HUB, "again"))
    pair.settle()

    assert pair.spoke.timers == {}
    assert pair.spoke.heard == []


def test_a_redial_that_is_due_after_all_is_over_does_nothing(pair):
    """A timer that fires late finds the link up, or gone, and leaves it so."""
    pair.tell(pair.spoke, TimerFired(Redial(HUB)))
    pair.tell(pair.spoke, TimerFired(Redial("unknown_peer")))

    assert pair.queues == {key: [] for key in pair.queues}
    assert pair.spoke.news() == [PeerJoined]


class Tea(Timer, frozen=True):
    """A timer of a machine."""


def test_what_does_not_concern_links_passes_by(pair):
    """Other timers and other effects are the machine's and the world's."""
    grace = Tea()
    pair.tell(pair.spoke, TimerFired(grace))

    assert pair.spoke.heard[-1] == TimerFired(grace)
    assert pair.spoke.links.perform(0.0, SetTimer(grace, 1.0)) is None
    assert pair.spoke.links.perform(0.0, Free("x")) is None


# Markers.


def test_a_marker_goes_ahead_of_what_waits(pair):
    """In both lanes, without credit; what waits leaves behind it."""
    window = WINDOW_MESSAGES[BULK]
    for t in range(window + 2):
        pair.send(pair.hub, GlobalFragment(0, t), BULK)
    before = len(pair.queues[HUB, BULK])
    pair.ask(pair.hub, Mark(SPOKE, "hub.1:9"))
    assert before == window
    assert [Marker("hub.1:9")] == [said.body for said in pair.queues[HUB, BULK][window:]]
    assert [Marker("hub.1:9")] == [said.body for said in pair.queues[HUB, CONTROL]]
    assert (2, False) == pair.hub.links.waiting(SPOKE, BULK)
    pair.settle()
    bulk = [e.body for e in pair.spoke.heard if isinstance(e, MessageArrived) and e.lane == BULK]
    assert Marker("hub.1:9") == bulk[window]
    assert [*range(window), window, window + 1] == [
        body.version for body in bulk if isinstance(body, GlobalFragment)
    ]


def test_a_marker_is_no_message_that_costs_credit(pair):
    """Neither side counts it."""
    outbox = pair.hub.links.links[SPOKE].lanes[BULK].outbox
    for number in range(9):
        pair.ask(pair.hub, Mark(SPOKE, f"hub.1:{number}"))
    pair.settle()
    assert (0, 0) == (outbox.sent, outbox.taken)
    assert 0 == pair.spoke.links.links[HUB].lanes[BULK].taken
    assert 18 == pair.spoke.said().count(Marker("hub.1:0")) * 9


def test_without_a_link_there_is_no_marker(new_pair):
    """To an unknown peer, or to one that has not joined yet."""
    pair = new_pair()
    waiting = {key: list(said) for key, said in pair.queues.items()}
    pair.ask(pair.spoke, Mark(HUB, "hub.1:9"))
    pair.ask(pair.hub, Mark("nobody", "hub.1:9"))
    assert waiting == {key: list(said) for key, said in pair.queues.items()}


def test_what_an_open_lane_carries(pair):
    """Messages of the current session; none of a handshake, of another session, or of an unknown
    peer."""
    links = pair.hub.links
    session = links.links[SPOKE].session
    event = MessageArrived(SPOKE, BULK, SPOKE, session, 1, {}, Pull(1, 0))
    assert links.carries(event)
    assert SPOKE == links.incarnation(SPOKE)
    assert "" == links.incarnation("nobody")
    assert not links.carries(replace(event, session=session + 1))
    assert not links.carries(replace(event, body=Refused("x")))
    assert not links.carries(replace(event, peer="nobody"))


def test_who_dials_under_another_name_than_its_own_is_not_heard(new_pair):
    """Its connection says who it is; and no peer has the name of the listener."""
    for peer, sender in [(SPOKE, "spoke.2"), (SPOKE, "other.1"), ("hub.2", "hub.2")]:
        pair = new_pair()
        for lane in LANES:
            hello = pair.queues[SPOKE, lane][0]
            said = replace(hello, peer=peer, sender=sender, clock={sender: 9})
            assert not pair.hub.links.teaches(said)
            pair.tell(pair.hub, said)
        assert ([], []) == (pair.hub.heard, pair.hub.links.peers())
        assert {"false name": 2} == pair.hub.links.counters


def test_another_incarnation_does_not_speak_in_a_session(pair):
    """A session belongs to the peer that opened it: a message of another peer in it ends it."""
    pair.send(pair.hub, Pull(1, 0))
    said = replace(pair.queues[HUB, CONTROL].pop(0), sender="hub.2", clock={"hub.2": 5})
    assert not pair.spoke.links.teaches(said)
    pair.tell(pair.spoke, said)
    assert [PeerJoined, PeerLost] == pair.spoke.news()
    assert "hub.2 speaks in the session of hub.1" in pair.spoke.heard[-1].reason


def test_credit_for_more_than_was_sent_breaks_the_link(pair):
    """A peer cannot have taken in what was never said, and is not sent without bound for it."""
    pair.send(pair.spoke, Pull(1, 0))
    pair.settle()
    pair.ask(pair.spoke, Mark(HUB, "spoke.1:1"))
    marker = pair.queues[SPOKE, CONTROL].pop(0)
    pair.tell(pair.hub, replace(marker, body=Credit(CONTROL, 2**62)))
    assert [PeerJoined, PeerLost] == pair.hub.news()
    assert "more than sent" in pair.hub.heard[-1].reason
