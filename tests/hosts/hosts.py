"""Hosts: network namespaces with an address each, joined by a switch whose links can go bad.

    with Hosts(["syncer", "learner-0"]) as hosts:
        hosts.start("syncer", ["ddloco", ...])
        hosts.line("learner-0", "both", loss=0.1)

Needs root, ``ip`` and /dev/net/tun, and nothing else. Names carry the process's number, so runs
side by side do not meet; everything is taken down on the way out, whatever happened.
"""

import ctypes
import fcntl
import itertools
import os
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.hosts.switch import Switch

NETWORK = "10.77.1"
DEVICE = "e0"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000

NUMBER = itertools.count()

Process = subprocess.Popen[bytes]


class Hosts:
    """Hosts by name, and the processes that run on them.

    Args:
        names: of the hosts; the n-th gets the n-th address.
        seed: of the chances on bad links.
    """

    def __init__(self, names: Sequence[str], seed: int = 0) -> None:
        self.addresses = {name: f"{NETWORK}.{n}" for n, name in enumerate(names, 1)}
        self._seed = seed
        self._run = f"ddloco-{os.getpid()}-{next(NUMBER)}"
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.switch = Switch(self._seed)
            stack.callback(self.switch.close)
            for name, address in self.addresses.items():
                space = self.namespace(name)
                ip("netns", "add", space)
                stack.callback(ip, "netns", "delete", space)
                self.switch.attach(address, open_tun(space))
                for what in (
                    f"address add {address}/24 dev {DEVICE}",
                    f"link set {DEVICE} up",
                    "link set lo up",
                ):
                    ip("-n", space, *what.split())
            stack.callback(self._end_processes)
            self._undo = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()

    def namespace(self, name: str) -> str:
        """The network namespace of a host."""
        return f"{self._run}-{name}"

    def start(self, name: str, command: Sequence[str], **options: Any) -> Process:
        """Start a process on a host, as the leader of a group of its own."""
        inside = ["ip", "netns", "exec", self.namespace(name), *command]
        process = subprocess.Popen(inside, start_new_session=True, **options)
        self._processes.append(process)
        return process

    def call(
        self, name: str, command: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        inside = ["ip", "netns", "exec", self.namespace(name), *command]
        return subprocess.run(
            inside, text=True, capture_output=True, timeout=60, check=False, **options
        )

    def line(self, name: str, way: str, **line: Any) -> None:
        """Change a host's link: ``out`` from the host, ``back`` to it, or ``both``; see `Line`."""
        self.switch.change(self.addresses[name], way, **line)

    def _end_processes(self) -> None:
        end(self._processes)


class Loopback:
    """Every actor on this machine's own loopback, where no namespaces are needed.

    Args:
        names: of the actors.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.addresses = dict.fromkeys(names, "127.0.0.1")
        self._processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._processes)

    def start(self, name: str, command: Sequence[str], **options: Any) -> Process:
        """Start a process, as the leader of a group of its own."""
        del name
        self._processes.append(subprocess.Popen(command, start_new_session=True, **options))
        return self._processes[-1]

    def call(
        self, name: str, command: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        del name
        return subprocess.run(
            command, text=True, capture_output=True, timeout=60, check=False, **options
        )


def end(processes: Sequence[Process]) -> None:
    """Kill processes and all that they have started, and wait for them."""
    for process in processes:
        send(process, signal.SIGKILL)
    for process in processes:
        process.wait(30)


def send(process: Process, number: signal.Signals) -> None:
    """Signal a process and all that it has started, if it was not waited for yet."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def ip(*words: str) -> None:
    """Run ``ip``; what it says is in the error."""
    ran = subprocess.run(["ip", *words], text=True, capture_output=True, check=False)
    if ran.returncode:
        raise OSError(f"ip {' '.join(words)}: {ran.stderr.strip()}")


def open_tun(space: str) -> int:
    """Make a TUN device in a namespace; its descriptor, which works from anywhere.

    A thread of its own enters the namespace, and ends there.
    """
    opened: list[int | OSError] = []

    def inside() -> None:
        try:
            with Path(f"/run/netns/{space}").open("rb") as there:
                enter(there.fileno())
            fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
            request = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI)
            fcntl.ioctl(fd, TUNSETIFF, request)
            opened.append(fd)
        except OSError as error:
            opened.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    (result,) = opened
    if isinstance(result, OSError):
        raise result
    return result


def enter(fd: int) -> None:
    """Move this thread into a network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@cache
def missing() -> str:
    """Why there can be no hosts on this machine; empty if there can."""
    if shutil.which("ip") is None:
        return "there is no `ip` command (iproute2)"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with Hosts(["probe"]):
            return ""
    except OSError as error:
        return f"network namespaces or TUN are not permitted here: {error}"
