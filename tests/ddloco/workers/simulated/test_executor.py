"""Simulated work in a replay: the same as in the simulation, on a replay's arrays."""

import pytest
import trio

from ddloco.job.protocol.tape_facts import TENSORS, is_simulated
from ddloco.job.protocol.work import MakeParameters, MergeFragment, Recover, Share
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.workers.simulated.executor import SimulatedWorkExecutor
from ddloco.workers.simulated.work import FragmentMemory, leaves_of
from replay import open_tapes
from tests.lab import hostile_world

SEED = next(seed for seed in range(99) if hostile_world.draw(seed).job.job.syncers == 1)


@pytest.fixture
def shop(tmp_path):
    """The worker of a simulated syncer's tape, its arrays, and what it keeps."""
    hostile_world.run_seed(SEED, tmp_path)
    tape = next(each for each in open_tapes(tmp_path) if each.incarnation == "syncer.1")
    job, arrays, fragment_memory = hostile_world.draw(SEED).job, ArrayTable(), FragmentMemory()
    return (
        SimulatedWorkExecutor(job, tape.header, arrays, fragment_memory),
        arrays,
        fragment_memory,
        job,
        tape.header,
    )


def test_it_knows_its_tapes(shop):
    """Of whatever device they speak."""
    *_, header = shop
    assert is_simulated(header)


def test_it_is_prepared_with_the_model_of_the_job(shop):
    """As many tensors as the simulated task has; the fingerprint of the tape."""
    worker, *_, job, header = shop
    prepared = trio.run(worker.prepare)
    assert leaves_of(job.task[TENSORS]) == prepared.leaves
    assert header.fingerprint == prepared.fingerprint


def test_what_it_makes_is_among_the_arrays(shop):
    """Known under the handles asked for, with a digest that can be compared."""
    worker, arrays, *_ = shop
    trio.run(worker.do, MakeParameters(1, (0,)))
    assert arrays.known("theta/0/0", "wire/0/0")
    assert 16 == len(arrays.get("wire/0/0").digest)
    assert 2 == len(worker._contents)
    del worker._contents["theta/0/0"]
    assert not arrays.known("theta/0/0")
    with pytest.raises(NotImplementedError):
        iter(worker._contents)


def test_a_merge_is_kept_once_it_was_found_equal(shop):
    """Not before: the next incarnation finds only what was told."""
    worker, _, fragment_memory, *_ = shop
    trio.run(worker.do, MakeParameters(1, (0,)))
    shares = (Share("learner-0.1", "theta/0/0", 1.0, 0),)
    merge = MergeFragment(2, 1, 0, "theta/0/0", "", shares, {}, {}, ("theta/0/1", "m", "wire/0/1"))
    done = trio.run(worker.do, merge)
    assert () == trio.run(worker.do, Recover(3)).kept
    worker.settle(done)
    assert [1] == [kept.version for kept, *_ in fragment_memory.kept.values()]
