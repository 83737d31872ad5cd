"""A job whose actors are started, killed and started again by hand, in one run folder."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import trio

from ddloco.stage.files.faults import Fault
from ddloco.stage.nodes.tcp_proxy import Bundle
from ddloco.stage.process.signals import STOP
from tests.hosts.cluster import free_port
from tests.hosts.hosts import end, send
from tests.installed import DDLOCO, WORK
from tests.processes.conftest import Job

Environment = Callable[[str], dict[str, str]]


class Relay:
    """One learner's links to all syncers, relayed by a thread, so that they can be harmed.

    Args:
        upstreams: the syncers' addresses.
    """

    def __init__(self, upstreams: Sequence[str]) -> None:
        self._bundle = Bundle(upstreams)
        self._scope = trio.CancelScope()
        self._ready = threading.Event()
        self._cut = Fault("cut", "")
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)

    def __enter__(self) -> Self:
        """Listen."""
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        """Carry nothing any longer."""
        self._do(self._scope.cancel)
        self._thread.join()

    def hold(self) -> None:
        """Let nothing through."""
        self._do(self._bundle.begin, self._cut)

    def lose(self) -> None:
        """Break all connections, with what was held; new ones carry again."""
        self._do(self._bundle.reset)
        self._do(self._bundle.end, self._cut)

    async def _run(self) -> None:
        self.addresses = await self._bundle.listen()
        self._token = trio.lowlevel.current_trio_token()
        self._ready.set()
        with self._scope:
            await self._bundle.run()

    def _do(self, what: Callable[..., None], *arguments: Any) -> None:
        trio.from_thread.run_sync(what, *arguments, trio_token=self._token)


class Actors:
    """The actors of a job, each a process of its own.

    Args:
        job: what they run.
        syncers: how many shards there are.
        settings: overrides of the job file.
        environment: what a process finds there beside all else, by the name of its actor.
    """

    def __init__(
        self, job: Job, syncers: int, settings: Sequence[str], environment: Environment
    ) -> None:
        self.job = job
        self.shards = [f"syncer-{n}" for n in range(syncers)] if syncers > 1 else ["syncer"]
        self.addresses = {name: f"tcp://127.0.0.1:{free_port()}" for name in self.shards}
        self.relays: dict[str, Relay] = {}
        """Of those learners that do not dial the syncers themselves."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: dict[str, int] = {}
        self._settings = [f"--set=job.syncers={syncers}", *(f"--set={each}" for each in settings)]
        self._environment = environment

    def __enter__(self) -> Self:
        """No actor is started yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """All processes are ended."""
        end(list(self.processes.values()))
        for each in self.processes.values():
            _let_go(each)

    def start(self, name: str) -> None:
        """Start an actor, for the first time or again."""
        role = ["syncer", "--bind", self.addresses.get(name, ""), "--name", name]
        if name not in self.shards:
            relay = self.relays.get(name)
            dialled = relay.addresses if relay else self.addresses.values()
            role = ["learner", "--connect", *dialled, "--name", name]
        elif name != self.shards[0]:
            role += ["--connect", self.addresses[self.shards[0]]]
        run = [str(self.job.file), "--dir", str(self.job.run_folder), "--join"]
        self.starts[name] = self.starts.get(name, 0) + 1
        with self.said(name).open("ab") as said:
            self.processes[name] = subprocess.Popen(
                [*DDLOCO, role[0], *run, "--with-parent", *self._settings, *role[1:]],
                cwd=WORK,
                env={**os.environ, **self._environment(name)},
                stdin=subprocess.PIPE,  # No actor outlives the tests.
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """SIGKILL an actor and its worker."""
        send(self.processes[name], signal.SIGKILL)

    def again(self, name: str) -> None:
        """Start an actor that was killed as its next incarnation."""
        self.processes[name].wait(180)
        _let_go(self.processes[name])
        self.start(name)

    def incarnations(self) -> set[str]:
        """The newest incarnation of each actor."""
        return {f"{name}.{number}" for name, number in self.starts.items()}

    def stop(self) -> dict[str, int]:
        """Ask the lead to end the job, as its parent does; returns the exit status of all."""
        lead = self.processes[self.shards[0]]
        assert lead.stdin is not None
        os.write(lead.stdin.fileno(), STOP)
        return {name: each.wait(180) for name, each in self.processes.items()}

    def said(self, name: str) -> Path:
        """Where that is which an actor has printed."""
        return self.job.file.with_name(f"{name}.said")

    def wait_until(self, condition: Callable[[], Any], what: str, seconds: float = 180.0) -> Any:
        """Look now and then until it is so, and give what the condition gave."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := condition():
                return found
            gone = [name for name, each in self.processes.items() if each.poll() not in (None, -9)]
            assert not gone, {name: self.said(name).read_text()[-2000:] for name in gone}
            time.sleep(0.02)
        raise AssertionError(f"not so within {seconds} s: {what}; {self.job.log()[-5:]}")


def _let_go(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
