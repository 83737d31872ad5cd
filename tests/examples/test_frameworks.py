"""The tasks in other frameworks: they learn, and what a learner hands over is all of it."""

import numpy as np
import pytest

from ddloco.workers import rpc
from examples.frameworks import Table, TorchStream
from tests.ddloco.workers.test_trainer import Harness, arena

__all__ = ["arena"]

TASKS = [
    pytest.param("linen", "flax", marks=pytest.mark.slow),
    ("nnx", "flax"),
    ("equinox", "equinox"),
    ("from_grain", "grain"),
    ("from_torch", "torch"),
]
STEPS = 60


@pytest.mark.parametrize(("name", "package"), TASKS)
@pytest.mark.filterwarnings("default")  # Of other packages.
def test_it_learns_and_hands_over_all_of_it(arena, name, package):
    """Most held-out points are right; who takes over the state continues to the bit."""
    pytest.importorskip(package)
    pytest.importorskip({"from_grain": "equinox"}.get(name, package))
    donor = Harness(arena, task=f"examples.frameworks:{name}", lr=3e-3)
    donor.begin()
    for _ in range(STEPS):
        donor.train()
    scored, last = donor.ask(rpc.Score(None)), donor.trainer._last
    state, taker = donor.state(), Harness(arena, task=f"examples.frameworks:{name}", lr=3e-3)
    taker.ask(taker.installing(state))

    assert scored.metrics["accuracy"] > 0.8
    assert donor.train() == taker.train(skipped=STEPS, cursor=last.cursor)
    assert donor.train() == taker.train()
    assert last.metrics["accuracy"] > 0.8


@pytest.mark.parametrize(
    "loader",
    [
        {},
        pytest.param(
            {"num_workers": 2, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow
        ),
    ],
    ids=["here", "workers"],
)
def test_a_loader_of_pytorch_has_a_position(loader):
    """From any position, also of another epoch, the same batches follow; an epoch has each item of
    the shard once, and shards share none."""
    pytest.importorskip("torch")
    streams = [
        TorchStream(Table(100), batch=8, shard=shard, shards=2, seed=5, **loader)
        for shard in (0, 1)
    ]
    first = [[stream.next() for _ in range(15)] for stream in streams]
    for at in (0, 4, 6, 11):
        streams[1].restore(at)
        assert streams[1].state() == at
        for batch in first[1][at : at + 3]:
            again = streams[1].next()
            np.testing.assert_array_equal(batch["x"], again["x"])
            np.testing.assert_array_equal(batch["y"], again["y"])

    assert isinstance(first[0][0]["x"], np.ndarray)
    epochs = [{x.tobytes() for b in first[shard][:6] for x in b["x"]} for shard in (0, 1)]
    assert [48, 48] == [len(epoch) for epoch in epochs]
    assert not epochs[0] & epochs[1]
    assert {x.tobytes() for b in first[0][6:12] for x in b["x"]} != epochs[0]
