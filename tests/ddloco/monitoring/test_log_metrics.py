"""A run's log becomes curves: of every learner, of the model, and of the job."""

import json

import pytest
import trio

from ddloco.job.config import job_from
from ddloco.monitoring import trackers
from ddloco.monitoring.log_metrics import LogMetrics, track_run
from ddloco.monitoring.trackers import Rows, tracker
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.log_tail import LogTail

JOB = job_from({"job": {"task": "a:b", "learners": 2, "steps": 8}}, "test")


def step(who, n, loss, **more):
    """A line of a finished step."""
    times = {"at": float(n), "step_s": 0.5, "tokens": 10}
    return {"event": "step", "actor": who, "step": n, "loss": loss, **times, **more}


def merge(t, **more):
    """A line of a merge."""
    counts = {"live": 2, "taking_part": 2, "averaged": 1}
    return {"event": "merge", "actor": "syncer", "t": t, "fragment": 0, **counts, **more}


LINES = [
    step("learner-0", 1, 4.0, metrics={"accuracy": 0.5}),
    step("learner-0", 2, 2.0, metrics={"accuracy": 1.0}),
    step("learner-1", 1, None),
    {"event": "joined", "actor": "syncer", "learner": "learner-0.1"},
    merge(2, merged_tokens=20, goodput=0.5, computing_s=1.0, inner_steps=3),
    step("learner-1", 2, 1.0),
    {
        "event": "result",
        "actor": "syncer",
        "held_out_loss": 0.25,
        "metrics": {"accuracy": 0.75},
        "t": 2,
    },
    {"event": "traffic", "actor": "syncer", "sent_bytes": 7, "received_bytes": 9},
]


class Kept:
    """A sink that keeps what it is given."""

    def __init__(self):
        self.points, self.closed = [], False

    def gauge(self, name, value, t, **labels):
        """One point."""
        self.points.append((name, value, t, *labels.values()))

    def close(self):
        """The end."""
        self.closed = True


def test_every_merge_is_a_point_in_time():
    """With the mean of what each learner has had since; NaN, which is null in logs, is left out."""
    sink = Kept()
    metrics = LogMetrics(JOB, [sink])
    for line in LINES:
        assert not metrics.ended or line["event"] == "traffic"
        metrics.take(line)
    metrics.close()

    assert ("learner_loss", 3.0, 2, "learner-0") in sink.points
    assert ("learner_metric", 0.75, 2, "learner-0", "accuracy") in sink.points
    assert ("learner_tokens", 20.0, 2, "learner-0") in sink.points
    assert [("learner_loss", 1.0, 2, "learner-1")] == [
        point for point in sink.points if point[0] == "learner_loss" and point[-1] == "learner-1"
    ]
    assert ("averaged", 1.0, 2) in sink.points
    assert ("merged_tokens", 20.0, 2) in sink.points
    assert ("held_out_loss", 0.25, 2) in sink.points
    assert ("held_out_metric", 0.75, 2, "accuracy") in sink.points
    assert ("sent_bytes", 7.0, 2, "syncer") in sink.points
    assert any(name == "goodput" for name, *_ in sink.points)
    assert metrics.ended
    assert sink.closed


def test_what_learners_elsewhere_report_is_a_curve():
    """A syncer's log without their steps has their losses at intervals."""
    sink = Kept()
    metrics = LogMetrics(JOB, [sink])
    reported = {"learner-0": [3, 4.0], "learner-1": [2, None]}
    metrics.take({"event": "losses", "actor": "syncer", "learners": reported})
    metrics.take(merge(2))

    assert ("learner_loss", 4.0, 2, "learner-0") in sink.points
    assert ("learner_step", 3.0, 2, "learner-0") in sink.points
    assert not [point for point in sink.points if "learner-1" in point]


def test_points_of_a_global_step_are_one_row():
    """The newest value of each tag; the last row is written at the end."""
    written, ended = [], []
    rows = Rows(lambda t, row: written.append((t, row)), lambda: ended.append(True))
    for name, value, t in (("a", 1.0, 1), ("a", 2.0, 1), ("b", 3.0, 1), ("a", 4.0, 2)):
        rows.gauge(name, value, t, learner="x")
    assert [(1, {"a/x": 2.0, "b/x": 3.0})] == written
    rows.close()

    assert (2, {"a/x": 4.0}) == written[-1]
    assert ended == [True]


@pytest.mark.parametrize("kind", ["tensorboard", "wandb", "trackio", "mlflow"])
@pytest.mark.filterwarnings("default")  # Of other packages.
def test_a_run_is_tracked_offline(kind, tmp_path, monkeypatch):
    """With each tracker that is installed; something is stored, and nothing leaves the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    pytest.importorskip({"tensorboard": "tensorboardX"}.get(kind, kind))
    where = {"tensorboard": "curves", "mlflow": f"sqlite:///{tmp_path}/mlflow.db"}.get(kind, "demo")
    metrics = LogMetrics(JOB, [tracker(f"{kind}:{where}", "run-7", {"learners": 2})])
    for line in LINES:
        metrics.take(line)
    metrics.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    assert b"learner_loss" in stored
    assert b"held_out_loss" in stored


def test_the_command_reads_a_run_folder(tmp_path, capsys):
    """Afterwards, or while it runs until the result."""
    from ddloco.cli.parser import main

    pytest.importorskip("tensorboardX")
    (tmp_path / "job.toml").write_text('[job]\ntask = "a:b"\nlearners = 2\n')
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    for more in ([], ["--follow"]):
        command = ["track", str(tmp_path), "--to", f"tensorboard:{tmp_path}/curves", *more]
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert 0 == ended.value.code

    assert list((tmp_path / "curves").glob("events*"))


ODD = (None, True, -1, 1e999, "text", [], [[]], {}, {"learner-0": 7}, ["a", "b", "c"])
"""What may stand in a field instead of what belongs there."""


def odd_lines():
    """Each line without each of its fields, and with something else in it."""
    losses = {"event": "losses", "actor": "syncer", "at": 1.0, "learners": {"learner-0": [3, 0.5]}}
    for line in [*LINES, losses]:
        for field in line.keys() - {"event", "actor"}:
            yield {key: value for key, value in line.items() if key != field}
            yield from ({**line, field: odd} for odd in ODD)


def test_no_line_of_a_log_ends_the_command(tmp_path, capsys):
    """What it cannot read it counts, and says; what comes after is tracked."""
    from ddloco.cli.parser import main

    odd = list(odd_lines())
    tail, metrics = LogTail(tmp_path), LogMetrics(JOB, [Kept()])
    lines = [*(line for line in odd if line["event"] != "result"), *LINES]
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    tail.give(metrics.take)
    assert metrics.ended
    assert 0 < tail.unread < len(lines)

    pytest.importorskip("tensorboardX")
    (tmp_path / "job.toml").write_text('[job]\ntask = "a:b"\nlearners = 2\n')
    with pytest.raises(SystemExit) as ended:
        main(["track", str(tmp_path), "--to", f"tensorboard:{tmp_path}/curves"])
    assert 0 == ended.value.code
    assert "lines do not say what their events say; left out" in capsys.readouterr().err


@pytest.mark.parametrize("said", ["nowhere", "wandb:", "nothing:x", "prometheus:a:b", ":x"])
def test_what_is_no_tracker_is_refused(said, capsys, tmp_path):
    """In one line that lists what there is."""
    from ddloco.cli.parser import main

    (tmp_path / "job.toml").write_text('[job]\ntask = "a:b"\n')
    with pytest.raises(SystemExit) as ended:
        main(["track", str(tmp_path), "--to", said])
    [line] = capsys.readouterr().err.splitlines()

    assert 2 == ended.value.code
    assert "prometheus:" in line
    assert said in line


async def test_a_run_is_tracked_to_its_last_line(tmp_path, monkeypatch):
    """What is logged is sent while the job runs, and at its end what was logged just before."""
    monkeypatch.setattr("ddloco.monitoring.log_metrics.LOOK_S", 0.01)
    sink, done, said = Kept(), trio.Event(), []
    (tmp_path / "log.jsonl").write_text("")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(track_run, tmp_path, JOB, [sink], done, said.append)
        with (tmp_path / "log.jsonl").open("a") as log:
            log.writelines(f"{json.dumps(line)}\n" for line in LINES[:-1])
            log.flush()
            with trio.fail_after(10):
                while ("learner_loss", 3.0, 2, "learner-0") not in sink.points:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            log.write(f"{json.dumps(LINES[-1])}\n")
        done.set()

    assert ("sent_bytes", 7.0, 2, "syncer") in sink.points
    assert sink.closed
    assert not said


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("the server\nis gone"), "OSError: the server is gone"),
        (ValueError("no such project"), "TrackerError: ValueError: no such project"),
    ],
)
def test_a_tracker_that_fails_ends_its_command(tmp_path, monkeypatch, capsys, error, words):
    """In one line, with the exit code of what may pass."""
    from ddloco.cli.parser import main

    class Failing(Kept):
        def gauge(self, name, value, t, **labels):
            raise error

    monkeypatch.setattr(trackers, "TensorBoard", lambda path: Failing())
    (tmp_path / "job.toml").write_text('[job]\ntask = "a:b"\nlearners = 2\n')
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    with pytest.raises(SystemExit) as ended:
        main(["track", str(tmp_path), "--to", "tensorboard:here"])
    assert (ended.value.code, capsys.readouterr().err) == (75, f"ddloco: {words}\n")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("the server\nis gone"), "OSError: the server is gone"),
        (ValueError("no such project"), "TrackerError: ValueError: no such project"),
    ],
)
async def test_a_tracker_that_fails_does_not_end_the_job(tmp_path, error, words):
    """One line says so; a job that is ended at once closes its trackers."""

    class Failing(Kept):
        def gauge(self, name, value, t, **labels):
            raise error

    done, said, cancelled = trio.Event(), [], Kept()
    (tmp_path / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    done.set()
    await track_run(tmp_path, JOB, [Failing()], done, said.append)
    with trio.move_on_after(0):
        await track_run(tmp_path, JOB, [cancelled], trio.Event(), said.append)

    assert said == [f"tracking has ended, the job continues: {words}"]
    assert cancelled.closed


def test_trackers_before_a_bad_one_are_closed(monkeypatch):
    """None stays open if one of them cannot be used."""
    kept = Kept()
    monkeypatch.setattr(trackers, "TensorBoard", lambda path: kept)
    with pytest.raises(ConfigError, match="'nowhere' is not a tracker"):
        trackers.open_trackers(["tensorboard:here", "nowhere"], "run-7", JOB)

    assert kept.closed
