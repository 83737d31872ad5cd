"""An actor's part in snapshots, among a few who are wired in memory."""

import pytest
from msgspec.structs import replace

from ddloco.actors.effects import CaptureFlight, CaptureState, CommitSnapshot, TakeSnapshot
from ddloco.actors.events import SnapshotRequested, SnapshotSettled, StopRequested
from ddloco.actors.messages import SnapshotPart
from ddloco.actors.observations import BEGUN, DISCARDED, TAKEN
from ddloco.actors.snapshot_adapter import BEGUN_AT_ONCE, CUT, GATHER
from ddloco.protocol.messages import GlobalFragment, Pull
from snapshot import GATHERING_S, Part, freeze, thaw
from snapshot.participant import PATIENCE_S, REFUSED
from tests.ddloco.actors.town import ANNA, BERT, HUB, PACKAGES, Town
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
def town():
    """A hub and one who has joined it."""
    return Town(ANNA)


def test_the_cut_is_at_the_end_of_its_event(town):
    """What is said with the event goes ahead of the marker, in a state that knows of both."""
    town.ask(HUB, TakeSnapshot(), Send(ANNA, CONTROL, Pull(1, 0)))

    number = town.actors[HUB].number
    name = f"{HUB}:{number}"
    assert [Pull(1, 0), Marker(name)] == town.bodies(HUB, ANNA, CONTROL)
    assert [Marker(name)] == town.bodies(HUB, ANNA, BULK)
    work = town.work(CaptureState, HUB)
    frozen = thaw(work.state, PACKAGES)
    assert (name, number) == (work.snapshot, frozen.number)
    assert StopRequested("now") == frozen.machine.heard[-1]
    assert frozen.links.incarnation(ANNA) == ANNA
    assert work.state == freeze(frozen, PACKAGES)
    assert [{"snapshot": name}] == town.of(BEGUN)


def test_timers_say_when_to_wait_no_longer(town):
    """For markers everybody, for parts whoever began."""
    town.ask(HUB, TakeSnapshot())
    town.deliver(HUB, ANNA, BULK)
    name = town.work(CaptureState, HUB).snapshot
    assert 1.0 + PATIENCE_S == town.timers[HUB, CUT + name] == town.timers[ANNA, CUT + name]
    assert 1.0 + PATIENCE_S + GATHERING_S == town.timers[HUB, GATHER + name]
    assert (ANNA, GATHER + name) not in town.timers


def test_what_waits_for_credit_belongs_to_the_state(town):
    """The marker goes ahead of it; when there is credit it leaves behind the marker."""
    window = WINDOW_MESSAGES[BULK]
    fragments = [GlobalFragment(p, 1) for p in range(window + 1)]
    town.ask(HUB, *(Send(ANNA, BULK, each) for each in fragments))
    town.ask(HUB, TakeSnapshot())

    frozen = thaw(town.work(CaptureState, HUB).state, PACKAGES)
    assert (1, False) == frozen.links.waiting(ANNA, BULK)
    name = town.work(CaptureState, HUB).snapshot
    assert [*fragments[:window], Marker(name)] == town.bodies(HUB, ANNA, BULK)
    town.run()
    heard = [each.body for each in town.actors[ANNA].machine.heard[-window - 1 :]]
    assert fragments == heard
    *flight, marker = thaw(town.work(CaptureFlight, ANNA).messages, PACKAGES)
    assert fragments[:window] == [each.body for each in flight]
    assert isinstance(marker.body, Marker), "it has a number in its lane, like all that came"


def said(work):
    """What was in flight, but for the markers that end it."""
    return [each for each in thaw(work.messages, PACKAGES) if not isinstance(each.body, Marker)]


@pytest.mark.parametrize("failed", ["", "the disk is full"])
def test_what_was_in_flight_is_kept_until_it_is_written(town, failed):
    """Its array is held, though the machine lets it go; given back, also when it is not written."""
    town.ask(ANNA, Send("hub", BULK, GlobalFragment(0, 1), payload="mine"))
    town.ask(HUB, TakeSnapshot())
    town.deliver(ANNA, HUB, BULK)
    arrived = town.actors[HUB].machine.heard[-1]
    assert [] == town.freed
    town.run()

    work = town.work(CaptureFlight, HUB)
    assert [arrived] == said(work)
    assert (arrived.handle,) == work.handles
    assert [arrived.handle] == town.actors[HUB].snapshots.holding()
    town.do(CaptureFlight, failed)
    assert [(HUB, arrived.handle)] == town.freed
    town.do(CaptureState)
    town.finish()
    assert [] == town.actors[HUB].snapshots.holding()
    if failed:
        (seen,) = town.of(DISCARDED)
        assert failed in seen["reason"]
        assert failed == town.of("snapshot part failed")[0]["reason"]
    else:
        assert [HUB, ANNA] == sorted(town.of(TAKEN)[0]["parts"], reverse=True)


def test_what_comes_behind_the_marker_was_not_in_flight(town):
    """It is after the cut."""
    town.ask(HUB, TakeSnapshot())
    town.deliver(HUB, ANNA, CONTROL)
    town.ask(ANNA, Send("hub", BULK, GlobalFragment(0, 1), payload="mine"))
    town.run()
    assert [] == said(town.work(CaptureFlight, HUB))
    assert 1 == len(town.freed)


def test_what_is_in_flight_when_the_state_cannot_be_written_is_let_go(town):
    """Its cut is not complete yet; nothing is written of it."""
    town.ask(ANNA, Send("hub", BULK, GlobalFragment(0, 1), payload="mine"))
    town.ask(HUB, TakeSnapshot())
    town.deliver(ANNA, HUB, BULK)
    town.do(CaptureState, "the disk is full")
    assert 1 == len(town.freed)
    assert [] == town.actors[HUB].snapshots.holding()


def test_arrays_that_are_held_stay_until_they_are_written(town):
    """What the machine drops meanwhile is freed when the capture is done."""
    actor = town.actors[HUB]
    actor.handles.hold("theta/0/1")
    town.ask(HUB, TakeSnapshot())
    assert ("theta/0/1",) == town.work(CaptureState, HUB).handles
    assert [] == actor.handles.release("theta/0/1")
    town.do(CaptureState)
    assert [(HUB, "theta/0/1")] == town.freed


def test_a_machine_hears_what_became_of_what_it_took(town):
    """Once the manifest stands; or why there is none."""
    town.ask(HUB, TakeSnapshot())
    name = town.work(CaptureState, HUB).snapshot
    town.finish()
    assert SnapshotSettled(name) == town.actors[HUB].machine.heard[-1]
    assert [{"snapshot": name, "parts": [ANNA, HUB]}] == town.of(TAKEN)

    town.tell(HUB, SnapshotRequested())
    assert SnapshotRequested() == town.actors[HUB].machine.heard[-1]
    name = town.work(CaptureState, HUB).snapshot
    for _ in range(3):
        town.run()
        town.do(CaptureState)
        town.do(CaptureFlight)
    assert ["anna.1 CaptureFlight", "anna.1 CaptureState"] == sorted(
        content for part in town.work(CommitSnapshot, HUB).parts[:1] for content in part.contents
    )
    town.do(CommitSnapshot, "the place is full")
    assert SnapshotSettled(name, "the place is full") == town.actors[HUB].machine.heard[-1]
    assert [{"snapshot": name, "reason": "the place is full"}] == town.of(DISCARDED)


def test_one_too_many_is_refused_by_name(town):
    """The machine hears it at once, and nothing else happens."""
    for _ in range(4):
        town.ask(HUB, TakeSnapshot())
    before = len(town.works)
    town.ask(HUB, TakeSnapshot())
    assert REFUSED == town.actors[HUB].machine.heard[-1].failed
    assert [REFUSED] == [each["reason"] for each in town.of(DISCARDED)]
    assert before == len(town.works) == 4
    town.finish()
    assert 4 == len(town.of(TAKEN))


def test_a_peer_that_is_lost_is_waited_for_no_longer(town):
    """It is absent, and why."""
    town.ask(HUB, TakeSnapshot())
    town.tell(HUB, LaneBroken(ANNA, BULK, "it is gone"))
    town.do()
    town.do()
    (seen,) = town.of(TAKEN)
    assert [HUB] == seen["parts"]
    assert "it is gone" in seen["absent"][ANNA]


def test_who_is_hung_up_with_the_event_of_the_cut_is_told_nothing(town):
    """There is no way for its marker any more; it is absent."""
    town.ask(HUB, TakeSnapshot(), Hangup(ANNA, "enough"))
    assert Marker not in {type(body) for lane in LANES for body in town.bodies(HUB, ANNA, lane)}
    town.do()
    town.do()
    assert {ANNA: "enough"} == town.of(TAKEN)[0]["absent"]


def test_who_joins_in_the_middle_hears_of_the_cut_first(town):
    """Before anything else that is said over the new link; its part is none of this snapshot."""
    town.ask(HUB, TakeSnapshot())
    name = town.work(CaptureState, HUB).snapshot
    town.add(BERT, Dial("hub", {}))
    for lane in LANES:
        town.deliver(BERT, HUB, lane)
    assert isinstance(town.actors[HUB].machine.heard[-1], PeerJoined)
    for lane in LANES:
        assert Marker(name) == town.bodies(HUB, BERT, lane)[1]
    town.finish()
    (seen,) = town.of(TAKEN)
    assert [ANNA, HUB] == seen["parts"]


def test_a_part_whose_way_is_gone_is_told_to_nobody(town):
    """Whoever began it waits for as long as it waits, and does without."""
    town.ask(HUB, TakeSnapshot())
    for lane in LANES:
        town.deliver(HUB, ANNA, lane)
    town.tell(ANNA, LaneBroken("hub", CONTROL, "it is gone"))
    said = town.bodies(ANNA, HUB, CONTROL)
    town.do()
    later = town.bodies(ANNA, HUB, CONTROL)[len(said) :]
    assert SnapshotPart not in {type(body) for body in later}


def test_markers_that_do_not_come_are_waited_for_so_long(town):
    """Then for no longer; the same with parts."""
    town.ask(HUB, TakeSnapshot())
    name = town.work(CaptureState, HUB).snapshot
    town.tell(HUB, TimerFired(CUT + name), 70.0)
    town.do()
    assert [] == town.of(TAKEN)
    town.tell(HUB, TimerFired(GATHER + name), 300.0)
    town.do()
    (seen,) = town.of(TAKEN)
    assert [ANNA] == list(seen["absent"])
    assert TimerFired not in {type(event) for event in town.actors[HUB].machine.heard}


def test_whoever_is_told_of_a_snapshot_passes_it_on():
    """Three in a row: the far one's part comes by way of the hub."""
    town = Town(ANNA, BERT)
    town.tell(ANNA, SnapshotRequested())
    town.finish()
    (seen,) = town.of(TAKEN)
    assert [ANNA, BERT, HUB] == seen["parts"]
    assert "absent" not in seen
    snapshot = seen["snapshot"]
    assert snapshot.startswith(ANNA)
    assert [SnapshotSettled(snapshot)] == [
        each for each in town.actors[ANNA].machine.heard if isinstance(each, SnapshotSettled)
    ]
    assert not town.actors[HUB].snapshots._participant.recording


def refusals(town):
    """What was refused, by field."""
    return [fields["reason"].partition(":")[0] for fields in town.of("refused")]


@pytest.mark.parametrize(
    "snapshot",
    ["no name", "anna.1:x", f"{ANNA}:99999999999999999999", f"{ANNA}:4000", f"{HUB}:2", "zoe.1:1"],
)
def test_a_marker_of_no_snapshot_is_refused(town, snapshot):
    """One that is no name, of an event that nobody can have heard of, or of a snapshot that this
    actor never began: nothing is recorded, and nobody ends."""
    for lane in LANES:
        town.ask(ANNA, Send("hub", lane, Marker(snapshot)))
        town.deliver(ANNA, HUB, lane)
    assert [] == town.works
    assert ["$.body.snapshot"] * 2 == refusals(town)


def test_whoever_begins_snapshots_too_often_is_refused(town):
    """Each captures a whole state; a flood of markers captures a bounded number of them."""
    for _ in range(int(BEGUN_AT_ONCE)):
        town.ask(ANNA, TakeSnapshot())
        town.finish()
    assert int(BEGUN_AT_ONCE) == len(town.of(TAKEN))
    town.ask(ANNA, TakeSnapshot())
    town.run()
    assert HUB not in [who for who, _ in town.works]
    assert refusals(town)
    assert {"$.body.snapshot"} == set(refusals(town))


def absurd_parts():
    """Parts that nobody can have recorded, and what is wrong with them."""
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
def test_a_part_that_nobody_recorded_is_refused(part, field):
    """What a peer says of itself must be possible, and it speaks for nobody who is linked."""
    town = Town(ANNA, BERT)
    town.ask(HUB, TakeSnapshot())
    snapshot = town.work(CaptureState, HUB).snapshot
    town.ask(ANNA, Send("hub", CONTROL, SnapshotPart(snapshot, part)))
    town.deliver(ANNA, HUB, CONTROL)
    assert [field] == refusals(town)


def test_a_part_goes_to_who_began_it_where_there_is_a_link(town):
    """Not to whoever was first to tell of it: so nobody needs to speak for somebody else."""
    town.add(BERT, Dial("hub", {}))
    town.run()
    town.tell(ANNA, SnapshotRequested())
    snapshot = f"{ANNA}:{town.actors[ANNA].number}"
    town.run()
    town.actors[HUB].snapshots._participant._towards[snapshot] = BERT
    town.do(whose=HUB)
    assert [snapshot] == [each.snapshot for each in town.bodies(HUB, ANNA, CONTROL)]
    assert [] == town.bodies(HUB, BERT, CONTROL)
