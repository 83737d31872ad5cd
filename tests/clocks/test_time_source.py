"""Sources of time: seconds since the start, never backwards."""

import time

from clocks import MonotonicTime


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
