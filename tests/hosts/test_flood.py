"""A live job under a flood of strangers; `python -m tests.hosts.flood` measures its pace."""

import pytest

from tests.hosts.cluster import SYNCER
from tests.hosts.flood import DESCRIPTORS, LEARNERS, Flood, figures, start

SHARE_MIN = 0.5
"""Of the merges with the control: what a busy machine leaves. The pace fell to a fortieth."""


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True], ids=["without keys", "with keys"])
def test_strangers_do_not_end_a_job(tmp_path, keyed):
    """Thousands of connections of every kind: merges go on, descriptors are left, and the job ends
    as it should."""
    hosts, cluster = start(tmp_path, keyed=keyed)
    with hosts:
        cluster.start(SYNCER, *LEARNERS)
        cluster.wait_for(list(LEARNERS))
        flood = Flood(cluster.address, "connections", 4000, 60)
        merges, most = len(cluster.merges()), 0
        while not flood.over():
            most = max(most, cluster.sockets(SYNCER))
        assert flood.sent() == 4000
        assert most < DESCRIPTORS * 3 // 4
        assert len(cluster.merges()) > merges
        assert {0} == set(cluster.stop().values())


@pytest.mark.slow
def test_messages_of_very_many_parts_cost_little(tmp_path):
    """A stranger sends them and dials again at once."""
    hosts, cluster = start(tmp_path, keyed=False)
    with hosts:
        cluster.start(SYNCER, *LEARNERS)
        cluster.wait_for(list(LEARNERS))
        found = figures(cluster, "parts", 0, 12)
        assert found["during"] > SHARE_MIN * found["control"]
        assert {0} == set(cluster.stop().values())
