"""Snapshots of hostile worlds: they delay no actor, replay to the bit, and are checked."""

from dataclasses import replace

import pytest
import trio
from msgspec.structs import replace as changed

from ddloco.cli.tape_verify import verify_folder
from ddloco.replayer.invariants.training import Learning, Merging
from ddloco.replayer.replay_of import replay_of
from ddloco.simulation.network import Wire
from ddloco.simulation.world import World
from ddloco.stage.files.run_folder import open_folder
from ddloco.stage.files.settings import SnapshotTable
from snapshot import Part, write_state
from tests.lab import hostile_world
from tests.lab.mutations import wrap
from tests.lab.snapshot_checks import SentNumbers
from tests.lab.snapshot_requests import ask

SEVERAL = [1, 2, 9, 15]
"""Hostile worlds, here without their faults."""

UNTIL_S = 60.0


def times(seed, table, *asked):
    """When steps and merges were done in a world of even links; and what it took."""
    drawn = hostile_world.draw(seed)
    learning, merging = Learning(), Merging()
    physics = replace(drawn.physics, wire=Wire(0.02))
    world = World(changed(drawn.job, snapshot=table), physics, [learning, merging])
    world.begin()
    for at, name in asked:
        world.call(at, ask, world, name)
    world.run(UNTIL_S)
    # The end itself waits for the last snapshot, and learners train on meanwhile.
    last = merging.merges[-1][0]
    steps = {name: [at for at in done if at <= last] for name, done in learning.steps.items()}
    return (steps, merging.merges), world.snapshots.committed


@pytest.mark.parametrize("seed", SEVERAL)
def test_snapshots_delay_no_step_and_no_merge(seed):
    """snapshot-does-not-stall: with one a second, and several at once, all times are the same."""
    plain, none = times(seed, SnapshotTable())
    name = hostile_world.draw(seed).job.learner_names()[0]
    after, some = times(seed, SnapshotTable(every_s=1.0), *[(7.7, name)] * 3)
    assert not none
    assert len(some) > 2
    assert plain == after


def test_what_is_compared_would_differ(monkeypatch):
    """With learners who hold their breath while they are written."""

    def begin(old, self, node, work):
        if type(work).__name__ == "CaptureState":
            node.slow = 1.01
        return old(self, node, work)

    plain, _ = times(2, SnapshotTable())
    wrap(monkeypatch, World, "_begin_work", begin)
    after, _ = times(2, SnapshotTable(every_s=1.0))
    assert plain != after


@pytest.mark.parametrize(
    ("seed", "what"),
    [(1, "five learners"), (2, "shards"), (24, "a syncer that stalls"), (48, "many came back")],
)
def test_worlds_with_snapshots_replay(seed, what, tmp_path, monkeypatch):
    """Digests of every state and of what was in flight are on the tapes, and come again."""
    drawn, taken = hostile_world.draw(seed, tmp_path), []

    def made(*given, **more):
        taken.append(World(*given, **more))
        return taken[-1]

    monkeypatch.setattr(hostile_world, "World", made)
    open_folder(tmp_path, drawn.job)
    outcome = hostile_world.happen(drawn)
    assert outcome.violation is None, what
    assert len(taken[0].snapshots.committed) > 3, f"{what}: the seed draws another world now"
    report = trio.run(replay_of(tmp_path).run)
    assert report.identical, report.divergence and report.divergence.report()
    assert outcome.events == report.events
    held, _ = verify_folder(tmp_path, as_json=False)
    assert held


def test_a_picture_that_came_out_otherwise_is_a_divergence(tmp_path, monkeypatch):
    """A frozen state that depends on more than what happened would be found."""
    drawn = hostile_world.draw(2, tmp_path)
    open_folder(tmp_path, drawn.job)
    hostile_world.happen(drawn)
    monkeypatch.setattr(
        "ddloco.stage.actors.actor.write_state", lambda state: write_state(state) + b"!"
    )
    assert not trio.run(replay_of(tmp_path).run).identical


@pytest.fixture
def said():
    """Five messages; three were heard by one receiver, at its events 4 to 8."""
    lane = SentNumbers([1, 2, 3, 4, 5], [10, 10, 11, 15, 20])
    lane.heard["b.1"] += [4, 6, 8]
    return lane


def part(who, number):
    """A part of no more than a name and a number."""
    return Part(who, number, {}, (), {})


@pytest.mark.parametrize(
    ("sender", "receiver", "flight", "early"),
    [(9, 3, [], 0), (10, 3, [1, 2], 0), (15, 4, [2, 3, 4], 0), (20, 99, [4, 5], 0), (10, 8, [], 1),
     (9, 6, [], 2)],
)  # fmt: skip
def test_what_was_between_two_cuts(said, sender, receiver, flight, early):
    """Said up to one number, heard up to the other."""
    assert flight == said.between(sender, part("b.1", receiver))
    assert early == said.too_early(sender, part("b.1", receiver))


def test_another_incarnation_has_heard_nothing(said):
    """What its former self heard was not heard by it."""
    assert [1, 2, 3, 4, 5] == said.between(20, part("b.2", 99))
