"""What doctor says of a job is what a run of it takes."""

import json

import jax
import numpy as np
import pytest

from ddloco.job.needs import tape_bytes
from ddloco.job.protocol.fragment_plan import Leaf, make_plan
from tests.tasks import regression


def test_tapes_are_as_long_as_was_said(finished):
    """Within a quarter, of a job of other sizes than those that the figures were measured on."""
    params = regression().init(jax.random.key(0))
    leaves = [
        Leaf(jax.tree_util.keystr(path), np.shape(leaf), "float32")
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    ]
    plan = make_plan(leaves, fragments=4, interval=8, strategy="balanced")
    log = finished.log()
    shares = sum(len(line["learners"]) for line in finished.merges())
    result = next(line for line in log if line["event"] == "result")
    said = tape_bytes(
        plan, steps=result["inner_steps"], merges=len(finished.merges()), shares=shares
    )
    written = sum(path.stat().st_size for path in (finished.run_folder / "tapes").glob("*.tape"))
    assert said == pytest.approx(written, rel=0.25), json.dumps(result)
