"""The story of another quorum: a line for each."""

import pytest

from examples import what_if


@pytest.mark.slow
def test_a_larger_quorum_waits_longer_and_has_more_learners(capfd):
    """The table has a line for each quorum, and says what it cost."""
    what_if.main()
    _, *lines = capfd.readouterr().out.splitlines()
    rows = [
        [float(word.rstrip("s") or 0) for word in line.split() if word != "s"] for line in lines
    ]
    assert [row[0] for row in rows] == list(what_if.QUORUMS)
    assert rows[0][2] < rows[-1][2]
    assert rows[0][3] <= rows[-1][3]
