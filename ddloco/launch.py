"""``run --processes``: each actor a process of its own over tcp, started, watched and stopped here.

The processes are the very commands that a user types on several hosts.
"""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import trio

from ddloco.cluster import Outcome
from ddloco.config import Job
from ddloco.effects import Finish, Status
from ddloco.folder import ADDRESS_FILE, JOB_FILE
from ddloco.learner import SYNCER

START_S_MAX = 120.0
"""How long a syncer may take to listen; importing JAX on a busy machine takes a while."""

STOP_S_MAX = 30.0
"""How long learners may take to leave after the syncer has, before they are ended by signal."""

STATUS: dict[int, Status] = {0: "done", 2: "bad-input"}


class Processes:
    """The actors of a job as child processes.

    Args:
        job: the resolved job.
        folder: its run folder, with the job file inside.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.folder = folder
        self.outcome = Outcome()
        self.pids: dict[str, int] = {}
        """Process ids by actor, for whoever wants to watch or to harm them."""
        self._children: dict[str, trio.Process] = {}
        self._ended: dict[str, trio.Event] = {}

    def request_stop(self, reason: str) -> None:
        """Ask the job to end in good order."""
        del reason
        self._signal(SYNCER)

    async def run(self) -> Outcome:
        """Start everybody, wait for everybody."""
        bind = ["--bind", "tcp://127.0.0.1:*"]
        async with trio.open_nursery() as nursery:
            await self._start(nursery, SYNCER, ["syncer", *self._common(), *bind])
            address = await self._address()
            for name in self.job.learner_names() if address else ():
                who = ["--connect", address, "--name", name]
                await self._start(nursery, name, ["learner", *self._common(), *who])
        return self.outcome

    def _common(self) -> list[str]:
        return [str(self.folder / JOB_FILE), "--dir", str(self.folder), "--join", "--with-parent"]

    async def _start(self, nursery: trio.Nursery, name: str, arguments: list[str]) -> None:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "ddloco", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process to answer.
        )
        self._children[name] = process
        self._ended[name] = trio.Event()
        self.pids[name] = process.pid
        nursery.start_soon(self._watch, nursery, name, process)

    async def _watch(self, nursery: trio.Nursery, name: str, process: trio.Process) -> None:
        try:
            said = await self._stderr(process)
            code = await process.wait()
        except trio.Cancelled:
            process.kill()
            raise
        ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        reason = said.strip().splitlines()[-1] if said.strip() and code > 0 else ended
        status = STATUS.get(code, "failed")
        self.outcome.finishes[name] = Finish(status, reason if status != "done" else "done")
        self._ended[name].set()
        self._react(nursery, name, status)

    async def _stderr(self, process: trio.Process) -> str:
        assert process.stderr is not None
        said = b""
        async for piece in process.stderr:
            said = (said + piece)[-65536:]
        return said.decode(errors="replace")

    def _react(self, nursery: trio.Nursery, name: str, status: Status) -> None:
        """One end leads to another: bad input and the syncer's end are everybody's end."""
        running = [each for each in self._children if each not in self.outcome.finishes]
        if status == "bad-input":
            for each in running:
                self._signal(each)
        elif name == SYNCER:
            nursery.start_soon(self._end, running, 0.0 if status == "failed" else STOP_S_MAX)
        elif running == [SYNCER]:
            self._signal(SYNCER)

    async def _end(self, names: list[str], patience_s: float) -> None:
        """Let them go by themselves, then ask, then insist."""
        for ask in (lambda _: None, self._signal, self._kill):
            for name in names:
                if name not in self.outcome.finishes:
                    ask(name)
            with trio.move_on_after(patience_s if ask is not self._signal else STOP_S_MAX):
                for name in names:
                    await self._ended[name].wait()
                return

    def _signal(self, name: str) -> None:
        with suppress(ProcessLookupError):
            self._children[name].terminate()

    def _kill(self, name: str) -> None:
        with suppress(ProcessLookupError):
            self._children[name].kill()

    async def _address(self) -> str:
        """Where the syncer listens, as it wrote it down; empty if it ended first."""
        path = self.folder / ADDRESS_FILE
        with trio.move_on_after(START_S_MAX):
            while SYNCER not in self.outcome.finishes:
                if path.exists():
                    return path.read_text().strip()
                await trio.sleep(0.02)
        self._kill(SYNCER)
        return ""
