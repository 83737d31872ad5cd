"""Numbers of a running job reach each kind of sink; what is missing is said in one line."""

import json
import socket
import sys
import urllib.request

import pytest

from ddloco.job.protocol.status import MemberStatus, Status, status_from
from ddloco.monitoring.metrics import (
    EVENTS_NAMED_MAX,
    METRICS_NAMED_MAX,
    Metrics,
    PrintedNotices,
    Prometheus,
    TensorBoard,
    TrackerError,
)
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.observers.observer_protocol import News

STATUS = {
    "t": 12,
    "merges": 5,
    "quorum": 2,
    "goodput": None,
    "live": 2,
    "uptime_s": 8.5,
    "members": [
        {
            "learner": "learner-0.1",
            "step": 40,
            "step_s": 0.5,
            "silent": True,
            "loss": 1.5,
            "metrics": {"accuracy": 0.5, "grad_norm": None},
        }
    ],
}


def news(event, seq=1, **fields):
    """One observation."""
    return News(seq, 0, event, 1.5, "syncer.1:9", fields)


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.points, self.closed = [], False

    def gauge(self, name, value, t, **labels):
        """One point."""
        self.points.append((name, value, t, labels))

    def close(self):
        """The end."""
        self.closed = True


def test_what_is_heard_becomes_points():
    """Status, merges, scores and counts of news, each as of its global step; no None."""
    sink = Kept()
    metrics = Metrics([sink])
    metrics.status(status_from(STATUS))
    metrics.news(news("merge", t=14, fragment=1, averaged=2, live=2, learners=["a"]))
    metrics.score(12, 0.5, {"accuracy": 0.75})
    metrics.news(news("result", t=16, held_out_loss=0.25, metrics={"accuracy": 0.875}))
    metrics.close()

    assert ("global_step", 12.0, 12, {}) in sink.points
    assert ("merges", 5.0, 12, {}) in sink.points
    assert ("learner_step", 40.0, 12, {"learner": "learner-0.1"}) in sink.points
    assert ("learner_silent", 1.0, 12, {"learner": "learner-0.1"}) in sink.points
    assert ("averaged", 2.0, 14, {}) in sink.points
    assert ("news", 1.0, 14, {"event": "merge"}) in sink.points
    assert ("held_out_loss", 0.5, 12, {}) in sink.points
    assert ("held_out_metric", 0.75, 12, {"metric": "accuracy"}) in sink.points
    assert ("held_out_metric", 0.875, 16, {"metric": "accuracy"}) in sink.points
    assert ("learner_loss", 1.5, 12, {"learner": "learner-0.1"}) in sink.points
    shown = {"learner": "learner-0.1", "metric": "accuracy"}
    assert ("learner_metric", 0.5, 12, shown) in sink.points
    assert not {"goodput", "learners"} & {name for name, *_ in sink.points}
    assert sink.closed


def test_names_of_metrics_are_bounded():
    """A learner that makes up ever new names makes no more time series."""
    sink = Kept()
    metrics = Metrics([sink])
    for n in range(METRICS_NAMED_MAX + 10):
        metrics.score(n, 0.5, {f"name-{n}": 1.0})

    assert METRICS_NAMED_MAX == sum(name == "held_out_metric" for name, *_ in sink.points)


def test_kinds_of_news_are_bounded():
    """A syncer that makes up ever new events makes no more time series."""
    sink = Kept()
    metrics = Metrics([sink])
    for n in range(EVENTS_NAMED_MAX + 10):
        metrics.news(news(f"event-{n}"))

    assert EVENTS_NAMED_MAX + 1 == len({labels["event"] for *_, labels in sink.points})
    assert ("news", 10.0, 0, {"event": "others"}) == sink.points[-1]


def test_prometheus_serves_the_newest():
    """An HTTP endpoint on loopback has every gauge; it is gone after closing."""
    sink = Prometheus(0)
    metrics = Metrics([sink])
    metrics.status(status_from(STATUS))
    metrics.status(status_from({**STATUS, "merges": 6}))
    metrics.score(12, 0.25)
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    metrics.close()

    assert "ddloco_merges 6.0" in lines
    assert "ddloco_held_out_loss 0.25" in lines
    assert 'ddloco_learner_step{learner="learner-0.1"} 40.0' in lines
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", sink.port)) != 0


def test_a_port_in_use_is_named():
    """A port that cannot be had is bad input, named with the option."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--prometheus {port}: Address already in use"):
            Prometheus(port)


def test_tensorboard_files(tmp_path):
    """Event files hold the tags, the learner a folder of them."""
    metrics = Metrics([TensorBoard(tmp_path / "board")])
    metrics.status(status_from(STATUS))
    metrics.score(12, 0.25)
    metrics.close()

    (file,) = (tmp_path / "board").iterdir()
    written = file.read_bytes()
    assert b"held_out_loss" in written
    assert b"learner_step/learner-0.1" in written


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    """A file where a folder should be is bad input, named with the option."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--tensorboard .*file: "):
        TensorBoard(tmp_path / "file")


@pytest.mark.parametrize(
    ("package", "make", "said"),
    [
        ("prometheus_client", lambda: Prometheus(0), r"pip install 'ddloco\[prometheus\]'"),
        ("tensorboardX", lambda: TensorBoard("x"), r"pip install 'ddloco\[tensorboard\]'"),
    ],
)
def test_a_missing_extra_says_what_to_install(monkeypatch, package, make, said):
    """Without the package one line says which extra brings it."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=said):
        make()


def test_lines_for_people():
    """One line per news, and per score."""
    said = []
    lines = PrintedNotices(said.append, as_json=False)
    lines.news(news("joined", learner="learner-0.1"))
    lines.score(8, 0.12345)

    assert "     1.5 s  joined  learner learner-0.1" == said[0]
    assert "held-out loss 0.1235 at global step 8" == said[1]


def test_lines_as_json():
    """The same as objects; a loss that is no number is null."""
    said = []
    lines = PrintedNotices(said.append, as_json=True)
    lines.news(news("joined", learner="learner-0.1"))
    lines.score(8, 0.5)
    lines.score(9, float("nan"))

    assert [
        {"event": "joined", "at": 1.5, "ref": "syncer.1:9", "learner": "learner-0.1"},
        {"event": "held out", "t": 8, "held_out_loss": 0.5},
        {"event": "held out", "t": 9, "held_out_loss": None},
    ] == [json.loads(line) for line in said]


def test_the_losses_of_learners_are_lines_of_json():
    """Of those that have reported one; text is for people, who have `status --watch`."""
    written = []
    status, early = status_from(STATUS), Status(t=1, members=(MemberStatus("a"),))
    PrintedNotices(written.append, as_json=True).status(status)
    PrintedNotices(written.append, as_json=True).status(early)
    PrintedNotices(written.append, as_json=False).status(status)
    [line] = map(json.loads, written)

    assert ("learners", 12) == (line["event"], line["t"])
    [learner] = line["learners"]
    assert ("learner-0.1", 40, 1.5) == (learner["learner"], learner["step"], learner["loss"])
    assert 0.5 == learner["metrics"]["accuracy"]


def test_a_tracker_that_fails_is_no_bug():
    """Whatever its package raises is an error of the system to the command, which says it in one
    line; its own errors of the system stay as they are."""

    class Failing(Kept):
        def gauge(self, name, value, t, **labels):
            raise self.error

    sink = Failing()
    for error, kind in ((KeyError("no project"), TrackerError), (TimeoutError(), TimeoutError)):
        sink.error = error
        with pytest.raises(kind):
            Metrics([sink]).status(status_from(STATUS))
