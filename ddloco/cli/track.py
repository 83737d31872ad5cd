"""The command ``ddloco track``: a run's metrics for an experiment tracker."""

import argparse
from contextlib import closing
from functools import partial

import trio

from ddloco.cli.ask import look
from ddloco.config.job import load_job
from ddloco.config.run_folder import JOB_FILE
from ddloco.monitoring.live_display import LogTail
from ddloco.monitoring.log_metrics import LogMetrics
from ddloco.monitoring.trackers import tracker
from ddloco.monitoring.watch import until_signal

LOOK_S = 1.0
"""Seconds between two looks at the log of a running job."""


def track(given: argparse.Namespace) -> int:
    """``ddloco track``: read the log of a run, and follow it with ``--follow``."""

    async def read() -> None:
        job = load_job(given.folder / JOB_FILE)
        settings = {"job": job.id, "task": job.job.task, "learners": job.job.learners}
        sinks = [tracker(said, given.folder.name, settings) for said in given.to]
        with closing(LogMetrics(job, sinks)) as metrics:
            await until_signal(partial(_read, LogTail(given.folder), metrics, given.follow))

    return look(read)


async def _read(tail: LogTail, metrics: LogMetrics, follow: bool) -> None:
    while True:
        for line in tail.new_lines():
            metrics.take(line)
        if metrics.ended or not follow:
            return
        await trio.sleep(LOOK_S)
