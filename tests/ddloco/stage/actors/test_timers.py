"""Timers by name, and which one is due next."""

from ddloco.stage.actors.timers import Timers


def test_timers_come_in_order_and_once():
    """The earliest is due first; one set again moves; one cancelled never comes."""
    timers = Timers()
    for name, at in (("b", 2.0), ("a", 1.0), ("c", 3.0), ("d", 2.5)):
        timers.set(name, at)
    timers.set("a", 4.0)
    timers.cancel("d")
    timers.cancel("never set")
    assert (2.0, None) == (timers.next_at(), timers.pop_due(1.9))
    assert ["b", "c", "a", None] == [timers.pop_due(9.0) for _ in range(4)]
    assert timers.next_at() is None
