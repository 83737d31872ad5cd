"""Folders of tapes, and chains of files: joined, with holes, and killed while one was begun."""

import os
import sys
from pathlib import Path

import msgpack
import msgspec
import pytest

from replay import (
    Recorder,
    Tape,
    TapeError,
    TapeHeader,
    TapeWriter,
    bytes_of,
    files_of,
    open_tapes,
    tape,
)
from replay import verify as verify_tapes
from replay.tape import Closed, Effects, Event
from replay.tape_files import EVENT_SEPARATOR, whose

EVENTS_IN_A_FILE = 3


def header(incarnation="a.1", job="job-1", **more):
    return TapeHeader(incarnation, job, {"job": {"task": "x"}}, "0.1.0", {"jax": "1"}, **more)


def event(n):
    return Event(n, n / 4, msgspec.Raw(msgpack.packb({"type": "TimerFired", "timer": str(n)})))


def write(path, first=None):
    """Write a tape of three events in one file."""
    writer = TapeWriter(path, first or header())
    for n in range(1, 4):
        writer.append(event(n))
        writer.append(Effects(n, 0, bytes(16)))
    writer.close()


def record(folder, files=3, *, incarnation="a.1", closed=True):
    """Record a chain of files of three events each, all of it in ``folder``."""
    recorder = Recorder(TapeWriter(folder / f"{incarnation}.tape", header(incarnation)))
    for n in range(1, files * EVENTS_IN_A_FILE + 1):
        recorder.event(n, n / 4, {}, {"type": "TimerFired", "timer": str(n)})
        recorder.effects(n, [])
        if n % EVENTS_IN_A_FILE == 0 and n < files * EVENTS_IN_A_FILE:
            recorder.go_on(n, {incarnation: n})
    recorder.close(files * EVENTS_IN_A_FILE, "done" if closed else None)
    return [path for _, path in files_of(folder, incarnation)]


def open_files():
    """How many this process has."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def numbers(opened):
    return [each.n for each in opened.records() if isinstance(each, Event)]


# Folders.


def test_the_tapes_of_a_folder_are_opened_in_order_of_names(tmp_path):
    """A run folder, its folder of tapes, or one tape may be given; all are scanned."""
    for name in ("b.1", "a.2", "a.1"):
        write(tmp_path / "tapes" / f"{name}.tape", first=header(name))
    (tmp_path / "tapes" / "notes.txt").write_text("no tape")

    for place in (tmp_path, tmp_path / "tapes"):
        tapes = open_tapes(place)
        assert [each.incarnation for each in tapes] == ["a.1", "a.2", "b.1"]
        assert [each.events for each in tapes] == [3, 3, 3]
    [opened] = open_tapes(tmp_path / "tapes" / "a.2.tape")
    assert (opened.incarnation, opened.events) == ("a.2", 3)


def test_an_empty_folder_is_refused(tmp_path):
    """Where no tape is, the folder is named; one that is missing is said to be."""
    with pytest.raises(TapeError, match=rf"^{tmp_path}: no tapes here; want a run folder$"):
        open_tapes(tmp_path)
    with pytest.raises(TapeError, match=rf"^{tmp_path}/nowhere: no such folder$"):
        open_tapes(tmp_path / "nowhere")


def test_a_folder_of_runs_names_the_newest(tmp_path):
    """Two of its runs with tapes, so that the next command can be right."""
    for second, name in enumerate(("old", "older-run", "new", "newer")):
        write(tmp_path / name / "tapes" / "a.1.tape")
        os.utime(tmp_path / name / "tapes", (second, second))
    with pytest.raises(TapeError) as caught:
        open_tapes(tmp_path)
    said = f"no tapes here; want a run folder, such as {tmp_path}/newer or {tmp_path}/new"
    assert f"{tmp_path}: {said}" == str(caught.value)


def test_tapes_of_two_jobs_in_one_folder_are_refused(tmp_path):
    """Both jobs and both files are named."""
    write(tmp_path / "a.1.tape")
    write(tmp_path / "b.1.tape", first=header("b.1", "job-2"))

    with pytest.raises(TapeError, match=r"b\.1\.tape: .*of job job-2, while a\.1\.tape is of"):
        open_tapes(tmp_path)


def test_two_tapes_of_one_incarnation_are_refused(tmp_path):
    """A second beginning is named; it would be the same events twice."""
    write(tmp_path / "a.1.tape")
    TapeWriter(tmp_path / "a.1@3.tape", header(after=3)).close()

    with pytest.raises(TapeError, match=r"a\.1@3\.tape: .*of a\.1, as is a\.1\.tape"):
        open_tapes(tmp_path)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("copy", "a tape of a.1; its file is named for copy"),
        ("a.2", "a tape of a.1; its file is named for a.2"),
        ("b.1@3", "a tape of a.1; its file is named for b.1"),
    ],
)
def test_a_tape_under_another_name_is_refused(tmp_path, name, said):
    """The header and the file's name say whose it is, and must agree; so in a folder and alone."""
    write(tmp_path / f"{name}.tape")

    for place in (tmp_path, tmp_path / f"{name}.tape"):
        with pytest.raises(TapeError, match=said):
            open_tapes(place)


# Chains.


def test_a_chain_is_read_as_one_tape(tmp_path):
    """Every record once, in order; the header is the first file's, the end the last one's."""
    paths = record(tmp_path)
    record(tmp_path, 1, incarnation="b.1")

    assert ["a.1.tape", "a.1@3.tape", "a.1@6.tape"] == [path.name for path in paths]
    chain, single = open_tapes(tmp_path)
    assert list(range(1, 10)) == numbers(chain)
    assert (9, "done", None) == (chain.events, chain.closed, chain.truncated_at)
    assert ("a.1", 0, False) == (chain.incarnation, chain.header.after, chain.dropped)
    assert Closed(9, "done") == list(chain.records())[-1]
    assert ("b.1", 3) == (single.incarnation, single.events)
    verdicts, between = verify_tapes([chain, single], lambda _: None)
    assert ([], []) == (between, [said for each in verdicts for said in each.problems])
    assert [9, 3] == [each.events for each in verdicts]


@pytest.mark.parametrize("gone", [1, 2])
def test_what_is_left_of_a_chain_is_a_tape(tmp_path, gone):
    """Without its first files it begins after an event, with the clock of then, and says so."""
    paths = record(tmp_path)
    for path in paths[:gone]:
        path.unlink()

    [left] = open_tapes(tmp_path)
    assert left.dropped
    assert (3 * gone, {"a.1": 3 * gone}) == (left.header.after, left.header.clock)
    assert list(range(3 * gone + 1, 10)) == numbers(left)
    assert (9, "done") == (left.events, left.closed)
    assert [[]] == [each.problems for each in verify_tapes([left], lambda _: None)[0]]


def test_a_hole_is_named(tmp_path):
    """A file that is missing between others: its events, and the files around it."""
    _, middle, _ = record(tmp_path)
    middle.unlink()

    with pytest.raises(TapeError, match=r"a\.1@6\.tape: .*events 4 to 6 are missing: a\.1\.tape"):
        open_tapes(tmp_path)


def test_files_that_overlap_are_refused(tmp_path):
    """A file that begins before the other ends is of another run."""
    _, second, _ = record(tmp_path)
    second.unlink()
    TapeWriter(second.with_name("a.1@2.tape"), header(after=2, part=1)).close()

    with pytest.raises(TapeError, match=r"begins after event 2, but a\.1\.tape ends after 3"):
        open_tapes(tmp_path)


def test_a_file_cut_short_is_forgiven_at_the_end_only(tmp_path):
    """The last file of a process that was killed ends anywhere; the one before it is whole."""
    *_, middle, last = record(tmp_path)
    whole = last.read_bytes()
    last.write_bytes(whole[:-3])
    [opened] = open_tapes(tmp_path)
    assert opened.truncated_at is not None
    assert list(range(1, 10)) == numbers(opened)

    last.write_bytes(whole)
    middle.write_bytes(middle.read_bytes()[:-3])
    with pytest.raises(TapeError, match=r"a\.1@3\.tape: .*ends within a record, though a\.1@6"):
        open_tapes(tmp_path)


def test_a_flipped_byte_in_any_file_is_noticed(tmp_path):
    """Damage is damage, in a header as in a record: nothing of it is taken for a kill."""
    paths = record(tmp_path)
    for path in paths:
        whole = path.read_bytes()
        for byte in range(0, len(whole), 7):
            path.write_bytes(whole[:byte] + bytes([whole[byte] ^ 1]) + whole[byte + 1 :])
            with pytest.raises(TapeError):
                open_tapes(tmp_path)
        path.write_bytes(whole)
    assert list(range(1, 10)) == numbers(open_tapes(tmp_path)[0])


def test_killed_at_every_byte_of_a_new_file(tmp_path):
    """Until its header is whole the new file is none: the chain ends behind the cut, and reads."""
    *before, last = record(tmp_path, closed=False)
    whole = last.read_bytes()
    ends = len(whole)
    while ends and len(numbers_or_none(last, whole[:ends])) > 0:
        ends -= 1

    for size in range(ends + 1):
        last.write_bytes(whole[:size])
        [opened] = open_tapes(tmp_path)
        assert list(range(1, 7)) == numbers(opened), size
        assert (6, None) == (opened.events, opened.closed)
    last.unlink()
    assert list(range(1, 7)) == numbers(open_tapes(tmp_path)[0])
    # If the file before it were gone too, it could not be known that nothing is missing.
    last.write_bytes(b"")
    before[-1].unlink()
    with pytest.raises(TapeError, match=r"a\.1@6\.tape: .*events 4 to 6, which came before it"):
        open_tapes(tmp_path)


def numbers_or_none(path, data):
    """The events of a file with these bytes; none where it has not begun."""
    path.write_bytes(data)
    try:
        return numbers(Tape(path))
    except TapeError:
        return []


def test_a_first_file_that_was_not_begun_is_no_chain(tmp_path):
    """It is unknown what a tape without a header held."""
    (tmp_path / "a.1.tape").write_bytes(b"ddlo")

    with pytest.raises(TapeError, match="too short to be a tape"):
        open_tapes(tmp_path)
    (tmp_path / "a.1.tape").rename(tmp_path / "a.1@5.tape")
    with pytest.raises(TapeError, match="too short to be a tape"):
        open_tapes(tmp_path)
    first, *_ = record(tmp_path)
    (tmp_path / "a.1@5.tape").unlink()
    first.write_bytes(b"ddlo")
    with pytest.raises(TapeError, match=r"a\.1\.tape: .*too short to be a tape"):
        open_tapes(tmp_path)


def test_where_no_file_can_be_begun_the_old_one_goes_on(tmp_path, monkeypatch):
    """A disk that was full just then costs nothing but the cut; the next file follows as ever."""
    recorder = Recorder(TapeWriter(tmp_path / "a.1.tape", header()))
    fds = open_files()
    for n in range(1, 7):
        recorder.event(n, 0.0, {}, "x")
        recorder.effects(n, [])
        if n == 2:
            with monkeypatch.context() as patch:
                patch.setattr("replay.tape.os.write", lambda _, data: len(data) // 2)
                recorder.go_on(n, {"a.1": n})
        if n == 4:
            recorder.go_on(n, {"a.1": n})
    assert fds == open_files()
    recorder.close(6, "done")

    assert {"a.1.tape", "a.1@2.tape", "a.1@4.tape"} == {each.name for each in tmp_path.iterdir()}
    [opened] = open_tapes(tmp_path)
    assert list(range(1, 7)) == numbers(opened)
    assert "done" == opened.closed


def test_a_recorder_of_nothing_goes_on_with_nothing(tmp_path):
    """Without a tape there is no chain."""
    recorder = Recorder(None)
    recorder.go_on(3, {})
    recorder.close(3, "done")

    assert [] == list(tmp_path.iterdir())


def test_names_of_files(tmp_path):
    """A name says whose a file is and where it begins; files are found in the order of events."""
    assert ("learner-0.1", 0) == whose(tmp_path / "learner-0.1.tape")
    assert ("learner-0.12", 345) == whose(tmp_path / f"learner-0.12{EVENT_SEPARATOR}345.tape")
    assert ("learner-0.1", 0) == whose(tmp_path / "learner-0.1@x².tape")
    for name in ("a.1", "a.1@100", "a.1@20", "a.10@5", "a.1@x", "b.1@7"):
        (tmp_path / f"{name}.tape").write_bytes(b"12345")
    found = files_of(tmp_path, "a.1")

    assert [(0, "a.1.tape"), (20, "a.1@20.tape"), (100, "a.1@100.tape")] == [
        (after, path.name) for after, path in found
    ]
    assert (15, None) == (bytes_of(tmp_path, "a.1"), bytes_of(tmp_path, "c.1"))


@pytest.mark.parametrize("files", [1, 3])
def test_reading_behind_an_event_gives_the_rest_of_the_tape(tmp_path, monkeypatch, files):
    """Whatever was read before: a tape is entered at a mark, and nothing is missing or doubled."""
    monkeypatch.setattr(tape, "MARK_EVENTS", 2)
    monkeypatch.setattr(sys.modules[__name__], "EVENTS_IN_A_FILE", 20 // files)
    record(tmp_path, files)
    for scanned in (False, True):
        [opened] = open_tapes(tmp_path)
        every = list(opened.records())
        last = every[-1].n
        fresh = opened if scanned else open_tapes(tmp_path)[0]
        for after in (0, 1, 2, 3, last - 1, last, 2, last + 1):
            expected = [each for each in every if each.n > after]
            assert expected == list(fresh.records(after))


def test_only_the_tapes_that_are_wanted_are_opened(tmp_path):
    """The others may be damaged; where none is wanted of those that are there, all are opened."""
    for name in ("a.1", "b.1"):
        record(tmp_path, 1, incarnation=name)
    (tmp_path / "b.1.tape").write_bytes(b"nothing like a tape")
    assert ["a.1"] == [each.incarnation for each in open_tapes(tmp_path, wanted="a.1".__eq__)]
    for wanted in (None, "c.1".__eq__):
        with pytest.raises(TapeError):
            open_tapes(tmp_path, wanted=wanted)
