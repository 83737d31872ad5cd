"""Somebody dies in each phase of a snapshot: the rest stands, with or without a part of theirs."""

import pytest

from ddloco.actors.effects import CaptureFlight, CaptureState, TakeSnapshot
from ddloco.actors.messages import SnapshotPart
from ddloco.actors.observations import DISCARDED, TAKEN
from tests.ddloco.actors.town import ANNA, BERT, HUB, Town
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


def play(town, phases):
    """A snapshot that the hub takes, up to a phase of it."""
    steps = iter(
        (
            lambda: town.ask(HUB, TakeSnapshot()),
            lambda: town.deliver(HUB, ANNA, CONTROL),
            lambda: town.deliver(HUB, ANNA, BULK),
            lambda: [town.deliver(ANNA, HUB, lane) for lane in LANES],
            lambda: town.do(CaptureState, whose=ANNA),
            lambda: town.do(CaptureFlight, whose=ANNA),
            lambda: town.deliver(ANNA, HUB, CONTROL),
            lambda: (town.run(), town.do(whose=BERT), town.run()),
            lambda: town.do(whose=HUB),
        )
    )
    for _ in range(phases):
        next(steps)()


def die(town, who):
    """What was said by them and to them is lost, and so is their work; their peers notice."""
    for sender, receiver, lane in list(town.queues):
        if who in {sender, receiver}:
            town.queues[sender, receiver, lane].clear()
    town.works = [each for each in town.works if each[0] != who]
    del town.actors[who]
    for each in (HUB,) if who != HUB else tuple(town.actors):
        town.tell(each, LaneBroken(who if each == HUB else "hub", CONTROL, "killed"))


def go_on(town):
    """Everything else comes to its end; nobody dials who is dead."""
    for (_, receiver, _), said in town.queues.items():
        if receiver not in town.actors:
            said.clear()
    town.finish()


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_a_learner_dies(phase):
    """It is absent, and named, as long as its part has not come; then it is part of the picture.

    Nobody waits for it, nothing is held any more, and the next snapshot is one of the others.
    """
    town = Town(ANNA, BERT)
    play(town, phase + 1)
    assert [] == town.of(TAKEN)
    die(town, ANNA)
    go_on(town)

    (taken,) = town.of(TAKEN)
    assert ([ANNA, BERT, HUB] if phase >= LATE else [BERT, HUB]) == taken["parts"]
    assert ({} if phase >= LATE else {ANNA: "control lane: killed"}) == taken.get("absent", {})
    assert [] == town.of(DISCARDED)
    for each in town.actors.values():
        assert [] == each.snapshots.holding()
        assert not each.snapshots._participant.recording
    town.ask(HUB, TakeSnapshot())
    town.finish()
    assert [BERT, HUB] == town.of(TAKEN)[-1]["parts"]


@pytest.mark.parametrize("phase", range(len(PHASES)), ids=PHASES)
def test_who_began_it_dies(phase):
    """There is none: nobody else commits it, and nobody waits for what does not come."""
    town = Town(ANNA, BERT)
    play(town, phase + 1)
    die(town, HUB)
    go_on(town)
    assert [] == town.of(TAKEN)
    for each in town.actors.values():
        assert [] == each.snapshots.holding()
        assert not each.snapshots._participant.recording
    assert SnapshotPart not in {type(each.body) for said in town.queues.values() for each in said}
    assert all(
        sum(isinstance(event, PeerLost) for event in each.machine.heard) == 1
        for each in town.actors.values()
    )
