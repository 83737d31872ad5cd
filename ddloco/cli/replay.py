"""``ddloco replay``: a run executed again, to its end or up to an event."""

import argparse
import code
import json
import os
import pdb  # noqa: T100, it is what --pdb asks for
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import msgspec
import trio
from msgspec import structs
from rich.console import Console
from rich.progress import Progress

from ddloco.cli.ask import complain, complain_of_tape
from ddloco.debugger.divergence_screen import explained, screen
from ddloco.debugger.learner_time import times_of
from ddloco.debugger.merge_without import merge_without
from ddloco.debugger.nondeterminism import sources_of
from ddloco.debugger.recorded_effects import Told, recorded_effects
from ddloco.debugger.recorded_job import RecordedJob, open_job, open_run
from ddloco.debugger.stopped_replay import StoppedReplay, replay_until
from ddloco.debugger.watch import tensor_lines, watch
from ddloco.debugger.wording import phrase
from ddloco.job.protocol.tape_facts import is_simulated
from ddloco.monitoring.live_display import PLAIN_LINE_S
from ddloco.monitoring.status_view import seconds
from ddloco.replayer.recording import check_task, is_program, job_of, open_recording
from ddloco.replayer.replay_of import replay_of
from ddloco.replayer.report import Report
from ddloco.roles.job_program import program_of
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.entry_point import NamedError
from ddloco.stage.process.terminal import quoted
from ddloco.workers.breakpoints import Turn
from ddloco.workers.executor import WorkerRequestError
from ddloco.workers.task import TaskError
from replay import Tape, TapeError
from snapshot import SnapshotError, StorageError

BAD = (
    TapeError,
    ConfigError,
    WorkerRequestError,
    NamedError,
    TaskError,
    SnapshotError,
    StorageError,
)

LONG_S = 10.0
"""A replay that takes less time needs no estimate of it."""


def replay(given: argparse.Namespace) -> int:
    if given.shell and not given.until:
        return complain("--shell: wants --until, which says where to stop")
    kind, _, merge = given.until.partition(":")
    if given.last and not given.watch:
        return complain("--last: wants --watch, which says what to look for")
    if given.watch and (given.until or given.snapshot):
        return complain("--watch: begins where the tapes begin; leave out --until and --from")
    if given.without and not (kind == "merge" and merge.isdecimal()):
        return complain("--without: wants --until merge:T, the merge that is computed again")
    console = SafeConsole(stderr=True)
    # Shown only once the replay begins, and only on terminals: otherwise it would print an empty
    # line next to an error message.
    hidden = given.pdb or not console.is_terminal
    bar = Progress(console=console, transient=True, disable=hidden)
    shown = bar.add_task("replaying", total=None)

    lines = _Lines(console)
    warn = _Differences(console)

    def progress(events: int) -> None:
        bar.update(shown, completed=events)
        lines.at(events)

    with _turns(wanted=given.pdb) as given.turns:
        try:
            if given.without:
                return _merge_without(given, int(merge), warn.add)
            if given.until:
                return _replay_until(given, warn)
            if given.watch:
                return _watch(given, warn)
            tapes = open_recording(given.folder, salvage=given.salvage)
            check_task(tapes, given.folder, given.task, trust=given.trust)
            replay = replay_of(
                given.folder,
                progress,
                warn.add,
                given.snapshot,
                task=given.task,
                salvage=given.salvage,
                trust=given.trust,
                turns=given.turns,
                tapes=tapes,
            )
            bar.update(shown, total=replay.total)
            lines.total = replay.total
            if not given.snapshot:
                _say_how_long(tapes, given, console)
            with bar:
                report = trio.run(replay.run)
        except BAD as error:
            return complain_of_tape(given, error)
    if given.json:
        print(json.dumps(_plain(report), indent=2))
    else:
        _print_report(report, given, changed=warn.any)
    return HELD if report.identical else FOUND


def _say_how_long(tapes: list[Tape], given: argparse.Namespace, console: Console) -> None:
    """Say before it begins how long the replay of a job will take, by what its steps took then:
    they are run again, as many at a time as there are cores."""
    if is_program(tapes[0].header.job) or is_simulated(tapes[0].header):
        return
    times = times_of(RecordedJob(given.folder, tapes, program_of(job_of(tapes[0]))))
    took_s = sum(each.spent.computing + each.spent.compiling for each in times)
    at_once = max(1, min(len(os.sched_getaffinity(0)), len(times)))
    if took_s / at_once >= LONG_S:
        steps = sum(each.steps for each in times)
        said = f"replaying {steps:,} steps, which took {seconds(took_s)}: about "
        console.print(f"{said}{seconds(took_s / at_once)} here", soft_wrap=True, highlight=False)


@contextmanager
def _turns(*, wanted: bool) -> Iterator[Path | None]:
    """A file by which the processes of a replay take turns at the terminal, if they do."""
    if not wanted:
        yield None
        return
    with NamedTemporaryFile(prefix="ddloco-turns-") as file:
        yield Path(file.name)


class _Differences:
    """Prints what differs before the replay starts; what several actors share is printed once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._first: dict[str, str] = {}
        self._shared: set[tuple[str, str]] = set()

    @property
    def any(self) -> bool:
        return bool(self._first)

    def add(self, what: str) -> None:
        """Print a difference, ``ACTOR: WHAT``, or that the actor has one of another actor's."""
        actor, _, said = what.partition(": ")
        first = self._first.setdefault(said, actor)
        if first == actor:
            self._print(what)
        elif (actor, first) not in self._shared:
            self._shared.add((actor, first))
            self._print(f"{actor}: as {first}")

    def _print(self, said: str) -> None:
        self._console.print(f"differs from the recording: {said}")


class _Lines:
    """Progress where there is no terminal: a line now and then."""

    def __init__(self, console: Console) -> None:
        self.total = 0
        self._console = console
        self._said_at = time.monotonic()

    def at(self, events: int) -> None:
        if self._console.is_terminal or time.monotonic() - self._said_at < PLAIN_LINE_S:
            return
        self._said_at = time.monotonic()
        said = f"replayed {events:,} of {self.total:,} events"
        self._console.print(said, soft_wrap=True, highlight=False)


def _plain(report: Report) -> dict[str, Any]:
    plain = report.as_dict()
    told = [plain["divergence"], *plain["also"]] if report.divergences else []
    for each, found in zip(told, report.divergences, strict=True):
        said = explained(found, report)
        each |= {"kind": said.kind.lower(), "what": said.what}
    return plain


def _print_report(report: Report, given: argparse.Namespace, *, changed: bool) -> None:
    for note in (*report.notes, *(f"gap: {gap}" for gap in report.gaps)):
        print(note)
    if report.divergence is not None:
        options = ["--trust"] * given.trust + (["--task", given.task] if given.task else [])
        first, recorded = report.divergence, list[Told]()
        decision = first.aspect in {"effects", "exception", "clock"}
        if first.aspect == "effects":
            where = first.actor, first.number
            recorded = recorded_effects(given.folder, *where, trust=given.trust)
        lines = screen(
            report,
            given.folder,
            changed=changed,
            options=options,
            sources={} if given.task else sources_of(given.folder, decision=decision),
            recorded=recorded,
        )
        console = SafeConsole()
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
        for each in report.divergences if given.verbose else ():
            print(each.report())
        return
    counts = "".join(f"{count:,} {what}, " for what, count in report.counts.items())
    compared = (
        f"{report.events:,} events, {counts.removesuffix(', ')} and {report.payloads:,} payloads"
    )
    if report.identical:
        print(f"identical: {compared} executed again, every one equal to the bit")
    else:
        print(f"identical as far as it was compared: {compared}; {report.lacks}")


def _replay_until(given: argparse.Namespace, warn: _Differences) -> int:
    if given.snapshot:
        raise ConfigError("--until: goes from the beginning of the tapes; leave out --from")
    run = open_run(given.folder, salvage=given.salvage, trust=given.trust)
    incarnation, number = run.resolve(given.until)
    if not given.json:
        for line in run.preface():
            print(line)
    stopped: list[str] = []

    def look(there: StoppedReplay) -> None:
        stopped.append(there.incarnation)
        if given.turns is None:
            _look_at(there, given)
            return
        with Turn(given.turns):
            _look_at(there, given)

    report = replay_until(
        run,
        incarnation,
        number,
        look,
        task=given.task,
        trust=given.trust,
        warn=warn.add,
        turns=given.turns,
    )
    if stopped:
        return HELD
    _print_report(report, given, changed=warn.any)
    return FOUND


def _watch(given: argparse.Namespace, warn: _Differences) -> int:
    run = open_job(given.folder, salvage=given.salvage, trust=given.trust)
    options = {"trust": given.trust, "task": given.task, "salvage": given.salvage}
    found, steps, report = watch(run, given.watch, last=given.last, warn=warn.add, **options)
    if given.json:
        print(json.dumps({"found": msgspec.to_builtins(found), "steps": steps}, indent=2))
    elif found is not None:
        words = ["ddloco", "replay", given.folder, "--until", found.event, "--shell"]
        print(f"{found.line()}\ngo there with: {quoted(words)}")
    else:
        print(f"it never held, after {steps:,} inner steps")
    if report.divergences:
        _print_report(report, given, changed=warn.any)
    return HELD if found is not None and not report.divergences else FOUND


def _merge_without(given: argparse.Namespace, t: int, warn: Callable[[str], None]) -> int:
    run = open_job(given.folder, salvage=given.salvage, trust=given.trust)
    found = merge_without(run, t, given.without, task=given.task, trust=given.trust, warn=warn)
    if given.json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        print("\n".join(found.lines()))
    return HELD


def _look_at(there: StoppedReplay, given: argparse.Namespace) -> None:
    before = f"{there.incarnation}:{there.number}"
    if given.json:
        tensors = msgspec.to_builtins([structs.asdict(each) for each in there.tensors])
        plain = {"before": before, "status": there.status, "arrays": there.arrays()}
        plain |= {"tensors": tensors}
        print(json.dumps(plain, indent=2))
        return
    print(f"stopped before {before}: {phrase(there.event)}")
    for name, part in there.runners.items():
        print(f"  {name} has handled event {part.actor.number} and holds {len(part.arrays)} arrays")
    print(f"  arrays of {there.incarnation}: {', '.join(there.arrays()) or 'none'}")
    if there.tensors:
        print("  state of its worker after the step that it was asked for last:")
    for line in tensor_lines(there.tensors):
        print(f"    {line}")
    names: dict[str, Any] = {
        "replay": there,
        "run": there.run,
        "machine": there.machine,
        "status": there.status,
        "event": there.event,
        "array": there.array,
        "arrays": there.arrays,
        "tensors": {each.name: each for each in there.tensors},
    }
    if given.shell:
        # exit() raises SystemExit, which here means no more than Ctrl-D.
        with suppress(SystemExit):
            code.interact(f"names: {', '.join(names)}; Ctrl-D ends the replay", local=names)
    elif given.pdb:
        print(f"names: {', '.join(names)}; q ends the replay")
        debug = partial(pdb.Pdb.runeval, pdb.Pdb(), "replay", names, names)
        debug()
