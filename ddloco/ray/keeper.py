"""What runs on the nodes of a Ray cluster: a board for the job, and a keeper for each process."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from clocks import open_to_append, read_text, replace_file
from ddloco.stage.files.run_folder import address_file, make_folder

FINAL = (0, 1, 2)
"""Exit codes after which a process is not started again: done, failed, bad input."""

PAUSE_S = 1.0
"""Before a process is started again, so that one that fails at once keeps no core busy."""

LOOK_S = 0.5
"""Between two looks at the addresses of syncers."""

LEAVE_S = 10.0
"""For a process to leave after SIGTERM; it takes at most five."""


@dataclass(frozen=True)
class Errand:
    """What a keeper keeps running: an actor of a job, with the job file as text. A learner has
    ``folder`` None, and one on its node; ``mark`` tells the job from others on the same nodes."""

    name: str
    syncers: Sequence[str]
    text: str
    options: Sequence[str]
    folder: str | None
    here: str
    mark: str


class JobBoard:
    """What all keepers and the user know of a job; on the head node, whose loss ends Ray."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._codes: dict[str, int] = {}

    def put(self, syncer: str, address: str) -> None:
        """Where a syncer listens now."""
        self._addresses[syncer] = address

    def addresses(self) -> dict[str, str]:
        """Where syncers listen."""
        return self._addresses

    def begun(self, name: str, node: str) -> None:
        """A process was started on a node."""
        self._nodes[name] = node
        self._codes.pop(name, None)

    def ended(self, name: str, code: int) -> None:
        """A process has ended for good."""
        self._codes[name] = code

    def status(self) -> dict[str, dict[str, Any]]:
        """Node and final exit code of each process; the code is None while it is kept."""
        return {
            name: {"node": node, "code": self._codes.get(name)}
            for name, node in self._nodes.items()
        }


class Keeper:
    """Keeps one process running until it ends with a final code.

    The loop is a thread that begins with the object: Ray makes the object again on another node if
    its node is lost, whether or not the user's program still runs.
    """

    def __init__(self, errand: Errand, board: Any) -> None:
        self._errand, self._board = errand, board
        self._ray: Any = import_module("ray")
        context = self._ray.get_runtime_context()
        own = Path(tempfile.gettempdir()) / f"ddloco-{errand.mark}" / context.get_node_id()[:12]
        self._folder = Path(errand.folder) if errand.folder else own / errand.name
        make_folder(self._folder)
        self._files = own / f"{errand.name}.known"
        make_folder(self._files)
        self._node = self._ray.util.get_node_ip_address()
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving = False
        self._left = threading.Event()
        threading.Thread(target=self._tell, daemon=True).start()
        threading.Thread(target=self._keep, daemon=True).start()

    def pid(self) -> int | None:
        """The process that is kept."""
        return self._child.pid if self._child is not None else None

    def leave(self) -> None:
        """Let the process leave, for good."""
        self._leaving = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)
        self._left.wait(LEAVE_S)

    def _tell(self) -> None:
        """Put a syncer's address on the board, and all on the board into files, as they change."""
        errand, known = self._errand, {}
        while not self._left.is_set():
            if errand.name in errand.syncers:
                own = address_file(self._folder, errand.name)
                address = read_text(own) if self._child is not None and own.exists() else ""
                if address and known.get(errand.name) != address:
                    self._ray.get(self._board.put.remote(errand.name, address))
            found = self._ray.get(self._board.addresses.remote())
            for name, address in found.items():
                if known.get(name) != address:
                    replace_file(self._files / name, [address.encode()])
            known = found
            time.sleep(LOOK_S)

    def _keep(self) -> None:
        code = 75
        while not self._leaving:
            self._ray.get(self._board.begun.remote(self._errand.name, self._node))
            code = self._run()
            if code in FINAL:
                break
            time.sleep(PAUSE_S)
        self._ray.get(self._board.ended.remote(self._errand.name, code))
        self._left.set()

    def _run(self) -> int:
        """Run the process once; returns its exit code."""
        job = self._files / "job.toml"
        replace_file(job, [self._errand.text.encode()])
        # Ray sets OMP_NUM_THREADS, by which the bits of sums would depend on a node's CPUs.
        env = {key: each for key, each in os.environ.items() if key != "OMP_NUM_THREADS"}
        with open_to_append(self._files / "out") as said:
            self._child = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "ddloco", *self._command(str(job)), "--with-parent"],
                stdin=subprocess.PIPE,  # The process ends with its keeper, so there are no twins.
                stdout=said,
                stderr=said,
                env=env,
                cwd=self._errand.here,
            )
            return self._child.wait()

    def _command(self, job: str) -> list[str]:
        errand, common = self._errand, ["--dir", str(self._folder), "--join"]
        common += ["--name", errand.name, *errand.options]
        where = [f"file:{self._files / each}" for each in errand.syncers]
        if errand.name not in errand.syncers:
            return ["learner", job, *common, "--connect", *where]
        lead = [] if errand.name == errand.syncers[0] else ["--connect", where[0]]
        return ["syncer", job, *common, "--bind", f"tcp://{self._node}:*", *lead]
