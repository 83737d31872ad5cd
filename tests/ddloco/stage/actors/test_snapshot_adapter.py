"""An actor's part in snapshots, among a few who are wired in memory."""

import pytest
from msgspec.structs import replace

from ddloco.job.protocol.messages import GlobalFragment, Pull
from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot, TakeSnapshot
from ddloco.stage.actors.events import SnapshotRequested, SnapshotSettled, StopRequested
from ddloco.stage.actors.messages import SnapshotPart
from ddloco.stage.actors.observations import BEGUN, DISCARDED, TAKEN
from ddloco.stage.actors.snapshot_adapter import BEGUN_AT_ONCE
from ddloco.stage.actors.timers import MarkerDeadline, PartDeadline
from snapshot import GATHERING_S, Part
from snapshot.participant import PATIENCE_S, REFUSED
from tests.ddloco.stage.actors.wired_actors import ANNA, BERT, HUB, STATES, WiredActors
from transport import (
    BULK,
    CONTROL,
    LANES,
    Dial,
    Hangup,
    LaneBroken,
    Marker,
    PeerJoined,
    Send,
    TimerFired,
)
from transport.flow_control import WINDOW_MESSAGES


@pytest.fixture
def wired():
    """A hub and one who has joined it."""
    return WiredActors(ANNA)


def test_the_cut_is_at_the_end_of_its_event(wired):
    """What is said with the event goes ahead of the marker, in a state that knows of both."""
    wired.ask(HUB, TakeSnapshot(), Send(ANNA, CONTROL, Pull(1, 0)))

    number = wired.actors[HUB].number
    name = f"{HUB}:{number}"
    assert [Pull(1, 0), Marker(name)] == wired.bodies(HUB, ANNA, CONTROL)
    assert [Marker(name)] == wired.bodies(HUB, ANNA, BULK)
    work = wired.work(CaptureState, HUB)
    frozen = STATES.read(work.state)
    assert (name, number) == (work.snapshot, frozen.number)
    assert StopRequested("now") == frozen.machine.heard[-1]
    assert frozen.links.incarnation(ANNA) == ANNA
    assert work.state == frozen.write()
    assert [{"snapshot": name}] == wired.of(BEGUN)


def test_timers_say_when_to_wait_no_longer(wired):
    """Every actor waits for markers; the actor that began the snapshot also waits for parts."""
    wired.ask(HUB, TakeSnapshot())
    wired.deliver(HUB, ANNA, BULK)
    name = wired.work(CaptureState, HUB).snapshot
    assert (
        1.0 + PATIENCE_S
        == wired.timers[HUB, MarkerDeadline(name)]
        == wired.timers[ANNA, MarkerDeadline(name)]
    )
    assert 1.0 + PATIENCE_S + GATHERING_S == wired.timers[HUB, PartDeadline(name)]
    assert (ANNA, PartDeadline(name)) not in wired.timers


def test_what_waits_for_credit_belongs_to_the_state(wired):
    """The marker goes ahead of it; when there is credit it leaves behind the marker."""
    window = WINDOW_MESSAGES[BULK]
    fragments = [GlobalFragment(p, 1) for p in range(window + 1)]
    wired.ask(HUB, *(Send(ANNA, BULK, each) for each in fragments))
    wired.ask(HUB, TakeSnapshot())

    frozen = STATES.read(wired.work(CaptureState, HUB).state)
    assert (1, False) == frozen.links.waiting(ANNA, BULK)
    name = wired.work(CaptureState, HUB).snapshot
    assert [*fragments[:window], Marker(name)] == wired.bodies(HUB, ANNA, BULK)
    wired.run()
    heard = [each.body for each in wired.actors[ANNA].machine.heard[-window - 1 :]]
    assert fragments == heard
    *flight, marker = STATES.read_flight(wired.work(CaptureFlight, ANNA).messages)
    assert fragments[:window] == [each.body for each in flight]
    assert isinstance(marker.body, Marker), "it has a number in its lane, like all that came"


def said(work):
    """What was in flight, but for the markers that end it."""
    return [each for each in STATES.read_flight(work.messages) if not isinstance(each.body, Marker)]


@pytest.mark.parametrize("failed", ["", "the disk is full"])
def test_what_was_in_flight_is_kept_until_it_is_written(wired, failed):
    """Its array is held, though the machine lets it go; given back, also when it is not written."""
    wired.ask(ANNA, Send("hub", BULK, GlobalFragment(0, 1), payload="mine"))
    wired.ask(HUB, TakeSnapshot())
    wired.deliver(ANNA, HUB, BULK)
    arrived = wired.actors[HUB].machine.heard[-1]
    assert [] == wired.freed
    wired.run()

    work = wired.work(CaptureFlight, HUB)
    assert [arrived] == said(work)
    assert (arrived.handle,) == work.handles
    assert [arrived.handle] == wired.actors[HUB].snapshots.holding()
    wired.do(CaptureFlight, failed)
    assert [(HUB, arrived.handle)] == wired.freed
    wired.do(CaptureState)
    wired.finish()
    assert [] == wired.actors[HUB].snapshots.holding()
    if failed:
        (seen,) = wired.of(DISCARDED)
        assert failed in seen["reason"]
        assert failed == wired.of("snapshot part failed")[0]["reason"]
    else:
        assert [HUB, ANNA] == sorted(wired.of(TAKEN)[0]["parts"], reverse=True)


def test_what_comes_behind_the_marker_was_not_in_flight(wired):
    """It is after the cut."""
    wired.ask(HUB, TakeSnapshot())
    wired.deliver(HUB, ANNA, CONTROL)
    wired.ask(ANNA, Send("hub", BULK, GlobalFragment(0, 1), payload="mine"))
    wired.run()
    assert [] == said(wired.work(CaptureFlight, HUB))
    assert 1 == len(wired.freed)


def test_what_is_in_flight_when_the_state_cannot_be_written_is_let_go(wired):
    """Its cut is not complete yet; nothing is written of it."""
    wired.ask(ANNA, Send("hub", BULK, GlobalFragment(0, 1), payload="mine"))
    wired.ask(HUB, TakeSnapshot())
    wired.deliver(ANNA, HUB, BULK)
    wired.do(CaptureState, "the disk is full")
    assert 1 == len(wired.freed)
    assert [] == wired.actors[HUB].snapshots.holding()


def test_arrays_that_are_held_stay_until_they_are_written(wired):
    """What the machine drops meanwhile is freed when the capture is done."""
    actor = wired.actors[HUB]
    actor.handles.hold("theta/0/1")
    wired.ask(HUB, TakeSnapshot())
    assert ("theta/0/1",) == wired.work(CaptureState, HUB).handles
    assert [] == actor.handles.release("theta/0/1")
    wired.do(CaptureState)
    assert [(HUB, "theta/0/1")] == wired.freed


def test_a_machine_hears_what_became_of_what_it_took(wired):
    """Once the manifest stands; or why there is none."""
    wired.ask(HUB, TakeSnapshot())
    name = wired.work(CaptureState, HUB).snapshot
    wired.finish()
    assert SnapshotSettled(name) == wired.actors[HUB].machine.heard[-1]
    assert [{"snapshot": name, "parts": [ANNA, HUB]}] == wired.of(TAKEN)

    wired.tell(HUB, SnapshotRequested())
    assert SnapshotRequested() == wired.actors[HUB].machine.heard[-1]
    name = wired.work(CaptureState, HUB).snapshot
    for _ in range(3):
        wired.run()
        wired.do(CaptureState)
        wired.do(CaptureFlight)
    assert ["anna.1 CaptureFlight", "anna.1 CaptureState"] == sorted(
        content for part in wired.work(CommitSnapshot, HUB).parts[:1] for content in part.contents
    )
    wired.do(CommitSnapshot, "the place is full")
    assert SnapshotSettled(name, "the place is full") == wired.actors[HUB].machine.heard[-1]
    assert [{"snapshot": name, "reason": "the place is full"}] == wired.of(DISCARDED)


def test_one_too_many_is_refused_by_name(wired):
    """The machine hears it at once, and nothing else happens."""
    for _ in range(4):
        wired.ask(HUB, TakeSnapshot())
    before = len(wired.works)
    wired.ask(HUB, TakeSnapshot())
    assert REFUSED == wired.actors[HUB].machine.heard[-1].failed
    assert [REFUSED] == [each["reason"] for each in wired.of(DISCARDED)]
    assert before == len(wired.works) == 4
    wired.finish()
    assert 4 == len(wired.of(TAKEN))


def test_a_peer_that_is_lost_is_waited_for_no_longer(wired):
    """It is absent, and why."""
    wired.ask(HUB, TakeSnapshot())
    wired.tell(HUB, LaneBroken(ANNA, BULK, "it is gone"))
    wired.do()
    wired.do()
    (seen,) = wired.of(TAKEN)
    assert [HUB] == seen["parts"]
    assert "it is gone" in seen["absent"][ANNA]


def test_who_is_hung_up_with_the_event_of_the_cut_is_told_nothing(wired):
    """There is no way for its marker any more; it is absent."""
    wired.ask(HUB, TakeSnapshot(), Hangup(ANNA, "enough"))
    assert Marker not in {type(body) for lane in LANES for body in wired.bodies(HUB, ANNA, lane)}
    wired.do()
    wired.do()
    assert {ANNA: "enough"} == wired.of(TAKEN)[0]["absent"]


def test_who_joins_in_the_middle_hears_of_the_cut_first(wired):
    """Before anything else that is said over the new link; its part is none of this snapshot."""
    wired.ask(HUB, TakeSnapshot())
    name = wired.work(CaptureState, HUB).snapshot
    wired.add(BERT, Dial("hub", {}))
    for lane in LANES:
        wired.deliver(BERT, HUB, lane)
    assert isinstance(wired.actors[HUB].machine.heard[-1], PeerJoined)
    for lane in LANES:
        assert Marker(name) == wired.bodies(HUB, BERT, lane)[1]
    wired.finish()
    (seen,) = wired.of(TAKEN)
    assert [ANNA, HUB] == seen["parts"]


def test_a_part_whose_route_is_gone_is_not_sent(wired):
    """The actor that began the snapshot waits until its timer, then commits without the part."""
    wired.ask(HUB, TakeSnapshot())
    for lane in LANES:
        wired.deliver(HUB, ANNA, lane)
    wired.tell(ANNA, LaneBroken("hub", CONTROL, "it is gone"))
    said = wired.bodies(ANNA, HUB, CONTROL)
    wired.do()
    later = wired.bodies(ANNA, HUB, CONTROL)[len(said) :]
    assert SnapshotPart not in {type(body) for body in later}


def test_markers_that_do_not_come_are_waited_for_so_long(wired):
    """Then for no longer; the same with parts."""
    wired.ask(HUB, TakeSnapshot())
    name = wired.work(CaptureState, HUB).snapshot
    wired.tell(HUB, TimerFired(MarkerDeadline(name)), 70.0)
    wired.do()
    assert [] == wired.of(TAKEN)
    wired.tell(HUB, TimerFired(PartDeadline(name)), 300.0)
    wired.do()
    (seen,) = wired.of(TAKEN)
    assert [ANNA] == list(seen["absent"])
    assert TimerFired not in {type(event) for event in wired.actors[HUB].machine.heard}


def test_an_actor_that_learns_of_a_snapshot_passes_it_on():
    """Three in a row: the far one's part comes by way of the hub."""
    wired = WiredActors(ANNA, BERT)
    wired.tell(ANNA, SnapshotRequested())
    wired.finish()
    (seen,) = wired.of(TAKEN)
    assert [ANNA, BERT, HUB] == seen["parts"]
    assert "absent" not in seen
    snapshot = seen["snapshot"]
    assert snapshot.startswith(ANNA)
    assert [SnapshotSettled(snapshot)] == [
        each for each in wired.actors[ANNA].machine.heard if isinstance(each, SnapshotSettled)
    ]
    assert not wired.actors[HUB].snapshots.participant.recording


def refusals(wired):
    """What was refused, by field."""
    return [fields["reason"].partition(":")[0] for fields in wired.of("refused")]


@pytest.mark.parametrize(
    "snapshot",
    ["no name", "anna.1:x", f"{ANNA}:99999999999999999999", f"{ANNA}:4000", f"{HUB}:2", "zoe.1:1"],
)
def test_a_marker_of_no_snapshot_is_refused(wired, snapshot):
    """An invalid name, an event that cannot be known yet, or a snapshot that this
    actor never began: nothing is recorded, and no actor ends."""
    for lane in LANES:
        wired.ask(ANNA, Send("hub", lane, Marker(snapshot)))
        wired.deliver(ANNA, HUB, lane)
    assert [] == wired.works
    assert ["$.body.snapshot"] * 2 == refusals(wired)


def test_a_peer_that_begins_snapshots_too_often_is_refused(wired):
    """Each captures a whole state; a flood of markers captures a bounded number of them."""
    for _ in range(int(BEGUN_AT_ONCE)):
        wired.ask(ANNA, TakeSnapshot())
        wired.finish()
    assert int(BEGUN_AT_ONCE) == len(wired.of(TAKEN))
    wired.ask(ANNA, TakeSnapshot())
    wired.run()
    assert HUB not in [who for who, _ in wired.works]
    assert refusals(wired)
    assert {"$.body.snapshot"} == set(refusals(wired))


def absurd_parts():
    """Parts that cannot have been recorded, and what is wrong with them."""
    whole = Part(ANNA, 4, {ANNA: 4}, (HUB,), {}, ("state", "flight"))
    return [
        pytest.param(replace(whole, **change), field, id=name)
        for name, change, field in [
            ("an impossible clock", {"clock": {ANNA: 4, BERT: -1}}, "$.body.part.clock"),
            ("a clock without its own count", {"clock": {BERT: 4}}, "$.body.part.number"),
            ("another number", {"number": 5}, "$.body.part.number"),
            ("nameless", {"who": "", "clock": {"": 4}}, "$.body.part"),
            ("its own peer", {"peers": (ANNA,)}, "$.body.part.peers"),
            ("nothing written", {"contents": ()}, "$.body.part.contents"),
            ("a long reason", {"lost": {HUB: "x" * 5000}}, "$.body.part"),
            ("another's", {"who": BERT, "clock": {BERT: 4}}, "$.body.part.who"),
            ("one's own", {"who": HUB, "clock": {HUB: 4}, "peers": ()}, "$.body.part.who"),
        ]
    ]


@pytest.mark.parametrize(("part", "field"), absurd_parts())
def test_a_part_that_was_not_recorded_is_refused(part, field):
    """A peer's part must be possible, and a peer cannot send the part of a linked actor."""
    wired = WiredActors(ANNA, BERT)
    wired.ask(HUB, TakeSnapshot())
    snapshot = wired.work(CaptureState, HUB).snapshot
    wired.ask(ANNA, Send("hub", CONTROL, SnapshotPart(snapshot, part)))
    wired.deliver(ANNA, HUB, CONTROL)
    assert [field] == refusals(wired)


def test_a_part_goes_to_who_began_it_where_there_is_a_link(wired):
    """Not to the actor whose marker came first: so no actor needs to forward parts."""
    wired.add(BERT, Dial("hub", {}))
    wired.run()
    wired.tell(ANNA, SnapshotRequested())
    snapshot = f"{ANNA}:{wired.actors[ANNA].number}"
    wired.run()
    wired.actors[HUB].snapshots.participant.towards[snapshot] = BERT
    wired.do(whose=HUB)
    assert [snapshot] == [each.snapshot for each in wired.bodies(HUB, ANNA, CONTROL)]
    assert [] == wired.bodies(HUB, BERT, CONTROL)
