"""The command ``ddloco track``: a run's metrics for an experiment tracker."""

import argparse
from contextlib import closing
from functools import partial

import trio

from ddloco.cli.ask import look
from ddloco.job.config import load_job
from ddloco.monitoring.log_metrics import LOOK_S, LogMetrics
from ddloco.monitoring.trackers import open_trackers
from ddloco.monitoring.watch import until_signal
from ddloco.stage.files.run_folder import JOB_FILE, LOG_FILE
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.log_tail import LogTail


def track(given: argparse.Namespace) -> int:
    async def read() -> None:
        job = load_job(given.folder / JOB_FILE)
        sinks = open_trackers(given.to, given.folder.name, job)
        with closing(LogMetrics(job, sinks)) as metrics:
            tail = LogTail(given.folder)
            await until_signal(partial(_read, tail, metrics, given.follow))
        if tail.unread:
            said = (
                f"{given.folder / LOG_FILE}: {tail.unread} lines do not say what their events say"
            )
            SafeConsole(stderr=True).print(f"warning: {said}; left out", soft_wrap=True)

    return look(read)


async def _read(tail: LogTail, metrics: LogMetrics, follow: bool) -> None:
    while True:
        tail.give(metrics.take)
        if metrics.ended or not follow:
            return
        await trio.sleep(LOOK_S)
