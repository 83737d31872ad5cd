"""Timers that are set, and which one is due next."""

from ddloco.stage.actors.timers import Named, Timers


def test_timers_come_in_order_and_once():
    """The earliest is due first; one set again moves; one cancelled never comes."""
    timers = Timers()
    a, b, c, d = (Named(name) for name in "abcd")
    for timer, at in ((b, 2.0), (a, 1.0), (c, 3.0), (d, 2.5)):
        timers.set(timer, at)
    timers.set(a, 4.0)
    timers.cancel(d)
    timers.cancel(Named("never set"))
    assert (2.0, None) == (timers.next_at(), timers.pop_due(1.9))
    assert [b, c, a, None] == [timers.pop_due(9.0) for _ in range(4)]
    assert timers.next_at() is None


def test_timers_due_at_the_same_time_come_in_the_order_of_setting():
    """One that is set again, even for the same time, is the last; a cancelled one starts anew."""
    timers = Timers()
    a, b, c, d = (Named(name) for name in "dcba")
    for timer in (a, b, c, a, d):
        timers.set(timer, 1.0)
    timers.cancel(b)
    timers.set(b, 1.0)
    assert [c, a, d, b, None] == [timers.pop_due(1.0) for _ in range(5)]
