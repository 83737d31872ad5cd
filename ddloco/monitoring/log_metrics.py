"""Metrics from the log of a run, while it runs or afterwards."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import asdict

from ddloco.job.config import Job
from ddloco.monitoring.live_display import Board
from ddloco.monitoring.metrics import MERGE_FIELDS, Sink, numbers_of
from ddloco.stage.process.entry_point import in_one_line
from ddloco.stage.process.log_tail import LogTail

LOOK_S = 1.0


class TrackerError(OSError):
    """A tracker's package has failed; the text says how."""


class LogMetrics:
    """Makes points of a log's lines. Every merge is a point in time, with the mean of the losses
    and of the task's metrics that each learner has had since the last one."""

    def __init__(self, job: Job, sinks: list[Sink]) -> None:
        self.ended = False
        self._board = Board(job)
        self._sinks = sinks
        self._since: dict[str, dict[str, list[float]]] = {}
        self._tokens: dict[str, int] = {}

    def take(self, line: dict[str, Any]) -> None:
        self._board.take(line)
        match line["event"]:
            case "step":
                self._step(line)
            case "losses":
                for who, (_, loss) in line["learners"].items():
                    view = self._board.learners[who]
                    if not view.steps_logged and loss is not None:
                        self._since.setdefault(who, {}).setdefault("loss", []).append(loss)
            case "merge":
                self._merge(line)
            case "result":
                self.ended = True
                self._learners()
                self._several("", asdict(self._board.numbers))
                self._several("held_out_", {"loss": line["held_out_loss"]})
                for name, value in numbers_of(line.get("metrics") or {}).items():
                    self._gauge("held_out_metric", value, metric=name)
            case "traffic":
                fields = {key: line[key] for key in ("sent_bytes", "received_bytes")}
                self._several("", fields, actor=line["actor"])
            case _:
                pass

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def _step(self, line: dict[str, Any]) -> None:
        who = line["actor"]
        self._tokens[who] = self._tokens.get(who, 0) + line["tokens"]
        since = self._since.setdefault(who, {})
        values = {"loss": line["loss"], "step_s": line["step_s"], **(line.get("metrics") or {})}
        for name, value in numbers_of(values).items():
            since.setdefault(name, []).append(value)

    def _merge(self, line: dict[str, Any]) -> None:
        self._gauge("global_step", self._board.t)
        self._several("", {name: line.get(name) for name in MERGE_FIELDS})
        counts = {"merges": self._board.merges, "quorum": self._board.job.sync.quorum}
        self._several("", {**counts, **asdict(self._board.numbers)})
        self._learners()

    def _learners(self) -> None:
        for who, since in self._since.items():
            for name, values in since.items():
                mean = sum(values) / len(values)
                if name in {"loss", "step_s"}:
                    self._gauge(f"learner_{name}", mean, learner=who)
                else:
                    self._gauge("learner_metric", mean, learner=who, metric=name)
            if who in self._tokens:
                self._gauge("learner_tokens", self._tokens[who], learner=who)
            self._gauge("learner_step", self._board.learners[who].step, learner=who)
        self._since.clear()

    def _several(self, prefix: str, fields: dict[str, Any], **labels: str) -> None:
        for name, value in numbers_of(fields).items():
            self._gauge(f"{prefix}{name}", value, **labels)

    def _gauge(self, name: str, value: float, **labels: str) -> None:
        known, t = float(value), int(self._board.t)  # Of an odd line, they are none.
        for sink in self._sinks:
            try:
                sink.gauge(name, known, t, **labels)
            except OSError:
                raise
            except Exception as error:  # Of the tracker, and not of the line.
                raise TrackerError(in_one_line(error)) from error


async def track_run(
    folder: Path, job: Job, sinks: list[Sink], done: trio.Event, say: Callable[[str], None]
) -> None:
    """Send the metrics of a running job to trackers until ``done`` is set.

    The trackers work in a thread, because some write to a network. One that fails ends the
    tracking, and never the job.
    """
    tail, metrics = LogTail(folder), LogMetrics(job, sinks)

    def read() -> None:
        tail.give(metrics.take)

    try:
        ended = False
        while not ended:
            ended = done.is_set()
            await trio.to_thread.run_sync(read)
            with trio.move_on_after(0 if ended else LOOK_S):
                await done.wait()
        await trio.to_thread.run_sync(metrics.close)
    except trio.Cancelled:
        with suppress(Exception):
            metrics.close()
        raise
    except Exception as error:  # noqa: BLE001, whatever the tracker's package raises
        say(f"tracking has ended, the job continues: {in_one_line(error)[:300]}")
