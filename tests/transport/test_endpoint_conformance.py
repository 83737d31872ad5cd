"""Every endpoint passes the one suite, over every kind of address it serves."""

import socket
from contextlib import AsyncExitStack, asynccontextmanager, closing

import numpy as np
import pytest
import trio
import trio.testing

from ddloco.stage.arrays.shared_memory import SharedMemory
from tests.transport.conformance import CHECK_S_MAX, CHECKS, Bench, check_endpoint
from tests.transport.memory import Faults, MemoryFabric
from transport import zeromq
from transport.zeromq import ZmqEndpoint, open_context

LINGER_S = 0.5  # some checks leave frames without a receiver


@asynccontextmanager
async def over_memory(address="memory://syncer", faults=None):
    fabric = MemoryFabric(1, faults or Faults())
    yield Bench(fabric.endpoint(), fabric.endpoint(), address)


class CopyingMemory:
    """Shared memory in which every part has a place, because it is copied there."""

    def __init__(self, arena):
        self._arena = arena
        self._kept = []

    def filenos(self):
        """Those of the arena."""
        return self._arena.filenos()

    def place_of(self, part):
        """Where the copy lies, which is never used again."""
        if not len(part):
            return None
        self._kept.append(self._arena.array(len(part)))
        self._kept[-1][:] = np.frombuffer(part, np.uint8)
        return self._arena.place_of(self._kept[-1].data)


@asynccontextmanager
async def over_zeromq(address, share=False):
    async with open_context() as context, AsyncExitStack() as stack:
        endpoints = [ZmqEndpoint(context, linger_s=LINGER_S) for _ in range(2)]
        for endpoint in endpoints if share else ():
            endpoint.share(CopyingMemory(stack.enter_context(closing(SharedMemory()))))
        try:
            yield Bench(*endpoints, address)
        finally:
            for endpoint in endpoints:
                await endpoint.aclose()


def free_tcp_address():
    """Reserve a port: a dial before the listen must know it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(params=["memory", "inproc", "ipc", "tcp", "shared"])
def make(request, tmp_path, monkeypatch):
    if request.param == "shared":  # Parts of any size, as soon as the first was sent.
        monkeypatch.setattr(zeromq, "COPY_BYTES_MAX", -1)
    return {
        "memory": over_memory,
        "inproc": lambda: over_zeromq("inproc://syncer"),
        "ipc": lambda: over_zeromq(f"ipc://{tmp_path}/s"),
        "tcp": lambda: over_zeromq(free_tcp_address()),
        "shared": lambda: over_zeromq(free_tcp_address(), share=True),
    }[request.param]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(make, check):
    """Each check holds over each kind of address, in real time."""
    with trio.fail_after(CHECK_S_MAX):
        await check(make)


async def test_conformance_in_virtual_time(autojump_clock):
    """The whole suite holds over memory in virtual time, and a slow line takes virtual time."""
    before_s = trio.current_time()

    await check_endpoint(lambda: over_memory(faults=Faults((0.001, 0.004))))

    assert before_s + 0.01 < trio.current_time()


def test_each_check_states_its_guarantee():
    """Every check has a docstring, as it is what a user reads when one fails."""
    assert all(check.__doc__ for check in CHECKS)
