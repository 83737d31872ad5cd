"""The commands that explain recorded runs."""

import argparse
import gc
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ddloco.cli.ask import complain, complain_of_tape
from ddloco.debugger.bundle import SUFFIX, open_bundle, write_bundle
from ddloco.debugger.cluster_status import cluster_at
from ddloco.debugger.live_page import LivePage, server_of
from ddloco.debugger.merge_processes import processes_for
from ddloco.debugger.recorded_job import is_syncer, job_in, open_run
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.debugger.report import write_report
from ddloco.debugger.run_diff import compare
from ddloco.debugger.story import story_of
from ddloco.debugger.why import (
    Told,
    why_absent,
    why_anything,
    why_event,
    why_loss,
    why_merge,
    why_nan,
    why_step,
    why_stuck,
    why_time,
)
from ddloco.stage.files.run_folder import SOURCE
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.entry_point import NamedError, in_one_line
from ddloco.stage.process.process_pool import ProcessLostError
from ddloco.stage.process.run_identity import identity_here
from ddloco.stage.process.terminal import one_line, quoted
from replay import Divergence, TapeError
from snapshot import SnapshotError, StorageError

OF_MERGES = ("merge", "absent")
"""Questions that the syncers' tapes answer alone."""

GARBAGE_OBJECTS = 100_000
"""New objects before the next search for garbage."""


def explained(
    given: argparse.Namespace,
    answer: Callable[[RecordedRun], int],
    wanted: Callable[[str], bool] | None = None,
) -> int:
    """Open the run in ``given.folder``, answer, and say in one line what is wrong with it."""
    # Tapes are many small objects that live long: looking for garbage more often finds none.
    gc.freeze()
    gc.set_threshold(GARBAGE_OBJECTS, 50, 100)
    run = None
    try:
        run = _opened(given, given.folder, wanted)
        return answer(run)
    except (TapeError, ConfigError, NamedError, SnapshotError, StorageError) as error:
        return complain_of_tape(given, error)
    except ProcessLostError as error:
        return complain(error, FOUND)
    except Divergence as found:
        said = f"{given.folder}: {found}: this program decides otherwise than the tape says"
        return complain(f"{said}; see ddloco tape verify", FOUND)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if run is None or not run.restored:
            raise  # Machines that have begun here contradict themselves only if there is a bug.
        said = "the states in the snapshot that its tapes begin with contradict each other"
        return complain(f"{given.folder}: {said}: {in_one_line(error)}")


def _opened(
    given: argparse.Namespace, path: Path, wanted: Callable[[str], bool] | None = None
) -> RecordedRun:
    return open_run(path, salvage=given.salvage, wanted=wanted, trust=given.trust)


def _before(runs: Sequence[RecordedRun]) -> list[str]:
    """What people must know before an answer: what is missing of the tapes, and where they begin;
    of several runs with the run before it."""
    many = len(runs) > 1
    return [f"{run.path}: {said}" if many else said for run in runs for said in run.preface()]


def _say(*lines: str) -> None:
    for line in lines:
        print(one_line(line))


def why(given: argparse.Namespace) -> int:
    def answer(run: RecordedRun) -> int:
        lines, plain = _answer(run, given)
        if given.json:
            print(json.dumps({"gaps": run.gaps, **plain}, indent=2))
        else:
            _say(*_before([run]), *lines)
        return HELD

    return explained(given, answer, is_syncer if given.question in OF_MERGES else None)


def _answer(run: RecordedRun, given: argparse.Namespace) -> Told:
    match given.question:
        case "merge":
            return why_merge(job_in(run), given.t)
        case "absent":
            return why_absent(job_in(run), given.learner, given.t)
        case "event":
            return why_event(run, given.event, given.depth)
        case "loss":
            return why_loss(job_in(run))
        case "nan":
            return why_nan(job_in(run))
        case "step":
            return why_step(job_in(run), given.learner, given.step)
        case "time":
            return why_time(job_in(run))
        case "stuck":
            return why_stuck(run)
        case _:
            return why_anything(job_in(run))


def story(given: argparse.Namespace) -> int:
    def answer(run: RecordedRun) -> int:
        lines = [
            each
            for each in story_of(run, given.actor)
            if (given.after is None or given.after <= each.at)
            and (given.before is None or each.at <= given.before)
        ]
        if given.json:
            plain = [msgspec.to_builtins(each) for each in lines]
            print(json.dumps({"gaps": run.gaps, "lines": plain}, indent=2))
        else:
            _say(
                *_before([run]),
                *(f"{round(e.at, 2) + 0.0:9.2f} s  {e.text}  ({e.event})" for e in lines),
            )
        return HELD

    return explained(given, answer)


def diff(given: argparse.Namespace) -> int:
    def answer(run: RecordedRun) -> int:
        other = _opened(given, given.other)
        found = compare(run, other, processes_for([run, other]))
        gaps = {str(each.path): each.gaps for each in (run, other)}
        if given.json:
            plain: dict[str, Any] = msgspec.to_builtins(found)
            print(json.dumps({"gaps": gaps, "same": found.same, **plain}, indent=2))
        else:
            _say(*_before([run, other]), *found.lines())
        return HELD if found.same else FOUND

    return explained(given, answer)


def report(given: argparse.Namespace) -> int:
    if given.live or given.port:
        return live_report(given)

    def answer(run: RecordedRun) -> int:
        compared = given.compare
        other = _opened(given, compared) if compared is not None else None
        _say(*_before([run] if other is None else [run, other]))
        print(write_report(run, given.out, other))
        return HELD

    return explained(given, answer)


def live_report(given: argparse.Namespace) -> int:
    """Serve the page of a run until Ctrl-C."""

    def answer(run: RecordedRun) -> int:
        if given.compare is not None or given.out is not None:
            option = "--out" if given.compare is None else "--compare"
            raise ConfigError(f"{option}: not with --live, which shows one run and writes no file")
        page = LivePage(given.folder, salvage=given.salvage, trust=given.trust)
        server, address = server_of(page, given.port)
        _say(*_before([run]))
        print(f"{address}\nCtrl-C ends it; the run goes on", flush=True)
        with server, suppress(KeyboardInterrupt):
            server.serve_forever()
        return HELD

    if not given.live:
        return complain(f"--port {given.port}: is of a page that is served: add --live")
    return explained(given, answer)


def bundle(given: argparse.Namespace) -> int:
    path: Path = given.path
    try:
        if path.is_dir():
            to = given.to or Path(f"{path.resolve().name}{SUFFIX}")
            write_bundle(path, to, redact=given.redact)
            opened = quoted(["ddloco", "bundle", to])
            print(f"{to}: {to.stat().st_size / 2**20:.1f} MiB; open it with: {opened}")
            return HELD
        if not path.exists():
            return complain(f"{path}: no such folder or bundle")
        folder = given.to or Path(path.name.removesuffix(SUFFIX))
        about = open_bundle(path, folder)
    except (TapeError, ConfigError) as error:
        return complain(error)
    print(f"{folder}: a run of {one_line(about.job)}")
    for difference in about.differences(identity_here({})):
        print(f"differs from the recording: {one_line(difference)}")
    if about.task and (folder / SOURCE).is_dir():
        print(f"its task is {about.task}; read {folder / SOURCE} before you let it run")
        print(f"replay it with: {quoted(['cd', folder / SOURCE])} && ddloco replay .. --trust")
    else:
        more = ["--task", about.task] if about.task else []
        print(f"replay it with: {quoted(['ddloco', 'replay', folder, *more])}")
    return HELD


def status_at(given: argparse.Namespace) -> int:
    def answer(run: RecordedRun) -> int:
        told = cluster_at(run, *run.resolve(given.at))
        if given.json:
            plain: dict[str, Any] = msgspec.to_builtins(told)
            print(json.dumps({"gaps": run.gaps, **plain}, indent=2))
        else:
            _say(*_before([run]))
            SafeConsole(soft_wrap=True).print(told.picture())
        return HELD

    [given.folder], given.salvage = given.addresses, False
    return explained(given, answer)
