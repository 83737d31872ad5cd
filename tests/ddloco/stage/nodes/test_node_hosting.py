"""Hosting an actor: requests before it has started, its failure, and what others are told."""

from contextlib import asynccontextmanager

import pytest
import trio

from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.events import Begun, StopRequested
from ddloco.stage.actors.messages import ActorBody
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.files.settings import SnapshotTable, TapeTable
from ddloco.stage.nodes.node import HostedActor, OpenedActor, recorder_for
from replay import Recorder, open_tapes
from tests.transport.memory import MemoryFabric


class Waiting:
    """A machine that ends when it is asked to, or raises at its first event."""

    def __init__(self, raises):
        self.raises = raises

    def handle(self, at, event):
        if self.raises:
            raise ValueError("a bug")
        return [Finish("stopped", event.reason)] if isinstance(event, StopRequested) else []


class Alone:
    """A program of two such actors; the preparation of one takes a second."""

    id, name, names, lead, listeners = "job-1", "job", ("a", "b"), "a", ()
    tape, snapshot, semantics = TapeTable(), SnapshotTable(), ("s",)

    def __init__(self, raises):
        self.machine, self.closed = Waiting(raises), False

    @asynccontextmanager
    async def open(self, hosted):
        with hosted.opening:
            await trio.sleep(1)
        if hosted.opening.cancelled_caught:
            yield None
            return
        yield OpenedActor(
            new_actor(hosted.incarnation, self.machine), Begun(hosted.incarnation), [], ActorBody,
            None, ArrayTable(), Recorder(None), lambda header: None, dict,
        )  # fmt: skip
        self.closed = hosted.finish is not None

    def sources(self, folder):
        return {}

    def failure(self, error, incarnation):
        return Finish("failed", f"{type(error).__name__}: {error}")

    def advised(self, finish, traceback):
        return finish


@pytest.fixture
def host(tmp_path):
    """Makes an actor on this host."""
    fabric = MemoryFabric(seed=1)
    return lambda name, raises=False: HostedActor(
        Alone(raises), name, tmp_path, fabric.endpoint(name)
    )


async def test_a_stop_is_requested_before_the_actor_starts(host, autojump_clock):
    """It stops as soon as it has started, and what was opened is closed after its end."""
    actor = host("a.1")
    actor.request_stop("asked early")
    actor.note("prepared", {"n": 1})
    assert await actor.run() == Finish("stopped", "asked early")
    assert actor.program.closed
    assert '"prepared"' in (actor.folder / "log.jsonl").read_text()


async def test_an_actor_leaves_while_it_is_prepared(host, autojump_clock):
    """The preparation is cancelled, and no driver is made."""
    actor = host("a.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run)
        await trio.sleep(0.5)
        actor.request_leave("the host goes down")
    assert actor.finish == Finish("left", "the host goes down")
    assert actor.driver is None


async def test_an_exception_ends_the_actor(host, autojump_clock):
    """Its program says how."""
    with trio.fail_after(60):
        assert await host("a.1", raises=True).run() == Finish("failed", "ValueError: a bug")


def test_a_tape_without_a_snapshot_begins_with_the_first_event(tmp_path):
    """And its facts are those that are given."""
    program = Alone(raises=False)
    program.as_plain = dict
    recorder = recorder_for(program, "a.1", tmp_path, {}, facts={"k": "v"})
    recorder.close(0, None)
    [tape] = open_tapes(tmp_path / "tapes")
    assert (tape.header.after, tape.header.clock, tape.header.facts["k"]) == (0, {}, "v")
