"""A call that takes long is told of, with its name, again and again; short ones are not."""

import threading

import pytest

from ddloco.workers import call_watch
from ddloco.workers.call_watch import WORKER_BUSY, CallWatch


@pytest.fixture
def told(monkeypatch):
    """What was told, and a way to wait for so many of it; a call is long after 20 ms."""
    monkeypatch.setattr(call_watch, "LOOK_S", 0.005)
    monkeypatch.setattr(call_watch, "LONG_S", 0.02)
    found, more = [], threading.Condition()

    class Told:
        def __call__(self, event, fields):
            with more:
                found.append((event, fields))
                more.notify_all()

        def wait_for(self, count):
            with more:
                assert more.wait_for(lambda: len(found) >= count, 10.0)
            return found

    return Told()


def test_the_inner_call_is_named_and_then_the_outer_one(told):
    """The time of each is its own; it doubles until it is told again."""
    watch = CallWatch(told)
    with watch.during("a step"):
        with watch.during("next()"):
            first, second, third = told.wait_for(3)[:3]
        assert [WORKER_BUSY] * 3 == [event for event, _ in (first, second, third)]
        assert ["next()"] * 3 == [fields["call"] for _, fields in (first, second, third)]
        before = len(told.wait_for(0))
        assert "a step" in [fields["call"] for _, fields in told.wait_for(before + 2)[before:]]
    assert third[1]["for_s"] >= 0.0


def test_short_calls_are_not_told_of(told):
    """However many there are."""
    watch = CallWatch(told)
    for _ in range(2000):
        with watch.during("next()"):
            pass
    assert [] == told.wait_for(0)
