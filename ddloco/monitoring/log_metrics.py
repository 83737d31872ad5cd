"""Metrics from the log of a run, while it runs or afterwards."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import asdict

from ddloco.job.config import Job
from ddloco.monitoring.live_display import Board
from ddloco.monitoring.metrics import MERGE_FIELDS, NUMBERS, Points, Sink, numbers_of
from ddloco.stage.process.entry_point import in_one_line
from ddloco.stage.process.log_tail import LogTail

LOOK_S = 1.0

STEP_FIELDS = ("loss", "step_s")


class LogMetrics(Points):
    """Makes points of a log's lines. Every merge is a point in time, with the mean of the losses
    and of the task's metrics that each learner has had since the last one."""

    def __init__(self, job: Job, sinks: list[Sink]) -> None:
        super().__init__(sinks)
        self.ended = False
        self._board = Board(job)
        self._since: dict[str, dict[str, list[float]]] = {}
        self._tokens: dict[str, int] = {}

    def take(self, line: dict[str, Any]) -> None:
        self._board.take(line)
        self.t = self._board.t
        match line["event"]:
            case "step":
                self._step(line)
            case "losses":
                for who, (_, loss) in line["learners"].items():
                    view = self._board.learners[who]
                    if not view.steps_logged and loss is not None:
                        self._since.setdefault(who, {}).setdefault("loss", []).append(loss)
            case "merge":
                self._gauge("global_step", self.t)
                counts = {"merges": self._board.merges, "quorum": self._board.job.sync.quorum}
                self._several(MERGE_FIELDS, line)
                self._several(counts, counts)
                self._several(NUMBERS, asdict(self._board.numbers))
                self._learners()
            case "result":
                self.ended = True
                self._learners()
                self._several(NUMBERS, asdict(self._board.numbers))
                if line["held_out_loss"] is not None:
                    self.score(self.t, float(line["held_out_loss"]), line.get("metrics"))
            case "traffic":
                self._several(("sent_bytes", "received_bytes"), line, actor=line["actor"])
            case _:
                pass

    def _step(self, line: dict[str, Any]) -> None:
        who = line["actor"]
        self._tokens[who] = self._tokens.get(who, 0) + line["tokens"]
        since = self._since.setdefault(who, {})
        values = {"loss": line["loss"], "step_s": line["step_s"], **(line.get("metrics") or {})}
        for name, value in numbers_of(values).items():
            since.setdefault(name, []).append(value)

    def _learners(self) -> None:
        for who, since in self._since.items():
            means = {name: sum(values) / len(values) for name, values in since.items()}
            own = {name: mean for name, mean in means.items() if name not in STEP_FIELDS}
            self._several(STEP_FIELDS, means, "learner_", learner=who)
            self._of_task(own, learner=who)
            if who in self._tokens:
                self._gauge("learner_tokens", self._tokens[who], learner=who)
            self._gauge("learner_step", self._board.learners[who].step, learner=who)
        self._since.clear()


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
