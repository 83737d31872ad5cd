"""``--processes``: each actor is a process of its own, connected by tcp, that runs the same command
that a user types on several hosts. Faults on purpose are applied to them, and processes that a
fault ended are restarted."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import trio

from clocks import MonotonicTime, read_text
from ddloco.stage.actors.effects import Finish, Status
from ddloco.stage.files.addresses import FILE
from ddloco.stage.files.run_folder import LOG_FILE, TAPES, address_file
from ddloco.stage.nodes.exit_codes import AGAIN
from ddloco.stage.nodes.fault_injector import FaultInjector, joiners, live_schedule, relayed
from ddloco.stage.nodes.incarnation_registrar import newest_on_tape
from ddloco.stage.nodes.single_process import ANY_PORT, COMES_BACK, RETURN_S, Outcome, P
from ddloco.stage.nodes.tcp_proxy import Bundle
from ddloco.stage.process.log import ActorLog
from ddloco.stage.process.log_tail import LogTail
from ddloco.stage.process.signals import STOP, result_from

START_S_MAX = 120.0
"""How long, in seconds, a syncer may take to listen: importing JAX is slow on a busy machine."""

STOP_S_MAX = 30.0
"""How long, in seconds, learners may run after the syncer has ended, before they get a signal."""

STRAY_S_MAX = 5.0
"""The same after faults: a learner that was cut off or had just returned does not know that the job
is over. The signal lets its step end."""

STDERR_BYTES_MAX = 65536
"""How much of an actor's standard error is kept; the reason is in the last line."""

LOOK_S = 0.02
"""Interval, in seconds, at which files of other processes are read."""

STATUS: dict[int, Status] = {0: "done", 2: "bad-input", AGAIN: "left"}


@dataclass(eq=False)
class Child:
    """One process of an actor; its worker process is in the same process group. Its standard input
    is a socket, by which it is asked to stop and tells the job's result."""

    process: trio.Process
    channel: trio.SocketStream
    ended: trio.Event = field(default_factory=trio.Event)
    doomed: bool = False
    """Whether it was ended on purpose: by a fault, or because the job is over."""
    asked: bool = False
    result: dict[str, Any] | None = None

    def send(self, number: signal.Signals) -> None:
        if not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def send_worker(self, number: signal.Signals) -> None:
        """Signal the worker; the actor, in the same group, continues at once after a SIGSTOP."""
        self.send(number)
        if number == signal.SIGSTOP and not self.ended.is_set():
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGCONT)

    def ask_to_leave(self) -> None:
        self.asked = True
        with suppress(ProcessLookupError):
            self.process.terminate()

    def ask_to_stop(self) -> None:
        """Ask the actor to end its job in good order, if it still runs."""
        with suppress(OSError):
            os.write(self.channel.socket.fileno(), STOP)

    async def wait(self) -> tuple[int, str]:
        """Wait until it and its worker have ended; returns the exit status and the end of its
        standard error."""
        said = bytearray()
        async with self.channel, trio.open_nursery() as nursery:
            nursery.start_soon(self._hear, said)
            nursery.start_soon(self._hear_result)
            try:
                code = await self.process.wait()
            finally:
                # A worker that is stopped, or busy, would hold standard error open.
                self.send(signal.SIGKILL)
        self.ended.set()
        return code, said.decode(errors="replace")

    async def _hear(self, said: bytearray) -> None:
        assert self.process.stderr is not None
        async for piece in self.process.stderr:
            said += piece
            del said[:-STDERR_BYTES_MAX]

    async def _hear_result(self) -> None:
        self.result = await result_from(self.channel)


def last_words(said: str) -> str:
    """The last line with text in it, without the name of the command or an exception's frame."""
    lines = [line.strip(" |+-").removeprefix("ddloco: ") for line in said.splitlines()]
    return next((line for line in reversed(lines) if line), "")


class Processes(Generic[P]):
    """The actors of a program as child processes; ``ConfigError`` if its faults cannot be
    applied."""

    def __init__(self, program: P, folder: Path, at: Mapping[str, str] | None = None) -> None:
        self.program = program
        self.folder = folder
        self._at = at or {}
        self.outcome = Outcome()
        self.awaited: set[str] = set()
        """Actors that are not there, and that the schedule of faults will start."""
        self.chaos: FaultInjector | None = None
        self._faults = live_schedule(program)
        self._ending = False
        self._children: dict[str, Child] = {}
        self._tapes = folder / TAPES
        self._listeners = program.listeners
        self._lead = program.lead
        self.asked = False
        self._bound: dict[str, str] = {}
        self.result: dict[str, Any] | None = None
        self._relayed: dict[str, dict[str, str]] = {}

    def newest(self, name: str) -> Child | None:
        return self._children.get(name)

    def request_stop(self, reason: str) -> None:
        del reason
        self.asked = True
        self._calm()
        for name in self.program.asked_to_stop():
            if name in self._children:
                self._dismiss(name)

    @property
    def address(self) -> str:
        return self._bound.get(self._lead, "")

    async def run(self) -> Outcome:
        async with trio.open_nursery() as relays:
            async with trio.open_nursery() as self._nursery:
                if all([await self._listens(name) for name in self._listeners]):
                    await self._populate(relays)
            relays.cancel_scope.cancel()
        return self.outcome

    async def bring(self, name: str) -> None:
        """Start an actor, for the first time or again; one that listens does so on its former
        address."""
        if self._ending:
            return
        await self._start(name, self._arguments(name))
        self.awaited.discard(name)
        if self._ending:
            # The job ended while this process was being started, so nothing told it.
            self._children[name].doomed = True
            self._children[name].send(signal.SIGKILL)

    def _arguments(self, name: str) -> list[str]:
        own = {name: self._bound.get(name) or self._at.get(name, ANY_PORT)}
        # From the file an actor that is started again as its lead ends hears of the end, too.
        files = {each: f"{FILE}{address_file(self.folder, each)}" for each in self._bound}
        addresses = {**files, **self._relayed.get(name, {}), **own}
        program = self.program
        return [*program.command(name, self.folder), *program.address_arguments(name, addresses)]

    async def _populate(self, relays: trio.Nursery) -> None:
        proxies: dict[str, Bundle] = {}
        for name in relayed(self._faults):
            dialled = self.program.dials(name)
            proxies[name] = Bundle([self._bound[other] for other in dialled])
            self._relayed[name] = dict(zip(dialled, await proxies[name].listen(), strict=True))
            relays.start_soon(proxies[name].run)
        self.awaited |= joiners(self._faults)
        for name in self.program.names:
            if name not in self.awaited and name not in self._listeners:
                await self.bring(name)
        if self._faults and not self._ending:
            self._nursery.start_soon(self._harm, proxies)

    async def _harm(self, proxies: dict[str, Bundle]) -> None:
        with closing(ActorLog(self.folder / LOG_FILE, "chaos.1")) as log:
            self.chaos = FaultInjector(self._faults, self.program.chaos.seed, self, proxies, log)
            await self.chaos.run(self._ready)

    async def _ready(self) -> None:
        """Wait until every actor that nobody dials has written to the log, or has ended."""
        tail, expected = LogTail(self.folder), set(self._children) - set(self._listeners)
        with trio.move_on_after(START_S_MAX):
            while expected:
                expected -= {line["actor"] for line in tail.new_lines()}
                expected -= {name for name in expected if self._children[name].ended.is_set()}
                await trio.sleep(LOOK_S)

    def _calm(self) -> None:
        """The job is about to end: apply no more faults, and restart no actor."""
        self._ending = True
        self.awaited.clear()
        if self.chaos is not None:
            self.chaos.calm()

    async def _start(self, name: str, arguments: list[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", "ddloco", *arguments],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # This process handles Ctrl-C, and needs a group to signal.
            )
        channel = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        child = self._children[name] = Child(process, channel)
        self._nursery.start_soon(self._watch, name, child)

    async def _watch(self, name: str, child: Child) -> None:
        code, said = await child.wait()
        if name == self._lead and child.result is not None:
            self.result = child.result
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        reason = (last_words(said) or ended) if code > 0 else ended
        status = STATUS.get(code, "failed")
        if code == AGAIN and name in self._listeners and not child.asked:
            status = "failed"  # Nobody has asked it, and nobody here starts it again.
        if child.doomed and code < 0:
            status, reason = "stopped", "ended on purpose"
        finish = Finish(status, reason if status != "done" else "done")
        if name not in self.outcome.failures:  # A later incarnation does not undo a failure.
            self.outcome.finishes[name] = finish
        if code == AGAIN and not child.asked and not self._ending and name not in self._listeners:
            await self._bring_again(name, reason)
            return
        self._react(name, finish)

    async def _bring_again(self, name: str, reason: str) -> None:
        """Start an actor that has failed as its next incarnation, as engines do."""
        with closing(ActorLog(self.folder / LOG_FILE, f"{name}.0", MonotonicTime().began)) as log:
            log.observe(COMES_BACK, 0.0, 0, {"reason": reason})
        self.awaited.add(name)
        await trio.sleep(RETURN_S)
        await self.bring(name)

    def _react(self, name: str, finish: Finish) -> None:
        """React to an actor's end: where it ends the program, all others are ended."""
        status, program = finish.status, self.program
        running = [each for each, child in self._children.items() if not child.ended.is_set()]
        if status == "bad-input":
            self._calm()
            for each in running:
                self._children[each].ask_to_leave()
        elif name in self.awaited:
            return
        elif program.ends_all(name, finish) or (name == self._lead and self._listeners):
            self._calm()
            patience_s = STRAY_S_MAX if self._faults else STOP_S_MAX
            if not program.ends_all(name, finish) and not self._faults:
                # Those that have begun end by themselves; others wait for a number for ever.
                running = [each for each in running if not newest_on_tape(self._tapes, each)]
            self._nursery.start_soon(self._end, running, 0.0 if status == "failed" else patience_s)
        elif self._lead in running and program.is_over(
            [*running, *self.awaited], self.outcome.failures
        ):
            self._calm()
            self._dismiss(self._lead)

    def _dismiss(self, name: str) -> None:
        """Ask an actor to end in good order. It may have finished already, and not react."""
        self._children[name].doomed = True
        self._children[name].ask_to_stop()

    async def _end(self, names: list[str], patience_s: float) -> None:
        """Wait for actors to end by themselves, then send SIGTERM, then SIGKILL."""
        children = [self._children[name] for name in names]
        for ask, wait_s in (
            (None, patience_s),
            (signal.SIGTERM, STOP_S_MAX),
            (signal.SIGKILL, STOP_S_MAX),
        ):
            for child in children:
                if ask is not None:
                    self._end_by(child, ask)
            with trio.move_on_after(wait_s):
                for child in children:
                    await child.ended.wait()
                return

    def _end_by(self, child: Child, ask: signal.Signals) -> None:
        """End a process by SIGTERM or SIGKILL; after faults, an end by SIGTERM is no failure."""
        child.doomed = bool(self._faults) and ask == signal.SIGTERM
        if ask == signal.SIGTERM:
            child.ask_to_leave()
        else:
            child.send(ask)

    async def _listens(self, name: str) -> bool:
        if name != self._lead and self._lead not in self._bound:
            return False
        await self.bring(name)
        path = address_file(self.folder, name)
        with trio.move_on_after(START_S_MAX):
            while name not in self.outcome.finishes and name in self._children:
                if path.exists():
                    self._bound[name] = read_text(path).strip()
                    return True
                await trio.sleep(LOOK_S)
        for child in self._children.values():
            child.send(signal.SIGKILL)
        return False
