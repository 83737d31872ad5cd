"""What a syncer tells of itself: true in every world, and reading it changes nothing."""

import msgspec
import pytest

from clocks import actor_of
from ddloco.job.protocol.status import SyncerStatus
from ddloco.replayer.invariants.base import InvariantCheck
from ddloco.simulation.trail import Trail
from ddloco.simulation.world import World
from tests.lab.hostile_world import EVENTS_MAX, draw


class Asking(InvariantCheck):
    """Asks after every event, and compares the answer with what the world knows."""

    def __init__(self):
        self.reasons = set()
        self.refused = 0

    def see(self, world, node, event, effects):
        syncer = world.nodes[world.lead]
        if not syncer.present:
            return
        told = syncer.actor.machine.status(syncer.at)
        plain = msgspec.json.encode(told)
        assert msgspec.json.decode(plain, type=SyncerStatus) == told
        peers = syncer.actor.links.peers()
        linked = [each for each in peers if actor_of(each) not in world.fragment_memories]
        assert [each.learner for each in told.members] == linked
        assert told.live == len(linked)
        assert all(version <= told.t for version in told.versions)
        assert len(told.in_flight) <= world.job.sync.overlap
        for each in told.in_flight:
            assert set(each.arrived) <= set(each.pulled)
            assert each.since_s >= 0
            assert each.until_s >= 0
        assert told.goodput is None or 0 <= told.goodput <= 1
        assert all(each.heard_s >= 0 for each in told.members)
        self.refused = max(self.refused, sum(told.refused.values()), told.late)
        if told.waiting is not None:
            assert told.waiting.since_s >= 0
            assert set(told.waiting.missing) <= set(linked)
            self.check_absent(syncer.actor.machine, told.waiting, linked)
            self.reasons.add(told.waiting.reason.partition(":")[0])

    def check_absent(self, machine, waiting, linked):
        """Each learner that does not count is named with a reason, and no other."""
        fragment = waiting.fragment
        oldest = machine.rounds.oldest(fragment)
        able = machine.rounds.membership.able(fragment, oldest)
        counted = {each.incarnation for each in able if not each.unanswered}
        assert set(linked) == set(waiting.absent) | counted
        assert not set(waiting.absent) & counted
        assert all(waiting.absent.values())


def trail_of(seed, *checks):
    """All that happened in a hostile world."""
    drawn, trail = draw(seed), Trail()
    world = World(drawn.job, drawn.physics, [*checks, trail])
    world.begin(drawn.faults)
    world.run(drawn.end_at, events_max=EVENTS_MAX)
    return trail.value()


@pytest.mark.parametrize("seed", [3, 16, 27])
def test_asking_changes_nothing(seed):
    """The same world, asked or not; every answer is plain data, and so."""
    asking = Asking()
    assert trail_of(seed, asking) == trail_of(seed)
    assert "a quorum" in asking.reasons


def test_all_that_is_waited_for_is_named():
    """Over a few worlds: the quorum, the window and the floor; and refusals are counted."""
    asking = Asking()
    for seed in (16, 30):
        trail_of(seed, asking)
    assert asking.reasons == {"a quorum", "the grace window", "the launch floor"}
    assert asking.refused > 0
