"""The tasks in other frameworks: they learn, and what a learner hands over is all of it."""

import pytest

from ddloco.workers import rpc
from tests.ddloco.workers.test_server import Desk, arena

__all__ = ["arena"]

TASKS = [("linen", "flax"), ("nnx", "flax"), ("equinox", "equinox"), ("from_grain", "grain")]
STEPS = 60


@pytest.mark.parametrize(("name", "package"), TASKS, ids=[name for name, _ in TASKS])
@pytest.mark.filterwarnings("default")  # Of other packages.
def test_it_learns_and_hands_over_all_of_it(arena, name, package):
    """Most held-out points are right; who takes over the state goes on to the bit."""
    pytest.importorskip(package)
    pytest.importorskip({"from_grain": "equinox"}.get(name, package))
    donor = Desk(arena, task=f"examples.frameworks:{name}", lr=3e-3)
    donor.begin()
    for _ in range(STEPS):
        donor.train()
    scored, last = donor.ask(rpc.Score(None)), donor.trainer._last
    state, taker = donor.state(), Desk(arena, task=f"examples.frameworks:{name}", lr=3e-3)
    taker.ask(taker.installing(state))

    assert scored.metrics["accuracy"] > 0.8
    assert donor.train() == taker.train(skipped=STEPS, cursor=last.cursor)
    assert donor.train() == taker.train()
    assert last.metrics["accuracy"] > 0.8
