"""The log: what is lost on a full disk is reported once there is room, and ends no actor."""

import errno
import json
from contextlib import closing

from ddloco.stage.process.log import ActorLog


def test_lines_that_find_no_room_are_counted(tmp_path):
    """A torn line is ended, those after it are lost, and then the log says how many."""
    path = tmp_path / "log.jsonl"
    with closing(ActorLog(path, "syncer.1")) as log:
        file = log._file._file
        room = [10**6]

        class Disk:
            def write(self, data):
                if not room[0]:
                    raise OSError(errno.ENOSPC, "No space left on device")
                data = data[: room[0]]
                room[0] -= len(data)
                return file.write(data)

            def close(self):
                file.close()

        log._file._file = Disk()
        log.observe("one", 1.0, 1, {})
        room[0] = 20
        for number in range(2, 6):
            log.observe("lost", 2.0, number, {})
        room[0] = 10**6
        log.observe("two", 3.0, 6, {"x": 1})
        log.observe("three", 4.0, 7, {})

    said, torn, *rest = path.read_text().splitlines()
    assert {"event": "one", "actor": "syncer", "at": 1.0, "ref": "syncer.1:1"} == json.loads(said)
    assert torn == '{"event":"lost","act'
    assert [("log lines lost", 4), ("two", None), ("three", None)] == [
        (each["event"], each.get("count")) for each in map(json.loads, rest)
    ]


def test_lines_have_dates_where_the_clock_is_the_walls(tmp_path):
    """In UTC, as of the actor's own clock; without a known beginning there is none."""
    path = tmp_path / "log.jsonl"
    with closing(ActorLog(path, "syncer.1", began=1_700_000_000.0)) as log:
        log.observe("one", 1.5, 1, {})
        log.began = None
        log.observe("two", 2.5, 2, {"date": "a field of its own"})

    one, two = map(json.loads, path.read_text().splitlines())
    assert one["date"] == "2023-11-14T22:13:21.500Z"
    assert "date" not in two
    assert two["date_"] == "a field of its own"
