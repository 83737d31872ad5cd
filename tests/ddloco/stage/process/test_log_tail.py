"""The end of a log that others write: whole lines, and only those that say what a log says."""

import json

import pytest

from ddloco.stage.process.log_tail import LogTail


def wrote(folder, *lines):
    """Append lines to the log; text as it is."""
    with (folder / "log.jsonl").open("a") as log:
        for line in lines:
            log.write(line if isinstance(line, str) else f"{json.dumps(line)}\n")


def line(n, **more):
    """A line of some event."""
    return {"event": "step", "actor": "learner-0", "step": n, **more}


def test_lines_come_once_and_whole(tmp_path):
    """What is being written is read when its line has ended."""
    tail = LogTail(tmp_path)
    assert [] == tail.new_lines()
    wrote(tmp_path, line(1), '{"event": "step", "actor": "le')
    assert [line(1)] == tail.new_lines()
    wrote(tmp_path, 'arner-0", "step": 2}\n', line(3))
    assert [line(2), line(3)] == tail.new_lines()


@pytest.mark.parametrize(
    "odd",
    ["", "{", "[]", "7", '"event"', '{"event": 3, "actor": "a"}', '{"event": "step"}', "[" * 9999],
)
def test_what_is_no_line_of_a_log_is_left_out(tmp_path, odd):
    """Torn by a full disk, or of another hand."""
    wrote(tmp_path, f"{odd}\n", line(1))
    assert [line(1)] == LogTail(tmp_path).new_lines()


def test_a_line_that_cannot_be_read_is_counted(tmp_path):
    """And those after it are read."""
    wrote(tmp_path, line(1), {"event": "step", "actor": "learner-0"}, line(3))
    tail, found = LogTail(tmp_path), []
    tail.give(lambda said: found.append(said["step"]))
    assert ([1, 3], 1) == (found, tail.unread)
