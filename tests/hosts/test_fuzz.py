"""A live job that receives invalid messages; `python -m tests.hosts.fuzz` sends more of them."""

import os

import pytest

from tests.hosts.cluster import SYNCER, wait_until
from tests.hosts.fuzz import fuzz, start, told

GROWN_MIB_MAX = 16.0
"""Of the syncer, while messages of every kind come in: each is up to 4 MiB, and a few of each
connection are taken in before they are refused."""


@pytest.mark.slow
@pytest.mark.parametrize("messages", [500, 20_000])
def test_a_live_job_is_fuzzed(tmp_path, messages):
    """It continues to merge, counts what it refused, and its memory does not grow."""
    messages = int(os.environ.get("FUZZ_MESSAGES", messages))
    hosts, cluster = start(tmp_path)
    with hosts:
        cluster.start(SYNCER, "learner-0", "learner-1")
        cluster.wait_for(["learner-0", "learner-1"])
        figures = fuzz(cluster, messages, seed=1)
        for name, value in figures.items():
            print(f"{name:16} {value}")
        refused = figures["refused_frames"]
        assert sum(refused.values()) > messages / 4
        assert all(who.startswith("learner-2.") for who in refused), "only the insider is blamed"
        # Refused handshakes are logged at most once in ten seconds, and others may come first.
        wanted = {"handshake refused", "message refused"}
        wait_until(lambda: wanted <= set(told(cluster)), f"{wanted} in the log")
        assert figures["grown_mib"] < GROWN_MIB_MAX
        # Who was just robbed of its name must be back to hear that the job is over.
        cluster.wait_for(["learner-0", "learner-1"], len(cluster.merges()))
        assert {0} == set(cluster.stop().values())
