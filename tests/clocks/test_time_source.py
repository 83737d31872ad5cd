"""Sources of time: seconds since the start, never backwards."""

import time

import pytest

from clocks import ManualTime, MonotonicTime


def test_manual_time_moves_only_when_told():
    """Time stands where it was set, and may stand still."""
    source = ManualTime(1.5)

    assert 1.5 == source.now() == source.now()
    source.advance_to(4.0)
    source.advance_to(4.0)
    assert source.now() == 4.0
    assert ManualTime().now() == 0.0


def test_manual_time_never_runs_backwards():
    """Going back is refused, and leaves the time as it was."""
    source = ManualTime(4.0)

    with pytest.raises(ValueError, match=r"cannot go back from 4\.0 to 3\.9"):
        source.advance_to(3.9)
    assert source.now() == 4.0


def test_monotonic_time_counts_from_its_start(monkeypatch):
    """The first reading is zero, whatever the machine's uptime."""
    readings = iter([1000.0, 1000.0, 1000.25])
    monkeypatch.setattr(time, "monotonic", lambda: next(readings))
    source = MonotonicTime()

    assert [source.now(), source.now()] == [0.0, 0.25]


def test_monotonic_time_never_runs_backwards():
    """A thousand readings are in order."""
    source = MonotonicTime()

    readings = [source.now() for _ in range(1000)]

    assert sorted(readings) == readings
    assert readings[0] >= 0
