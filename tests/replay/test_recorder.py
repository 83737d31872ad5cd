"""The recorder: what is on disk, when, and what happens if it cannot be written."""

import msgpack
import pytest

from replay import Recorder, Tape, TapeError, TapeHeader, TapeWriter, digest_effects
from replay.tape import Closed, Effects, Event, Raised
from transport import Redial, SetTimer, TimerFired

HEADER = TapeHeader("a.1", "job-1", {}, "0", {})


@pytest.fixture
def tape_path(tmp_path):
    """Give the path of a tape that does not exist yet."""
    return tmp_path / "a.tape"


def test_an_event_is_on_disk_before_it_is_handled(tape_path):
    """When ``event`` returns another process can read it, by its number, time and content."""
    recorder = Recorder(TapeWriter(tape_path, HEADER))

    recorder.event(1, 0.5, {"b.1": 3}, TimerFired(Redial("grace")))

    [record] = Tape(tape_path).records()
    assert isinstance(record, Event)
    assert (record.n, record.at, record.clock) == (1, 0.5, {"b.1": 3})
    assert msgpack.unpackb(record.event) == {
        "type": "TimerFired",
        "timer": {"type": "Redial", "peer": "grace"},
    }
    recorder.close(1, "done")


def test_the_digest_is_on_disk_before_any_effect_is_done(tape_path):
    """When ``effects`` or ``raised`` returns the outcome can be read, and then the end."""
    recorder = Recorder(TapeWriter(tape_path, HEADER))
    effects = [SetTimer(Redial("grace"), 1.0)]

    recorder.event(1, 0.0, {}, TimerFired(Redial("x")))
    recorder.effects(1, effects)
    assert list(Tape(tape_path).records())[1:] == [Effects(1, 1, digest_effects(effects))]
    recorder.event(2, 0.0, {}, TimerFired(Redial("y")))
    recorder.raised(2, ValueError("bad " + "x" * 2000))
    recorder.close(2, "failed")

    *_, raised, closed = Tape(tape_path).records()
    assert raised == Raised(2, ("ValueError: bad " + "x" * 2000)[:1000])
    assert closed == Closed(2, "failed")


def test_an_event_keeps_the_order_of_its_dicts(tape_path):
    """The machine sees that order, so it must be the same in the replay."""
    recorder = Recorder(TapeWriter(tape_path, HEADER))

    recorder.event(1, 0.5, {}, {"type": "Said", "body": {"y": 1, "x": 2}})
    recorder.close(1, "done")

    record, _ = Tape(tape_path).records()
    assert list(msgpack.unpackb(record.event)["body"]) == ["y", "x"]


def test_equal_effects_have_equal_digests():
    """The digest depends on the effects and their order, not on the order of a mapping."""
    one, two = SetTimer(Redial("a"), 1.0), SetTimer(Redial("b"), 1.0)

    assert digest_effects([one, two]) == digest_effects((SetTimer(Redial("a"), 1.0), two))
    assert digest_effects([{"x": 1, "y": 2}]) == digest_effects([{"y": 2, "x": 1}])
    different = [[], [one], [two], [one, two], [two, one], [one, one], [SetTimer(Redial("a"), 1.5)]]
    assert len({digest_effects(effects) for effects in different}) == len(different)
    assert {len(digest_effects(effects)) for effects in different} == {16}


def test_without_a_writer_nothing_is_recorded():
    """A recorder without a tape takes everything and keeps nothing."""
    recorder = Recorder(None)

    recorder.event(1, 0.0, {}, TimerFired(Redial("x")))
    recorder.effects(1, [])
    recorder.raised(1, ValueError())
    recorder.close(1, "done")

    assert recorder.dropped is None


def test_a_tape_that_cannot_be_written_stops_its_actor(tape_path, small_disk):
    """With on_error "stop" the failure is raised, before the event could be handled."""
    recorder = Recorder(TapeWriter(tape_path, HEADER))
    no_room = small_disk(tape_path.stat().st_size)

    with pytest.raises(TapeError, match="cannot write"), no_room:
        recorder.event(1, 0.0, {}, TimerFired(Redial("x")))
    assert recorder.dropped is None
    recorder.close(1, "tape failed")


def test_a_tape_that_cannot_be_written_is_dropped_where_the_job_says_so(tape_path, small_disk):
    """With on_error "drop" the actor continues, the reason is kept, and no more is written."""
    recorder = Recorder(TapeWriter(tape_path, HEADER), "drop")
    size = tape_path.stat().st_size

    with small_disk(size):
        recorder.event(1, 0.0, {}, TimerFired(Redial("x")))
        recorder.effects(1, [])
        recorder.close(1, "done")

    assert f"{tape_path}: byte {size}: cannot write" in recorder.dropped
    assert tape_path.stat().st_size == size
