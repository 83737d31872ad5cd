"""A bounded sample of the soak (``make soak`` is ten minutes of it)."""

import pytest

from tests.processes.soak import soak


@pytest.mark.parametrize(
    ("minutes", "learners"), [(0.25, 2), pytest.param(1.0, 6, marks=pytest.mark.slow)]
)
def test_everything_going_wrong_for_a_while(tmp_path, minutes, learners):
    """Every invariant on the tapes, and the replay, after faults every two seconds."""
    found = soak(tmp_path, minutes, seed=3, learners=learners, compare=False)
    assert [] == found.broken
