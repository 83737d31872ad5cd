"""The writer of a bounded tape: it begins a new file after each cut, and only there."""

from ddloco.stage.actors.effects import CaptureFlight, CaptureState
from ddloco.stage.actors.timers import Named
from ddloco.stage.tapes.retention import ChainRecorder
from replay import Tape, TapeHeader, TapeWriter, files_of, open_tapes
from transport import SetTimer, TimerFired

ME = "learner-0.1"
ORDINARY = [SetTimer(Named("t"), 1.0), CaptureFlight(-2, "syncer.1:9", b"", ())]


def cut(*works):
    """What an event asks for that brings cuts."""
    return [SetTimer(Named("t"), 1.0), *(CaptureState(n, f"syncer.1:{-n}", b"", ()) for n in works)]


def test_a_file_ends_with_the_effects_of_a_cut(tmp_path):
    """Two cuts of one event are one; a clock without this event would not do, nor an older one."""
    clock = {"syncer.1": 4}
    recorder = ChainRecorder(
        TapeWriter(tmp_path / f"{ME}.tape", TapeHeader(ME, "job-1", {}, "0", {})),
        "stop",
        lambda: dict(clock),
    )
    for n, effects in enumerate([ORDINARY, cut(-1), ORDINARY, cut(-3, -4), ORDINARY], 1):
        clock[ME] = n
        recorder.event(n, n / 4, {}, TimerFired(Named("t")))
        recorder.effects(n, effects)
    recorder.close(5, "done")

    files = files_of(tmp_path, ME)
    assert [0, 2, 4] == [after for after, _ in files]
    headers = [Tape(path).header for _, path in files]
    assert [(0, 0), (2, 1), (4, 2)] == [(each.after, each.part) for each in headers]
    assert [{}, {"syncer.1": 4, ME: 2}, {"syncer.1": 4, ME: 4}] == [each.clock for each in headers]
    assert [2, 4, 5] == [Tape(path).scan().events for _, path in files]
    [joined] = open_tapes(tmp_path)
    assert (5, "done") == (joined.events, joined.closed)
