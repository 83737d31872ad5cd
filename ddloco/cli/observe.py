"""The commands that ask a running job: `status`, `observe`, `stop` and `leave`."""

import argparse
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from ddloco.cli.ask import complain, look, timeout_of
from ddloco.monitoring.watch import dismiss, follow_job, say, show_status, stop_job
from ddloco.stage.files.toml import ConfigError

if TYPE_CHECKING:
    from ddloco.monitoring.metrics import Sink


def status(given: argparse.Namespace) -> int:
    if given.at:
        from ddloco.cli.debug import status_at  # noqa: PLC0415, a running job needs none of it

        if len(given.addresses) != 1:
            return complain(f"--at {given.at}: want one run folder, not {len(given.addresses)}")
        return status_at(given)
    for each in given.addresses:
        if "://" not in each and os.path.exists(each):  # noqa: PTH110, it takes any text
            said = "a run folder wants --at EVENT, such as --at merge:40 or --at syncer.1:540"
            return complain(f"{each}: no address of a running syncer; {said}")

    async def ask() -> None:
        await show_status(
            given.addresses,
            timeout_s=timeout_of(given),
            keys=given.keys,
            as_json=given.json,
            watch=given.watch,
        )

    return look(ask)


def _page(given: argparse.Namespace) -> int:
    """Serve the page of a job: the report of its run folder, if the address names that, or else
    what its syncer tells."""
    # A status needs none of these.
    from ddloco.cli.debug import live_report  # noqa: PLC0415
    from ddloco.debugger.live_page import serving  # noqa: PLC0415
    from ddloco.debugger.observed_page import ObservedPage  # noqa: PLC0415
    from ddloco.monitoring.watch import until_signal  # noqa: PLC0415
    from ddloco.stage.files.run_folder import TAPES  # noqa: PLC0415

    others = ("json", "prometheus", "tensorboard", "track", "evaluate", "best")
    beside = next((each for each in others if getattr(given, each)), "")
    if beside:
        return complain(f"--page: not with --{beside}, which is for another ddloco observe")
    scheme, _, path = given.address.partition(":")
    if scheme == "file" and (Path(path).parent / TAPES).is_dir():
        given.folder, given.salvage, given.live, given.port = Path(path).parent, False, True, 0
        given.compare = given.out = None
        return live_report(given)

    async def serve() -> None:
        page = ObservedPage(given.address, timeout_s=timeout_of(given), keys=given.keys)
        await page.look()
        with serving(page) as address:
            say(address)
            say("Ctrl-C ends it; the job goes on")
            await until_signal(page.follow)

    return look(serve)


def observe(given: argparse.Namespace) -> int:
    if given.page:
        return _page(given)
    # Status needs none of these.
    from ddloco.job.job_folder import load_own_job  # noqa: PLC0415
    from ddloco.monitoring.metrics import Metrics, PrintedNotices  # noqa: PLC0415

    async def watch() -> None:
        scored = given.evaluate
        if given.best is not None and scored is None:
            raise ConfigError(f"--best {given.best}: nothing is evaluated; add --evaluate JOB.toml")
        evaluate = None
        if scored is not None:
            evaluate = load_own_job(scored, trust=given.trust), scored, given.best
        with closing(Metrics(_sinks(given))) as metrics:
            wanted = given.prometheus is not None or given.tensorboard is not None or given.track
            prints = given.json or not wanted
            await follow_job(
                given.address,
                timeout_s=timeout_of(given),
                keys=given.keys,
                metrics=metrics,
                lines=PrintedNotices(say, as_json=given.json) if prints else None,
                evaluate=evaluate,
            )

    return look(watch)


def _sinks(given: argparse.Namespace) -> "list[Sink]":
    from ddloco.monitoring.metrics import Prometheus, TensorBoard  # noqa: PLC0415
    from ddloco.monitoring.trackers import tracker  # noqa: PLC0415
    from ddloco.stage.files.addresses import PORT_MAX  # noqa: PLC0415

    sinks: list[Sink] = []
    if given.tensorboard is not None:
        sinks.append(TensorBoard(given.tensorboard))
    if given.prometheus is not None:
        if not 0 <= given.prometheus <= PORT_MAX:
            raise ConfigError(f"--prometheus {given.prometheus}: want a port, 0 to {PORT_MAX}")
        served = Prometheus(given.prometheus)
        print(f"metrics at http://127.0.0.1:{served.port}/metrics", file=sys.stderr)
        sinks.append(served)
    return [*sinks, *(tracker(said, f"job at {given.address}", {}) for said in given.track)]


def stop(given: argparse.Namespace) -> int:
    async def ask() -> None:
        await stop_job(
            given.address, timeout_s=timeout_of(given), keys=given.keys, as_json=given.json
        )

    return look(ask)


def leave(given: argparse.Namespace) -> int:
    async def ask() -> None:
        await dismiss(
            given.address,
            given.name,
            timeout_s=timeout_of(given),
            keys=given.keys,
            as_json=given.json,
        )

    return look(ask)
