"""A bounded sample of the soak (``make soak`` is ten minutes of it)."""

import pytest

from tests.processes.soak import log_of, soak

CRASHES = 235
"""A seed with which both shards and a learner crash within twelve seconds, and a learner leaves,
is slowed, delayed and disconnected."""


def both_shards_are_back(run):
    """Whether the second incarnation of each shard has merged."""
    merges = [line["ref"] for line in log_of(run) if line["event"] == "merge"]
    return {"syncer-0.2", "syncer-1.2"} <= {ref.partition(":")[0] for ref in merges}


@pytest.mark.slow
def test_everything_going_wrong_for_a_while(tmp_path):
    """Every invariant holds on the tapes, and they replay; shards continue from what they kept."""
    found = soak(
        tmp_path, 0.25, seed=CRASHES, learners=2, compare=False, until=both_shards_are_back
    )
    assert [] == found.broken
    assert both_shards_are_back(tmp_path / "run")


@pytest.mark.slow
def test_everything_going_wrong_for_a_minute(tmp_path):
    """With six learners: every invariant holds on the tapes, and they replay."""
    assert [] == soak(tmp_path, 1.0, seed=3, compare=False).broken
