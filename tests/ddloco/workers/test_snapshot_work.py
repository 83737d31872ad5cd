"""Writing one's own part: arrays from where they lie, a worker's state as one copy."""

import numpy as np
import pytest
import trio

from ddloco.job.protocol.fragment_plan import Leaf, make_plan
from ddloco.machines.outer.optimizers.optimizer import STEPS
from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot
from ddloco.stage.actors.events import WorkFailed
from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.driver.snapshot_sink import DigestSink, StoreSink
from ddloco.stage.driver.snapshot_writer import FROZEN, payload_tensors
from ddloco.workers import rpc
from ddloco.workers.snapshot_work import STATE, SnapshotWork, leaf_tensors, theta_of
from snapshot import SnapshotError, Store
from transport import Payload, describe

NAME = "learner-0.1:7"
LEAVES = (Leaf("w", (2, 3), "float32"), Leaf("b", (4,), "float32"))
PLAN = make_plan(LEAVES, fragments=1, interval=1, strategy="tensor")
FLAT = np.arange(10, dtype=np.float32)


class Process:
    """A worker whose state is of ones, and who says so when it is asked."""

    def __init__(self):
        self.asked, self.region = [], None

    def expect(self, request, answer):
        self.asked.append(request)

        async def copied():
            await trio.lowlevel.checkpoint()
            assert rpc.span_of(self.region) == request.out
            self.region.data[:] = 1
            if answer is rpc.Ready:
                return answer()
            return answer(rpc.Trained(0.5, 8, b"batch"))

        return copied()


class Harness:
    """One actor's work, its arrays, and the place where it writes."""

    def __init__(self, folder, sink=None):
        self.arena = SharedMemory()
        self.arrays = ArrayTable(self.arena)
        self.store = Store(folder)
        self.process = Process()
        self.work = SnapshotWork(self.arrays, self.process, sink or StoreSink(self.store, {}))
        self.work.plan = PLAN

    def state(self, *handles):
        """Write a state; what came of it, and what the piece lists, by kind and name."""
        return self.ended(lambda: self.work.state(CaptureState(-1, NAME, b"frozen", handles)))

    def ended(self, begin):
        """Wait for it."""

        async def run():
            return await begin()

        done = trio.run(run)
        entries = self.store.read_piece(done.content) if done.content else ()
        return done, {(each.kind, each.name): each.digest for each in entries}


@pytest.fixture
def harness(tmp_path):
    """A learner's."""
    harness = Harness(tmp_path / "place")
    allocate = harness.arena.allocate

    def remember(nbytes):
        harness.process.region = allocate(nbytes)
        return harness.process.region

    harness.arena.allocate = remember
    yield harness
    harness.arena.close()


def payload():
    """Two tensors, the second of which comes first by name."""
    layout = (("w", (2,), "float32"), ("b", (3,), "uint8"))
    data = np.arange(128, dtype=np.uint8)
    return Payload(describe(data, layout), data)


def test_a_state_is_what_was_frozen_and_what_it_held(harness):
    """Global fragments leaf by leaf, by name; what is made from them again is left out."""
    for handle in ("theta/0/3", "wire/0/3"):
        harness.arrays.put(handle, FLAT)
    harness.arrays.put("outer/0/3", {"mean": FLAT, STEPS: np.array([3])})
    done, found = harness.state("outer/0/3", "theta/0/3", "wire/0/3")
    assert (-1, "") == (done.work, done.failed)
    arrays = {("array", "outer/0/3"), ("array", "theta/0/3")}
    assert {("state", FROZEN), *arrays} == set(found)
    assert b"frozen" == bytes(harness.store.read_bytes(found["state", FROZEN]))
    state = harness.store.read_tensors(found["array", "outer/0/3"])
    assert {"mean/w": (2, 3), "mean/b": (4,), STEPS: (1,)} == {n: a.shape for n, a in state.items()}
    read = harness.store.read_tensors(found["array", "theta/0/3"])
    assert {"w": (2, 3), "b": (4,)} == {name: each.shape for name, each in read.items()}
    laid = [read[leaf.name].reshape(-1) for leaf in PLAN.fragments[0]]
    assert FLAT.tolist() == np.concatenate(laid).tolist()


def test_a_wire_without_its_theta_is_written(harness):
    """The newest may be on its way out while the fragment is another already."""
    harness.arrays.put("wire/0/3", payload())
    _, found = harness.state("wire/0/3")
    assert ("array", "wire/0/3") in found


def test_the_worker_is_asked_before_anything_is_awaited(harness):
    """So its state is of before its next step; the copy is written, and its memory given back."""
    harness.work.nbytes, harness.work.trains = 64, True
    waiting = harness.work.state(CaptureState(-1, NAME, b"frozen", ()))
    assert [rpc.CopyOut] == [type(each) for each in harness.process.asked]
    freed = []
    harness.arena.free, free = freed.append, harness.arena.free
    _, found = harness.ended(lambda: waiting)
    assert [1] * 64 == harness.store.read_tensors(found["worker", STATE])[STATE].tolist()
    assert [harness.process.region] == freed
    free(*freed)


def test_a_first_step_that_follows_at_once_changes_nothing(harness):
    """There was no state to copy when it was asked for, however late it is looked at again."""
    harness.work.nbytes = 64
    waiting = harness.work.state(CaptureState(-1, NAME, b"frozen", ()))
    harness.work.trains = True
    done, found = harness.ended(lambda: waiting)
    assert "" == done.failed
    assert {("state", FROZEN)} == set(found)


def test_memory_for_a_first_copy_is_there_before_it(harness):
    """The copy lands in the memory that the worker has touched; none is asked for without one."""
    trio.run(harness.work.warm)
    assert [] == harness.process.asked
    harness.work.nbytes, harness.work.trains = 64, True
    trio.run(harness.work.warm)
    harness.ended(lambda: harness.work.state(CaptureState(-1, NAME, b"frozen", ())))
    touched, copied = harness.process.asked
    assert (rpc.Touch, rpc.CopyOut) == (type(touched), type(copied))
    assert touched.out == copied.out


def test_a_worker_whose_state_cannot_be_copied_is_named(harness):
    """A snapshot without it would be none."""
    harness.work.trains = True
    done, _ = harness.state()
    assert "its optimizer's state cannot be copied" == done.failed


def test_host_copies_and_payloads_are_written_as_they_lie(harness):
    """The one as bytes, the other tensor by tensor, with their places in the names."""
    region = harness.arena.allocate(16)
    region.data[:] = 5
    harness.arrays.put("host/4", HostCopy(region))
    harness.arrays.put("in/9", payload())
    _, found = harness.state("host/4", "in/9")
    assert [5] * 16 == harness.store.read_tensors(found["array", "host/4"])[STATE].tolist()
    read = harness.store.read_tensors(found["array", "in/9"])
    assert ["0000/w", "0001/b"] == sorted(read)


def test_what_was_in_flight_is_written_once(harness):
    """Also where two messages brought the same array."""
    harness.arrays.put("in/9", payload())
    work = CaptureFlight(-2, NAME, b"messages", ("in/9", "in/9"))
    done, found = harness.ended(lambda: harness.work.flight(work))
    assert {("flight", FROZEN), ("array", "in/9")} == set(found)
    assert -2 == done.work


class Full(DigestSink):
    """A place that takes nothing."""

    def write_bytes(self, data):
        raise OSError("no space left")

    def commit(self, snapshot, parts, absent):
        raise SnapshotError("a blob is missing")


def test_what_cannot_be_written_is_a_result(tmp_path):
    """With the reason; no exception ends the actor."""
    harness = Harness(tmp_path, Full())
    works = (
        (harness.work.state, CaptureState(-1, NAME, b"frozen", ()), "no space left"),
        (harness.work.flight, CaptureFlight(-2, NAME, b"messages", ()), "no space left"),
        (harness.work.commit, CommitSnapshot(-3, NAME, (), {}), "a blob is missing"),
    )
    for do, work, reason in works:

        async def done(do=do, work=work):
            return await do(work)

        assert WorkFailed(work.work, "worker", reason) == trio.run(done)
    harness.arena.close()


def test_names_of_what_is_made_again():
    """Only what is sent of a global fragment."""
    assert "theta/0/3" == theta_of("wire/0/3")
    assert ["", "", ""] == [theta_of(each) for each in ("theta/0/3", "in/9", "host/3")]


def test_tensors_are_views():
    """Nothing is copied to be written."""
    leaves = leaf_tensors(PLAN, "theta/0/3", FLAT)
    assert all(np.shares_memory(each, FLAT) for each in leaves.values())
    whole = payload()
    tensors = payload_tensors(whole)
    assert all(np.shares_memory(each, whole.data) for each in tensors.values())
    assert [0, 1, 2, 3] == tensors["0000/w"].view(np.uint8).tolist()[:4]
    assert [64, 65, 66] == tensors["0001/b"].tolist()
