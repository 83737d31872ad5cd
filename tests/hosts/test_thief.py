"""A learner that trains is robbed of its name by another holder of a key, and takes it back."""

import time

import pytest
import zmq

from ddloco.stage.files.keys import load_curve
from tests.hosts.cluster import SYNCER, wait_until
from tests.hosts.fuzz import INSIDER, start
from transport import LANES
from transport.zeromq import DEAF_S

ROBBED = "learner-0"
BACK_S_MAX = 6 * DEAF_S
"""For a whole `DEAF_S` nothing can be known; a lane that is robbed of a contribution is waited for
a little longer, a handshake may come in between, and a busy machine takes its time."""


def rob(cluster, lanes):
    """Say something as the learner on these lanes, with the insider's key, and leave."""
    inside = load_curve(cluster.folder / "keys", INSIDER)
    with zmq.Context() as context:
        for lane in lanes:
            thief = context.socket(zmq.DEALER)
            thief.setsockopt(zmq.LINGER, 2000)
            thief.setsockopt(zmq.ROUTING_ID, f"{cluster.incarnation(ROBBED)}/{lane}".encode())
            inside.seal(thief, SYNCER)
            thief.connect(cluster.address)
            thief.send(b"this is mine")
            wait_until(lambda: cluster.events(SYNCER, "identity refused"), "the thief was heard")
            time.sleep(0.5)
            thief.close()


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [LANES, ("control",), ("bulk",)], ids=["both", "control", "bulk"])
def test_a_learner_that_was_robbed_of_its_name_takes_part_again(tmp_path, lanes):
    """Merges continue without it; later it is in one again, as the same incarnation, and is told
    that the job is over."""
    hosts, cluster = start(tmp_path)
    with hosts:
        cluster.start(SYNCER, ROBBED, "learner-1")
        cluster.wait_for([ROBBED, "learner-1"])
        rob(cluster, lanes)
        time.sleep(1.0)  # What was pulled of it before is merged by now.
        begun, merges = time.monotonic(), len(cluster.merges())
        cluster.wait_for(["learner-1"], merges)
        who = cluster.incarnation(ROBBED)
        wait_until(lambda: cluster.takes_part(who, merges), f"{who} is back", BACK_S_MAX)
        print(f"back after {time.monotonic() - begun:.1f} s")
        assert set(cluster.stop().values()) == {0}
