"""A bounded sample of the soak (``make soak`` is ten minutes of it)."""

import pytest

from tests.processes.soak import soak


@pytest.mark.slow
def test_a_minute_of_everything_going_wrong(tmp_path):
    """Every invariant on the tapes, and the replay, after a minute of faults every two seconds."""
    found = soak(tmp_path, 1.0, seed=3, compare=False)
    assert [] == found.broken
