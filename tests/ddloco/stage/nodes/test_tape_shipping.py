"""Where tapes leave: an actor's own tape, and what is missing of its former incarnations' tapes."""

import msgspec
import pytest
import trio

from ddloco.job.config import Job, JobTable
from ddloco.roles.job_program import program_of
from ddloco.stage.nodes.tape_shipping import PREDECESSORS_MAX, receive_tapes, ship_tapes
from replay import TapeHeader, TapeWriter, tape
from tests.transport.memory import MemoryFabric

ADDRESS = "memory://syncer"
JOB = Job(JobTable("shipping", "tests.tasks:regression", learners=2))


def write_tape(folder, incarnation, events=20):
    """A tape that ends without being closed, as a killed process leaves it."""
    header = TapeHeader(incarnation, JOB.id, JOB.as_plain(), "code", {})
    writer = TapeWriter(folder / "tapes" / f"{incarnation}.tape", header)
    for n in range(1, events + 1):
        writer.append(tape.Event(n, float(n), msgspec.Raw(msgspec.msgpack.encode({"n": n}))))
    writer.close()


def tapes(folder, incarnations):
    """The bytes of tapes in an actor's folder; None for those that are not there."""
    paths = [folder / "tapes" / f"{each}.tape" for each in incarnations]
    return [path.read_bytes() if path.exists() else None for path in paths]


async def deaf(_):
    """Ignore what is not for a lane of tapes."""
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("predecessors", [0, 2, PREDECESSORS_MAX + 1])
async def test_tapes_of_predecessors_leave_no_connections(tmp_path, predecessors):
    """The newest of them are shipped as well; afterwards only the actor's own tape has a route."""
    fabric = MemoryFabric(seed=1)
    ours, theirs = tmp_path / "syncer", tmp_path / "learner"
    ours.mkdir()
    endpoint = fabric.endpoint("syncer")
    await endpoint.listen(ADDRESS)
    syncer, receiving = receive_tapes(program_of(JOB), ours, endpoint, print)
    last = predecessors + 1
    for number in range(1, last + 1):
        write_tape(theirs, f"learner-0.{number}")
    learner, shipping = await ship_tapes(
        program_of(JOB), f"learner-0.{last}", theirs, fabric.endpoint("learner"),
        note=print, address=ADDRESS,
    )  # fmt: skip

    shipped = [f"learner-0.{number}" for number in range(max(1, last - PREDECESSORS_MAX), last + 1)]
    formers = [f"{each}/tape" for each in shipped[:-1]]
    with trio.fail_after(30.0):
        async with trio.open_nursery() as nursery:
            for channel, transfer in ((syncer, receiving), (learner, shipping)):
                nursery.start_soon(channel.run, deaf)
                nursery.start_soon(transfer.run)
            while tapes(ours, shipped) != tapes(theirs, shipped):  # noqa: ASYNC110
                await trio.sleep(0.01)
            while any(map(syncer.reaches, formers)):  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert syncer.reaches(f"{shipped[-1]}/tape")
            nursery.cancel_scope.cancel()
    assert len(list((tmp_path / "syncer" / "tapes").glob("*.tape"))) == len(shipped)
