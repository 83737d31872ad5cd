"""One order and one time axis for the events of actors whose clocks are not the same."""

from itertools import pairwise

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddloco.debugger.timeline import clock_offsets, timeline
from replay import TapeHeader, TapeWriter, open_tapes
from replay.tape import Effects, Event


def header(incarnation):
    return TapeHeader(incarnation, "job-1", {"job": {"task": "x"}}, "0.1.0", {})


def write(folder, incarnation, events):
    """Write a tape of events, each (time, None) or (time, (sender, its event))."""
    writer = TapeWriter(folder / f"{incarnation}.tape", header(incarnation))
    for n, (at, sent) in enumerate(events, start=1):
        if sent is None:
            clock, plain = {}, {"type": "TimerFired", "timer": "x"}
        else:
            clock = {sent[0]: sent[1]}
            plain = {
                "type": "MessageArrived", "peer": sent[0], "lane": "control", "session": 1,
                "sender": sent[0], "seq": n, "clock": clock, "body": {"type": "Progress"},
            }  # fmt: skip
        writer.append(Event(n, at, msgspec.Raw(msgpack.packb(plain)), clock))
        writer.append(Effects(n, 0, bytes(16)))
    writer.close()


@given(behind=st.floats(-1e4, 1e4), there=st.floats(0.001, 2), back=st.floats(0.001, 2))
def test_the_offset_is_found_to_within_half_the_difference_of_the_delays(
    tmp_path_factory, behind, there, back
):
    """The second actor started ``behind`` seconds after the first; messages go both ways."""
    folder = tmp_path_factory.mktemp("tapes")
    write(folder, "a.1", [(1.0, None), (2.0 + there + back, ("b.1", 1))])
    write(folder, "b.1", [(1.0 + there - behind, ("a.1", 1)), (9.0, None)])
    # The answer leaves b.1 when the question arrives there.
    found = clock_offsets(open_tapes(folder))
    true_back = 2.0 + there + back - (1.0 + there)
    assert found["a.1"] == 0.0
    assert found["b.1"] == pytest.approx(behind + (true_back - there) / 2, abs=1e-6)


def test_times_of_a_run_go_forwards_though_every_clock_has_its_own_start(run):
    """A learner that started a minute later does not stand before what it answers."""
    events = timeline(list(run.tapes.values()))
    steps_back = [before.common_at - after.common_at for before, after in pairwise(events)]
    assert max(steps_back) < 0.1
    own = [before.at - after.at for before, after in pairwise(events)]
    assert max(own) > 50  # The clocks as recorded do jump.


def test_the_order_is_causal(run):
    """Whatever the times say, a cause stands before its effect."""
    seen = {}
    for event in timeline(list(run.tapes.values())):
        for name, count in event.clock.wire().items():
            if name != event.actor and name in run.tapes:
                assert seen.get(name, 0) >= count
        seen[event.actor] = event.number


def test_an_actor_without_messages_keeps_its_own_times(tmp_path):
    """There is nothing to estimate an offset from."""
    write(tmp_path, "a.1", [(1.0, None)])
    write(tmp_path, "b.1", [(2.0, None)])
    assert set(clock_offsets(open_tapes(tmp_path)).values()) <= {0.0}


@given(
    behind=st.lists(st.floats(-100, 100), min_size=2, max_size=2),
    took=st.lists(st.floats(0.001, 3), min_size=6, max_size=6),
)
def test_among_three_actors_no_message_arrives_before_it_was_sent(tmp_path_factory, behind, took):
    """However unlike the delays are: of any pair the estimate alone may say otherwise."""
    folder = tmp_path_factory.mktemp("three")
    late = dict(zip("abc", (0.0, *behind), strict=True))
    lanes = [(x, y) for x in "abc" for y in "abc" if x != y]
    arrivals = dict(zip(lanes, took, strict=True))
    for name in "abc":
        came = sorted((1.0 + s, (f"{x}.1", 1)) for (x, y), s in arrivals.items() if y == name)
        write(folder, f"{name}.1", [(at - late[name], who) for at, who in [(1.0, None), *came]])
    shown = {(e.actor, e.number): e.common_at for e in timeline(open_tapes(folder))}
    offsets = clock_offsets(open_tapes(folder))
    for each in open_tapes(folder):
        for record in each.records():
            if isinstance(record, Event) and record.clock:
                [(sender, number)] = record.clock.items()
                assert shown[each.incarnation, record.n] >= shown[sender, number]
                sent = 1.0 - late[sender[0]] + offsets[sender]
                assert record.at + offsets[each.incarnation] >= sent - 1e-9
