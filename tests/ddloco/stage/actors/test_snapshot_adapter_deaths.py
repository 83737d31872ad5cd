"""An actor dies in each phase of a snapshot: it is committed with or without its part."""

import pytest

from ddloco.stage.actors.effects import CaptureFlight, CaptureState, TakeSnapshot
from ddloco.stage.actors.messages import SnapshotPart
from ddloco.stage.actors.observations import DISCARDED, TAKEN
from tests.ddloco.stage.actors.wired_actors import ANNA, BERT, HUB, WiredActors
from transport import BULK, CONTROL, LANES, LaneBroken, PeerLost

PHASES = (
    "the hub has begun",
    "a marker has come in one lane",
    "its markers are on their way",
    "its markers have come",
    "its state is written",
    "its part is on its way",
    "its part has come",
    "the others are through",
    "the manifest is being written",
)
LATE = PHASES.index("its part has come")
"""From here on what Anna did for the snapshot is done."""


def play(wired, phases):
    """A snapshot that the hub takes, up to a phase of it."""
    steps = iter(
        (
            lambda: wired.ask(HUB, TakeSnapshot()),
            lambda: wired.deliver(HUB, ANNA, CONTROL),
            lambda: wired.deliver(HUB, ANNA, BULK),
            lambda: [wired.deliver(ANNA, HUB, lane) for lane in LANES],
            lambda: wired.do(CaptureState, whose=ANNA),
            lambda: wired.do(CaptureFlight, whose=ANNA),
            lambda: wired.deliver(ANNA, HUB, CONTROL),
            lambda: (wired.run(), wired.do(whose=BERT), wired.run()),
            lambda: wired.do(whose=HUB),
        )
    )
    for _ in range(phases):
        next(steps)()


def die(wired, who):
    """What was said by them and to them is lost, and so is their work; their peers notice."""
    for sender, receiver, lane in list(wired.queues):
        if who in {sender, receiver}:
            wired.queues[sender, receiver, lane].clear()
    wired.works = [each for each in wired.works if each[0] != who]
    del wired.actors[who]
    for each in (HUB,) if who != HUB else tuple(wired.actors):
        wired.tell(each, LaneBroken(who if each == HUB else "hub", CONTROL, "killed"))


def go_on(wired):
    """Everything else comes to its end; a dead actor does not dial."""
    for (_, receiver, _), said in wired.queues.items():
        if receiver not in wired.actors:
            said.clear()
    wired.finish()


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_a_learner_dies(phase):
    """It is absent, and named, as long as its part has not come; then it is part of the picture.

    No actor waits for it, no message is held any more, and the next snapshot is one of the others.
    """
    wired = WiredActors(ANNA, BERT)
    play(wired, phase + 1)
    assert [] == wired.of(TAKEN)
    die(wired, ANNA)
    go_on(wired)

    (taken,) = wired.of(TAKEN)
    assert ([ANNA, BERT, HUB] if phase >= LATE else [BERT, HUB]) == taken["parts"]
    assert ({} if phase >= LATE else {ANNA: "control lane: killed"}) == taken.get("absent", {})
    assert [] == wired.of(DISCARDED)
    for each in wired.actors.values():
        assert [] == each.snapshots.holding()
        assert not each.snapshots.participant.recording
    wired.ask(HUB, TakeSnapshot())
    wired.finish()
    assert [BERT, HUB] == wired.of(TAKEN)[-1]["parts"]


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_who_began_it_dies(phase):
    """No other actor commits it, and none waits for a part that does not come."""
    wired = WiredActors(ANNA, BERT)
    play(wired, phase + 1)
    die(wired, HUB)
    go_on(wired)
    assert [] == wired.of(TAKEN)
    for each in wired.actors.values():
        assert [] == each.snapshots.holding()
        assert not each.snapshots.participant.recording
    assert SnapshotPart not in {type(each.body) for said in wired.queues.values() for each in said}
    assert all(
        sum(isinstance(event, PeerLost) for event in each.machine.heard) == 1
        for each in wired.actors.values()
    )
