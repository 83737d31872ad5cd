"""The command ``ddloco perform``: runs a user's own actors, all of them here or some on each host.

The actors are defined by a program (``ddloco.stage.Program``).
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from clocks import actor_of
from ddloco.cli.ask import complain
from ddloco.job.config import override_said
from ddloco.monitoring.live_display import follow_log
from ddloco.monitoring.watch import say
from ddloco.stage.actors.effects import Finish
from ddloco.stage.driver.resume import Start, StartPoint, continuing, place_outside
from ddloco.stage.files.addresses import check_dial, write_address
from ddloco.stage.files.run_folder import JOB_FILE, next_folder, open_folder
from ddloco.stage.files.toml import ConfigError, read_toml
from ddloco.stage.nodes.exit_codes import AGAIN, FOUND, HELD
from ddloco.stage.nodes.node import HostedActor
from ddloco.stage.nodes.serve import Terms, check_bind, serve_role
from ddloco.stage.nodes.single_process import ANY_PORT, Cluster
from ddloco.stage.nodes.subprocesses import Processes
from ddloco.stage.nodes.waiting import tell_what_is_missing
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.entry_point import NamedError
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.signals import stop_on_signal
from ddloco.stage.process.terminal import quoted
from ddloco.stage.programs.program import LoadedProgram, find_programs, load_program
from snapshot import SnapshotError, StorageError, Store

BAD_INPUT = (ConfigError, NamedError, SnapshotError, StorageError)
"""Errors that are one line for the user, also where they come out of a nursery."""


def perform(given: argparse.Namespace) -> int:
    try:
        here = find_programs()
        loaded = replace(
            load_program(given.program, options_said(given.overrides)),
            keys=given.keys,
            chaos_file=given.chaos,
            snapshot_said=given.snapshot,
            trust=given.trust,
        )
        loaded = loaded.placed(given.place) if given.place else loaded
        names = _names(loaded, given.only)
        at = _addresses(loaded, names, given.at)
        for name in names:
            loaded.curve(name)
        _check_options(given)
        folder = given.folder or next_folder(here / "runs", loaded.name)
        start_point = _start_point(loaded, folder) if not given.only else None
        loaded = continuing(loaded, start_point)
        if given.processes:
            started: Any = Processes(loaded, folder, at)
        elif given.only:
            started = _Here(loaded, folder, names, at, with_parent=given.with_parent)
        else:
            listening = partial(_listening, folder)
            started = Cluster(loaded, folder, start_point, at=at, listening=listening)
        open_folder(folder, loaded, overwrite=given.overwrite, join=bool(given.only))
        finishes: dict[str, Finish] = trio.run(_run, started)
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            return complain("ended at once; the tapes hold everything up to here", FOUND)
        if isinstance(error := first_of(group), BAD_INPUT):
            return complain(error)
        raise
    except BAD_INPUT as error:
        return complain(error)
    if isinstance(started, Processes) and started.chaos is not None:
        say(started.chaos.summary())
    return _conclude(folder, finishes, with_parent=given.with_parent)


def _check_options(given: argparse.Namespace) -> None:
    if given.only and given.processes:
        raise ConfigError("--processes: all actors are processes here; not with --only")
    if given.chaos is not None and not given.processes:
        raise ConfigError(f"--chaos {given.chaos}: applies to processes; add --processes")


def options_said(overrides: Sequence[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {"options": {}}
    for said in overrides:
        if "=" not in said:
            raise ConfigError(f"--set {said}: want key=value, an argument of the function")
        override_said(plain, f"options.{said}")
    return plain["options"]


def _names(loaded: LoadedProgram, only: Sequence[str]) -> tuple[str, ...]:
    roles = loaded.program.roles
    for name in only:
        if name not in roles:
            raise ConfigError(f"--only {name}: no such actor; the program has {', '.join(roles)}")
    return tuple(name for name in roles if not only or name in only)


def _addresses(loaded: LoadedProgram, names: Sequence[str], said: Sequence[str]) -> dict[str, str]:
    """The addresses of the actors that others dial: those given, or else any port on loopback."""
    listeners = loaded.listeners
    at = dict.fromkeys((name for name in listeners if name in names), ANY_PORT)
    for each in said:
        name, equals, address = each.partition("=")
        if not equals or name not in listeners:
            whom = (
                f"one of {', '.join(listeners)}"
                if listeners
                else "the name of an actor that others dial; there is none"
            )
            raise ConfigError(f"--at {each}: want NAME=ADDRESS, where NAME is {whom}")
        if name in names:
            check_bind(loaded, f"--at {name}:", address)
        else:
            check_dial(f"--at {name}:", address)
        at[name] = address
    for name in names:
        for other in loaded.dials(name):
            if other not in at:
                raise ConfigError(f"--only: {name} dials {other}; say where with --at {other}=...")
    if listeners and loaded.lead not in at:
        lead = loaded.lead
        raise ConfigError(f"--only: {lead} gives numbers to all; say where with --at {lead}=...")
    return at


def _start_point(loaded: LoadedProgram, folder: Path) -> StartPoint[Start] | None:
    said = loaded.snapshot_said
    if not said:
        return None
    place, snapshot = place_outside(said, folder)
    try:
        found = loaded.start_point(said, trust=loaded.trust)
    except SnapshotError:
        _check_roles(place, snapshot, loaded)
        raise
    new = [name for name in loaded.names if not found.known(name)]
    if new:
        told = _recorded_with(Path(place).parent / JOB_FILE)
        raise SnapshotError(f"{place}: this program has {', '.join(new)}, the snapshot not{told}")
    return found


def _check_roles(place: str, snapshot: str, loaded: LoadedProgram) -> None:
    names = sorted({actor_of(part.who) for part in Store(place).load(snapshot).parts})
    strange = [name for name in names if name not in loaded.program.roles]
    if strange:
        said = f"the snapshot has {', '.join(strange)}, this program does not"
        raise SnapshotError(f"{place}: {said}{_recorded_with(Path(place).parent / JOB_FILE)}")


def _recorded_with(job_file: Path) -> str:
    """The end of an error line: the options that a program was recorded with."""
    try:
        options: dict[str, Any] = read_toml(job_file).get("options", {})
    except ConfigError:
        return ""
    said = " ".join(f"--set {name}={value}" for name, value in options.items())
    return f"; it was recorded {f'with {said}' if said else 'without --set'}"


def _listening(folder: Path, name: str, address: str) -> None:
    write_address(folder, name, address, "")
    say(f"{name} listens at {address}")


async def _run(
    started: "Cluster[LoadedProgram] | Processes[LoadedProgram] | _Here",
) -> dict[str, Finish]:
    """Run what was prepared, and show its log; ends when all actors here have ended."""
    if isinstance(started, _Here):
        return await started.run()
    program, folder, console = started.program, started.folder, SafeConsole()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, started.request_stop)
        for name in program.names:
            nursery.start_soon(follow_log, folder, name, console)
        if isinstance(started, Processes):
            outcome = await started.run()
        else:
            outcome = await started.run(partial(tell_what_is_missing, started.addresses))
        nursery.cancel_scope.cancel()
    return outcome.finishes


class _Here:
    """Some actors of a program on this host, each as if it had a process of its own."""

    def __init__(
        self,
        loaded: LoadedProgram,
        folder: Path,
        names: Sequence[str],
        at: Mapping[str, str],
        *,
        with_parent: bool,
    ) -> None:
        self._loaded, self._folder = loaded, folder
        order = [*loaded.listeners, *loaded.names]
        self._names = sorted(names, key=order.index)
        self._addresses = dict(at)
        self._with_parent = with_parent
        self._console = SafeConsole()
        self._hosted: dict[str, HostedActor] = {}
        self._scopes = {name: trio.CancelScope() for name in names}
        self.finishes: dict[str, Finish] = {}

    async def run(self) -> dict[str, Finish]:
        """Run them to their ends; those that listen begin first."""
        async with trio.open_nursery() as outer:
            if len(self._names) > 1:
                stop, leave = partial(self._ask, leave=False), partial(self._ask, leave=True)
                outer.start_soon(stop_on_signal, stop, leave)
            async with trio.open_nursery() as nursery:
                for name in self._names:
                    if name in self._loaded.listeners:
                        await nursery.start(self._serve, name)
                    else:
                        nursery.start_soon(self._serve, name)
            outer.cancel_scope.cancel()
        return self.finishes

    async def _serve(
        self, name: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        listens = False

        def listening(address: str) -> None:
            nonlocal listens
            listens, self._addresses[name] = True, address
            say(f"{name} listens at {address}")
            task_status.started()

        terms = Terms(
            with_parent=self._with_parent,
            snapshot=self._loaded.snapshot_said,
            trust=self._loaded.trust,
            signals=len(self._names) == 1,
            listening=listening,
            beside=(self._show,),
        )
        self.finishes[name] = Finish("left", "asked to before it had begun")
        with self._scopes[name]:
            served = serve_role(self._loaded, name, self._folder, self._addresses, terms)
            self.finishes[name] = await served
        if not listens:
            task_status.started()

    async def _show(self, hosted: HostedActor) -> None:
        self._hosted[hosted.name] = hosted
        if not self._with_parent:
            await follow_log(self._folder, hosted.name, self._console)

    def _ask(self, reason: str, *, leave: bool) -> None:
        for name in self._names:
            hosted = self._hosted.get(name)
            if hosted is None:
                self._scopes[name].cancel()
            elif leave:
                hosted.request_leave(reason)
            else:
                hosted.request_stop(reason)


def _conclude(folder: Path, finishes: Mapping[str, Finish], *, with_parent: bool) -> int:
    for incarnation, finish in finishes.items():
        say(f"{incarnation} {finish.status}: {finish.reason}")
        if with_parent and finish.status in ("failed", "bad-input"):
            complain(finish.reason)  # The parent process tells it.
    say(f"replay it with: {quoted(['ddloco', 'replay', folder])}")
    statuses = {each.status for each in finishes.values()}
    if statuses & {"failed", "bad-input"}:
        return FOUND
    return AGAIN if "left" in statuses else HELD
