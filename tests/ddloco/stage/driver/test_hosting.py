"""Hosting an actor: requests before it has started, its failure, and what others are told."""

from contextlib import asynccontextmanager, closing

import pytest
import trio

from ddloco.stage.actors.actor import new_actor
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.events import Begun, StopRequested
from ddloco.stage.actors.messages import SaidByAll
from ddloco.stage.arrays.array_table import Arrays
from ddloco.stage.driver.hosting import HostedActor, OpenedActor, run_together, tape_header
from ddloco.stage.process.log import ActorLog
from replay import Recorder
from transport.memory import MemoryFabric


class Waiting:
    """A machine that ends when it is asked to, or raises at its first event."""

    def __init__(self, raises):
        self.raises = raises

    def handle(self, at, event):
        if self.raises:
            raise ValueError("a bug")
        return [Finish("stopped", event.reason)] if isinstance(event, StopRequested) else []


class Hosted(HostedActor):
    """An actor of such a machine, whose preparation takes a second."""

    def __init__(self, incarnation, endpoint, folder, raises=False):
        super().__init__(incarnation, endpoint)
        self.log, self.machine, self.closed = folder / "log.jsonl", Waiting(raises), False

    @asynccontextmanager
    async def open(self):
        with self.opening:
            await trio.sleep(1)
        if self.opening.cancelled_caught:
            yield None
            return
        with closing(ActorLog(self.log, self.incarnation)) as log:
            yield OpenedActor(
                new_actor(self.incarnation, self.machine), Begun(self.incarnation), [], SaidByAll,
                "job-1", ["a", "b"], None, Arrays(), Recorder(None), log, lambda header: None, dict,
            )  # fmt: skip
        self.closed = self.finish is not None

    def failure(self, error):
        return Finish("failed", f"{type(error).__name__}: {error}")


@pytest.fixture
def host(tmp_path):
    """Makes an actor on this host."""
    fabric = MemoryFabric(seed=1)
    return lambda name, **how: Hosted(name, fabric.endpoint(name), tmp_path, **how)


async def test_a_stop_is_requested_before_the_actor_starts(host, autojump_clock):
    """It stops as soon as it has started, and what was opened is closed after its end."""
    actor = host("a.1")
    actor.request_stop("asked early")
    actor.note("prepared", {"n": 1})
    assert await actor.run() == Finish("stopped", "asked early")
    assert actor.closed
    assert '"prepared"' in actor.log.read_text()


async def test_an_actor_leaves_while_it_is_prepared(host, autojump_clock):
    """The preparation is cancelled, and no driver is made."""
    actor = host("a.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(actor.run)
        await trio.sleep(0.5)
        actor.request_leave("the host goes down")
    assert actor.finish == Finish("left", "the host goes down")
    assert actor.driver is None


async def test_an_exception_ends_one_actor_only(host, autojump_clock):
    """The host is told of each end, and asks the other to stop."""
    actors = [host("a.1", raises=True), host("b.1")]
    finishes = {}

    def ended(actor, finish):
        if finish.status == "failed":
            actors[1].request_stop(f"{actor.incarnation} {finish.reason}")

    with trio.fail_after(60):
        await run_together(actors, finishes, ended)
    assert finishes == {
        "a.1": Finish("failed", "ValueError: a bug"),
        "b.1": Finish("stopped", "a.1 ValueError: a bug"),
    }


def test_a_tape_without_a_snapshot_begins_with_the_first_event():
    """And its facts are those that are given."""
    header = tape_header("a.1", None, job_id="j", job={}, code="1", fingerprint={},
                         semantics=("s",), facts={"k": "v"})  # fmt: skip
    assert (header.after, header.clock, header.facts) == (0, {}, {"k": "v"})
