"""The actor: every event one tick, arrays counted in order, clocks believed only where true."""

from typing import ClassVar

import pytest

from ddloco.job.protocol.messages import JobBody, Pull
from ddloco.job.protocol.timers import DonorDeadline, JobTimer, LaunchDue, PullDeadline
from ddloco.job.protocol.work import Asked
from ddloco.stage.actors.actor import ActorStates, new_actor
from ddloco.stage.actors.effects import CaptureState, Observe
from ddloco.stage.actors.events import Restored, SnapshotRequested, SnapshotSettled, StopRequested
from ddloco.stage.actors.messages import ActorBody
from ddloco.stage.actors.timers import MarkerDeadline, Named, PartDeadline, SnapshotTimer
from tests.ddloco.stage.actors.wired_actors import HEARD
from transport import (
    BULK,
    CONTROL,
    LANES,
    Drop,
    Free,
    Keep,
    Listen,
    Marker,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Retire,
    Send,
    SetTimer,
    TimerFired,
    Transmit,
)
from transport.message import Hello, Refused, Reset, Welcome

ME, PEER, OTHER = "hub.1", "spoke.1", "other.1"


class Script:
    """A machine that answers each kind of event with fixed effects, and writes down what it hears.

    ``effects`` is looked up by the event's type. It is the class's, and no part of the state.
    """

    effects: ClassVar[dict] = {}
    heard: list[HEARD]

    def __init__(self, effects):
        self.heard = []
        Script.effects = effects

    def handle(self, at, event):
        self.heard.append(event)
        return list(self.effects.get(type(event), []))


def arrived(seq, body, lane=CONTROL, *, clock=None, handle="", peer=PEER):
    return MessageArrived(peer, lane, peer, 1, seq, clock or {peer: seq + 1}, body, b"", handle)


def joined(effects=None, peers=(PEER,)):
    """Give an actor whose peers have joined; mostly one."""
    actor = new_actor(ME, Script({TimerFired: [Listen({})]}))
    actor.handle(0.0, TimerFired(Named("start")))
    for peer in peers:
        for lane in LANES:
            actor.handle(0.0, arrived(0, Hello({}), lane, peer=peer))
    actor.machine.heard.clear()
    Script.effects = effects or {}
    return actor


def test_every_event_is_one_tick():
    """An event's number is the actor's own entry, whatever the event is."""
    actor = joined()
    start = actor.number

    for index, event in enumerate(
        [TimerFired(Named("x")), StopRequested("y"), arrived(9, Pull(1, 0))]
    ):
        actor.handle(0.0, event)
        assert actor.number == actor.clock[ME] == start + index + 1


def test_who_goes_on_in_another_run_leaves_what_was_written_of_snapshots():
    """Its arrays are held no longer, its timers are forgotten, its machine hears that nothing will
    come of what it began; who has not come along is lost; markers of then are old news."""
    peers = ("learner-0.1", "learner-1.1")
    actor = joined(peers=peers)
    actor.handles.hold("theta/0/0")
    actor.handle(1.0, SnapshotRequested())
    (snapshot,) = actor.snapshots.began()
    assert ["theta/0/0"] == actor.snapshots.holding()
    assert {MarkerDeadline(snapshot), PartDeadline(snapshot)} <= {
        timer for timer, _ in actor.timers
    }

    actor.machine.heard.clear()
    effects = actor.handle(1.0, Restored("syncer.1-9", (peers[1],)))

    heard = [type(fact) for fact in actor.machine.heard]
    assert [Restored, SnapshotSettled, PeerLost] == heard, "why it is so comes first"
    assert ([], []) == (actor.snapshots.holding(), actor.snapshots.began())
    assert not [each for each, _ in actor.timers if isinstance(each, SnapshotTimer)]
    assert (peers[0],) == actor.snapshots.peers()
    assert not [each for each in effects if isinstance(each, Free)], "the machine still has it"
    again = actor.handle(2.0, arrived(1, Marker(snapshot), peer=peers[0]))
    assert not [each for each in again if isinstance(each, CaptureState)]


def test_a_state_that_is_no_plain_data_is_no_part_of_a_snapshot():
    """The actor continues, holds nothing for it, and says why."""
    actor = joined()
    actor.machine.key = lambda: 0
    actor.handles.hold("theta/0/0")
    effects = actor.handle(1.0, SnapshotRequested())
    (failed,) = [e for e in effects if isinstance(e, Observe) and e.event == "snapshot part failed"]
    assert "Script.key" in failed.fields["reason"]
    assert not [each for each in effects if isinstance(each, CaptureState)]
    assert [] == actor.snapshots.holding()


def test_what_is_witnessed_is_not_counted_again():
    """The door lets the clock take in an event before it is handled, and writes what it learned."""
    actor = joined()
    event, before = arrived(1, Pull(1, 0), clock={PEER: 7, "third.1": 3}), actor.clock.frozen()

    learned = actor.witness(event)

    expected = before.merge({PEER: 7, "third.1": 3}).tick(ME)
    assert learned == {PEER: 7, "third.1": 3}
    assert actor.clock.frozen() == expected
    actor.handle(0.0, event)
    assert actor.learned == learned
    assert actor.clock.frozen() == expected


def test_what_no_clock_has_is_counted_when_it_is_handled():
    """In a replay ``witness`` is not called before; also when the very same event comes twice."""
    actor = joined()
    event, before = arrived(1, Pull(1, 0), clock={PEER: 7}), actor.number

    actor.handle(0.0, event)
    assert (actor.number, actor.learned) == (before + 1, {PEER: 7})
    actor.handle(0.0, event)
    assert (actor.number, actor.learned) == (before + 2, {})


def test_a_retired_actor_leaves_the_clock():
    """Incarnations below the floor are forgotten, older ones too; others and oneself stay."""
    actor = joined()
    known = {PEER: 2, "third.1": 3, "third.2": 4, "third.3": 1, "other.1": 5}
    actor.handle(0.0, arrived(1, Pull(1, 0), clock=known))

    actor.machine.effects = {StopRequested: [Retire({"third": 3, "hub": 9, "nobody": 2})]}
    assert actor.handle(0.0, StopRequested("x")) == []

    assert actor.clock.wire() == {ME: actor.number, "other.1": 5, PEER: 2, "third.3": 1}


def test_an_old_message_does_not_bring_the_retired_back():
    """What was sent before its sender knew names them still; it teaches nothing of them."""
    actor = joined({StopRequested: [Retire({"third": 2})], TimerFired: [Retire({"third": 1})]})
    actor.handle(0.0, arrived(1, Pull(1, 0), clock={PEER: 2, "third.1": 3}))
    actor.handle(0.0, StopRequested("x"))
    actor.handle(0.0, TimerFired(Named("a lower floor later changes nothing")))

    actor.handle(0.0, arrived(2, Pull(2, 0), clock={PEER: 3, "third.1": 9, "third.2": 1}))

    assert actor.learned == {PEER: 3, "third.2": 1}
    assert "third.1" not in actor.clock.wire()
    assert [type(event) for event in actor.machine.heard[-1:]] == [MessageArrived]


def test_no_peer_is_told_of_retired_actors():
    """A clock that leaves after the retirement has no entry of them."""
    said = [Send(PEER, CONTROL, Pull(2, 0))]
    actor = joined({StopRequested: [Retire({"third": 2}), *said]})
    actor.handle(0.0, arrived(1, Pull(1, 0), clock={PEER: 2, "third.1": 3, "other.1": 1}))

    [sent] = actor.handle(0.0, StopRequested("x"))

    assert set(sent.clock) <= {ME, PEER, "other.1"}


@pytest.mark.parametrize("ahead", [0, 1, 10**6, 2**63 - 2])
def test_no_peer_moves_an_actors_own_count(ahead):
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
    """A message that is sent while an event is handled knows that event; no peer gets its own
    entries."""
    both = [Send(PEER, CONTROL, Pull(2, 0)), Send(OTHER, CONTROL, Pull(2, 0))]
    actor = joined({MessageArrived: both}, [PEER, OTHER])

    back, on = actor.handle(0.0, arrived(1, Pull(1, 0), clock={PEER: 2, "third.1": 3}))

    assert isinstance(back, Transmit)
    assert back.clock == {ME: actor.number, OTHER: 1}
    assert on.clock == {ME: actor.number, PEER: 2, "third.1": 3}


def test_an_array_that_came_is_freed_at_the_end_unless_it_is_kept():
    """Arrays live through the event that brought them, and longer only if a reference is held."""
    actor = joined()
    assert actor.handle(0.0, arrived(1, Pull(1, 0), handle="in/1")) == [Free("in/1")]

    actor.machine.effects[MessageArrived] = [Keep("in/2")]
    assert actor.handle(0.0, arrived(2, Pull(1, 0), handle="in/2")) == []

    actor.machine.effects = {TimerFired: [Drop("in/2")]}
    assert actor.handle(0.0, TimerFired(Named("x"))) == [Free("in/2")]
    assert len(actor.handles) == 0


def test_an_array_that_came_in_vain_is_freed():
    """The array of a duplicate, or of an unknown peer's message, is released."""
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
    wanted = [SetTimer(Named("a"), 1.0), SetTimer(Named("b"), 2.0)]
    actor = joined({StopRequested: wanted})

    assert actor.handle(0.0, StopRequested("x")) == wanted


def test_timers_are_in_the_state_in_the_order_of_setting():
    """So they expire in one order, whether or not an actor continues from a snapshot; one that is
    set again is the last."""
    launch, pull, donor = LaunchDue(), PullDeadline(4), DonorDeadline("learner-0.1")
    actor = joined({StopRequested: [SetTimer(each, 2.0) for each in (pull, launch, donor, pull)]})
    actor.handle(0.0, StopRequested("x"))
    wanted = [(launch, 2.0), (donor, 2.0), (pull, 2.0)]
    states = ActorStates(Script({}), JobBody | ActorBody, Asked, JobTimer)
    assert wanted == actor.timers == states.read(actor.write()).timers
    actor.handle(2.0, TimerFired(donor))
    assert [wanted[0], wanted[2]] == actor.timers


def test_news_of_links_reaches_the_machine():
    """A join is heard in the very event that completes the handshake."""
    actor = new_actor(ME, Script({TimerFired: [Listen({})]}))
    actor.handle(0.0, TimerFired(Named("start")))
    for lane in LANES:
        actor.handle(0.0, arrived(0, Hello({}), lane))

    assert actor.machine.heard == [TimerFired(Named("start")), PeerJoined(PEER, PEER)]


AGREED = {"job": "job-1"}
FOREIGN = {f"learner-{n}.1": 7 for n in range(500)}


def greeted(*arrivals):
    """Give an actor that listens, and that some messages have come to."""
    actor = new_actor(ME, Script({TimerFired: [Listen(AGREED)]}))
    actor.handle(0.0, TimerFired(Named("start")))
    actor.machine.effects = {}
    for each in arrivals:
        actor.handle(0.0, each)
    return actor


@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(arrived(0, Hello({"job": "job-2"}), clock={PEER: 9, **FOREIGN}), id="job"),
        pytest.param(arrived(3, Hello(AGREED), clock={PEER: 9, **FOREIGN}), id="number"),
        pytest.param(arrived(0, Pull(1, 0), clock={PEER: 9, **FOREIGN}), id="no session"),
        pytest.param(arrived(0, Reset("x"), clock={PEER: 9, **FOREIGN}), id="out of band"),
        pytest.param(arrived(0, Refused("x"), clock={PEER: 9, **FOREIGN}), id="refusal"),
        pytest.param(arrived(0, Welcome(), clock={PEER: 9, **FOREIGN}), id="welcome"),
    ],
)
def test_a_clock_learns_nothing_before_the_handshake_is_judged(strange):
    """A message of an unknown peer, or of another job, adds nothing to the clock."""
    actor = greeted()
    assert {} == actor.witness(strange)
    actor.handle(0.0, strange)
    assert {ME: actor.number} == actor.clock.wire()


def test_a_clock_learns_what_opens_a_lane_and_what_follows_in_it():
    """Both Hellos of an agreed session teach, and what is next in its lanes; nothing else does."""
    actor = greeted(
        arrived(0, Hello(AGREED), clock={PEER: 2, OTHER: 4}),
        arrived(0, Hello(AGREED), BULK, clock={PEER: 3, OTHER: 5}),
        arrived(1, Pull(1, 0), clock={PEER: 6, OTHER: 7}),
    )
    assert {ME: actor.number, PEER: 6, OTHER: 7} == actor.clock.wire()
    ahead = {PEER: 9, ME: actor.number + 5, OTHER: 9}
    for unbelieved in (
        arrived(1, Pull(1, 0), clock={PEER: 9, OTHER: 9}),
        arrived(2, Pull(1, 0), clock=ahead),
        arrived(2, Pull(1, 0), clock={PEER: 9, OTHER: 9}),
    ):
        actor.handle(0.0, unbelieved)
    assert {ME: actor.number, PEER: 6, OTHER: 7} == actor.clock.wire(), (
        "a duplicate, one that knows what has not happened, and what follows a broken link"
    )
