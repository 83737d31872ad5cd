"""When hostile worlds take snapshots: often, seldom, on any actor's request, or, mostly, never."""

from ddloco.simulation.world import World
from ddloco.stage.actors.events import SnapshotRequested
from ddloco.stage.files.faults import Fault
from tests.lab.hostile_world import draw
from tests.lab.snapshot_requests import MBIT_MIN, SHARE, ask, not_too_narrow, requests

SEEDS = range(200)


def test_some_worlds_take_snapshots():
    """Of each kind; in the other worlds there are no requests."""
    drawn = [draw(seed) for seed in SEEDS]
    taking = [each for each in drawn if each.job.snapshot.wanted]
    assert abs(len(taking) / len(drawn) - SHARE) < 0.1
    tables = {(each.job.snapshot.every_s, each.job.snapshot.every_steps) for each in taking}
    assert {(0.5, 0), (4.0, 0), (12.0, 0), (0.0, 6)} == tables
    assert not any(each.asked for each in drawn if each not in taking)
    names = {name for each in taking for _, name in each.asked}
    assert any(name.startswith("learner") for name in names)
    assert any(name.startswith("syncer") for name in names)


def test_several_are_asked_for_at_once():
    """Now and then; as many as are refused."""
    bursts = [[at for at, _ in draw(seed).asked] for seed in SEEDS]
    assert any(times.count(at) > 4 for times in bursts for at in times)


def test_a_seed_asks_for_the_same():
    """Every time."""
    job = draw(3).job
    assert requests(9, job, 20.0) == requests(9, job, 20.0)


def test_links_stay_wide_enough():
    """Those that are narrower are made wider; nothing else changes."""
    faults = [Fault("bandwidth", "learner-0", 1.0, 2.0, mbit=mbit) for mbit in (0.001, 0.1)]
    assert [MBIT_MIN, 0.1] == [each.mbit for each in not_too_narrow(faults)]
    for drawn in map(draw, SEEDS):
        if drawn.job.snapshot.wanted:
            assert all(each.mbit >= MBIT_MIN for each in drawn.faults)


def test_any_actor_that_is_there_can_be_asked():
    """Others are not."""
    drawn = draw(1)
    world, told = World(drawn.job, drawn.physics), []
    world.tell = lambda node, event: told.append((node.actor_name, event))
    ask(world, "learner-0")
    assert [] == told
    world.start("learner-0")
    ask(world, "learner-0")
    assert ("learner-0", SnapshotRequested()) == told[-1]
    before = len(told)
    world.kill("learner-0")
    ask(world, "learner-0")
    assert SnapshotRequested() not in [event for _, event in told[before:]]
