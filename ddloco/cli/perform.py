"""The command ``ddloco perform``: runs a user's own actors, all of them here or some on each host.

The actors are defined by a program (``ddloco.stage``); this module makes their sockets,
folders and addresses, as ``single_process`` and ``serve`` do for the actors of a job.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from clocks import actor_of
from ddloco.cli.ask import complain
from ddloco.job.config import override_said
from ddloco.job.keys import load_curve
from ddloco.monitoring.live_display import follow
from ddloco.monitoring.watch import say
from ddloco.nodes.exit_codes import FOUND, HELD
from ddloco.nodes.incarnation_registrar import newest_on_tape
from ddloco.nodes.serve import is_loopback
from ddloco.nodes.tapes.code_version import code_version
from ddloco.replayer.program_replay import program_start_point
from ddloco.stage.actors.effects import Finish
from ddloco.stage.driver.endpoints import dial, new_endpoint
from ddloco.stage.driver.resume import Start, StartPoint, check_said, place_outside
from ddloco.stage.files.addresses import check_dial, check_listen
from ddloco.stage.files.run_folder import (
    JOB_FILE,
    SNAPSHOTS,
    address_file,
    next_folder,
    open_folder,
)
from ddloco.stage.files.toml import ConfigError, read_toml
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.entry_point import NamedError
from ddloco.stage.process.signals import stop_on_signal
from ddloco.stage.programs.program import LoadedProgram, load_program
from ddloco.stage.programs.runner import ProgramRunner
from snapshot import SnapshotError, StorageError, Store
from transport.curve_auth import Curve
from transport.zeromq import ZmqEndpoint, open_context

ANYWHERE = "tcp://127.0.0.1:*"
"""The default address of an actor that others on this machine dial."""


def perform(given: argparse.Namespace) -> int:
    """Run ``ddloco perform``; returns its exit code."""
    try:
        here = find_programs()
        loaded = load_program(given.program, options_said(given.overrides))
        names = _names(loaded, given.only)
        at = _addresses(loaded, names, given.at)
        curves = {name: _curve(given.keys, loaded, name) for name in names}
        _check_binds(loaded, names, at, keys=given.keys is not None)
        folder = given.folder or next_folder(here / "runs", loaded.name)
        start_point = _start_point(loaded, given.snapshot, folder, trust=given.trust)
        open_folder(folder, loaded, overwrite=given.overwrite, join=bool(given.only))
        place = given.place or str((folder / SNAPSHOTS).absolute())
        runner = ProgramRunner(loaded, folder, place, code_version(), start_point)
        finishes = trio.run(_run, runner, names, at, curves)
    except (ConfigError, NamedError, SnapshotError, StorageError) as error:
        return complain(error)
    return _conclude(folder, finishes)


def find_programs() -> Path:
    """Make programs importable from the current folder; returns it. Programs are built on ddloco's
    packages, which are imported already and so take precedence over modules of the same name."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def options_said(overrides: Sequence[str]) -> dict[str, Any]:
    """Convert ``--set key=value`` options to arguments of the program's function.

    Raises:
        ConfigError: one does not have that form.
    """
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
    listeners = loaded.listeners()
    at = dict.fromkeys((name for name in listeners if name in names), ANYWHERE)
    for each in said:
        name, equals, address = each.partition("=")
        if not equals or name not in listeners:
            whom = (
                f"one of {', '.join(listeners)}"
                if listeners
                else "the name of an actor that others dial; there is none"
            )
            raise ConfigError(f"--at {each}: want NAME=ADDRESS, where NAME is {whom}")
        check = check_listen if name in names else check_dial
        check(f"--at {name}:", address)
        at[name] = address
    for name in names:
        for other in loaded.program.roles[name].dials:
            if other not in at:
                raise ConfigError(f"--only: {name} dials {other}; say where with --at {other}=...")
    return at


def _curve(keys: Path | None, loaded: LoadedProgram, name: str) -> Curve | None:
    return load_curve(keys, name, loaded.listeners()) if keys is not None else None


def _check_binds(
    loaded: LoadedProgram, names: Sequence[str], at: Mapping[str, str], *, keys: bool
) -> None:
    """Refuse to listen on addresses other than loopback without keys."""
    for name in loaded.listeners():
        if name in names and not keys and not is_loopback(at[name]):
            raise ConfigError(
                f"--at {name}={at[name]}: anyone who reaches this address could take part; make "
                f"keys with `ddloco keys DIR --names {','.join(loaded.program.roles)}` and pass "
                "them with --keys DIR"
            )


def _start_point(
    loaded: LoadedProgram, said: str, folder: Path, *, trust: bool
) -> StartPoint[Start] | None:
    if not said:
        return None
    place, snapshot = place_outside(said, folder)
    check_said(said, place, "", trust=trust)
    try:
        return program_start_point(place, snapshot, loaded)
    except SnapshotError:
        _check_roles(place, snapshot, loaded)
        raise


def _check_roles(place: str, snapshot: str, loaded: LoadedProgram) -> None:
    """Refuse a snapshot of actors that the program does not have.

    Raises:
        SnapshotError: names them, and the options with which the run was recorded, if its folder
            is there.
    """
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


async def _run(
    runner: ProgramRunner,
    names: Sequence[str],
    at: Mapping[str, str],
    curves: Mapping[str, Curve | None],
) -> dict[str, Finish]:
    async with open_context() as context:
        endpoints, addresses = await _connected(runner, names, at, curves, context)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_on_signal, runner.request_stop)
            for name in names:
                nursery.start_soon(follow, runner.folder, name, SafeConsole())
            finishes = await runner.run(endpoints, addresses)
            nursery.cancel_scope.cancel()
    return finishes


async def _connected(
    runner: ProgramRunner,
    names: Sequence[str],
    at: Mapping[str, str],
    curves: Mapping[str, Curve | None],
    context: Any,
) -> tuple[dict[str, ZmqEndpoint], dict[str, str]]:
    """Create every actor's endpoint, by incarnation: listeners first, then all dials; returns also
    where the actors listen that others dial, by name."""
    addresses, incarnations = dict(at), {name: _incarnation(runner, name) for name in names}
    endpoints = {incarnations[name]: new_endpoint(context, curves[name]) for name in names}
    for name in names:
        if name in at:
            endpoint = endpoints[incarnations[name]]
            addresses[name] = await _listen(endpoint, runner.folder, name, at[name])
    for name in names:
        for other in runner.loaded.program.roles[name].dials:
            try:
                await dial(
                    endpoints[incarnations[name]], other, addresses[other], incarnations[name]
                )
            except OSError as error:
                raise ConfigError(f"--at {other}={addresses[other]}: {error.strerror}") from None
    return endpoints, addresses


async def _listen(endpoint: ZmqEndpoint, folder: Path, name: str, wanted: str) -> str:
    try:
        address = await endpoint.listen(wanted)
    except OSError as error:
        raise ConfigError(f"--at {name}={wanted}: {error.strerror}") from None
    address_file(folder, name).write_text(address)
    say(f"{name} listens at {address}")
    return address


def _incarnation(runner: ProgramRunner, name: str) -> str:
    fresh = f"{name}.{newest_on_tape(runner.folder / 'tapes', name) + 1}"
    return runner.start_point.incarnation(name) if runner.start_point is not None else fresh


def _conclude(folder: Path, finishes: Mapping[str, Finish]) -> int:
    for incarnation, finish in finishes.items():
        say(f"{incarnation} {finish.status}: {finish.reason}")
    say(f"replay it with: ddloco replay {folder}")
    return (
        FOUND if any(each.status in ("failed", "bad-input") for each in finishes.values()) else HELD
    )
