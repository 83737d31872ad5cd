"""Peers that are no part of a job, or break the protocol, in simulated worlds: the job
continues."""

import pytest

from clocks import actor_of
from ddloco.stage.files.faults import SYNCER
from transport import LANES, MessageArrived
from transport.message import Hello

PEER = "learner-9.1"
NAMES_MANY = 16_384
"""Names in a clock that one message can bring: its header may have 256 KiB."""


def hello(lane, clock, agreement, peer=PEER):
    """The first message of an unknown peer."""
    return MessageArrived(peer, lane, peer, 1, 0, {peer: 1, **clock}, Hello(agreement))


@pytest.mark.parametrize(
    "clock",
    [
        pytest.param({f"x{n}.1": 1 for n in range(NAMES_MANY)}, id="many made-up names"),
        pytest.param({"learner-0.1": 999, "learner-1.1": 10**9}, id="another job's learner"),
    ],
)
def test_hellos_of_unknown_peers_leave_nothing_on_a_clock(World, make_job, clock):
    """Who does not agree is refused; every clock of the job knows the job's own actors only, and
    nothing that has not happened."""
    world = World(make_job(learners=2, steps=12))
    world.pass_time(3.0)
    for lane in LANES:
        world.tell(world.nodes[SYNCER], hello(lane, clock, {"job": "another"}))
    world.pass_time(600.0)

    assert "global step 12" == world.nodes[SYNCER].finish.reason
    for node in world.nodes.values():
        known = node.actor.clock.wire()
        assert {actor_of(each) for each in known} <= {*world.job.names()}
        assert all(count <= world.nodes[actor_of(who)].actor.number for who, count in known.items())
