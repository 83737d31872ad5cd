"""Recorded runs computed again by an independent implementation of the algorithm."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from ddloco.api.experiment import cells, load_experiment, run_cell
from ddloco.debugger.outer_gain import outer_gain
from ddloco.debugger.recorded_job import open_job
from tests.independent import Model

FILE = """
[experiment]
name = "along"
seeds = [3]
[job]
name = "along"
task = "tests.tasks:regression"
steps = 48
learners = 3
[sync]
fragments = 4
interval = 6
[inner]
lr = 3e-3
[work]
step_s = 1.0
variance = 0.2
tensors = 4
{more}
[[case]]
name = "along"
set = {{ {settings} }}
"""

CASES = {
    "as the paper": "",
    "average": '"outer.merge" = "average"',
    "a slow learner": '"learner.learner-1.factor" = 3.5, "sync.grace" = 0.0',
    "a return": '"chaos.fault" = [{ what = "crash", who = "learner-1", at_s = 14.3, for_s = 6 }]',
    "int8": '"compress.up" = "int8", "compress.down" = "int8"',
    "int4 up": '"compress.up" = "int4"',
    "last merges": '"sync.final_merges" = true',
}


def along(tmp_path, settings, more=""):
    """A run of the product in virtual time, and the folder of it."""
    file = tmp_path / "along.toml"
    file.write_text(FILE.format(settings=settings, more=more))
    loaded = load_experiment(file)
    (cell,) = cells(loaded, tmp_path)
    return run_cell(loaded, cell), cell.folder / "run"


def transformer(folder, task, steps, more=""):
    """A run of the quickstart's model."""
    folder.mkdir(exist_ok=True)
    settings = f'"job.task" = "{task}", "job.steps" = {steps}, "sync.interval" = 24, '
    settings += '"sync.fragments" = 12, "inner.warmup" = 50, "inner.lr" = 2e-3, "work.tensors" = 24'
    return along(folder, settings, f"[task]\nmixed = true\n{more}")


def losses_of(again):
    """The losses computed again, and those of the run."""
    return np.array([pair for each in again.losses.values() for pair in each]).T


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_step_and_merge_is_that_of_an_independent_implementation(case, tmp_path):
    """From the initial parameters to the final ones, nothing but the order is taken from the run:
    losses and model are equal to rounding."""
    result, run = along(tmp_path, CASES[case])
    again = Model(run)
    ours, theirs = losses_of(again)
    assert result.steps == len(ours) > 100
    # Where a difference lies between two levels, rounding decides on which it falls.
    rtol = 1e-3 if "int8" in case else 1e-5
    np.testing.assert_allclose(ours, theirs, rtol=rtol)
    final = load_file(run / "model" / "model.safetensors")
    assert set(final) == set(again.theta)
    for name, leaf in final.items():
        np.testing.assert_allclose(again.theta[name], leaf, rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.slow
def test_a_transformer_is_computed_again(tmp_path):
    """The quickstart's job for three intervals: a warm-up, tensors that are averaged, a larger
    model. Rounding grows with the steps, as it does between two orders of the same sums."""
    result, run = transformer(tmp_path, "examples.tiny_gpt:task", 72)
    ours, theirs = losses_of(Model(run))
    assert result.steps == len(ours) > 200
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.slow
def test_what_differs_is_rounding(tmp_path):
    """The same in float64: there both agree further than in float32, in which the product is no
    further from the exact numbers than the independent implementation is."""
    _, single = transformer(tmp_path, "examples.tiny_gpt:task", 48)
    x64 = '[worker.env]\nJAX_ENABLE_X64 = "1"'
    _, double = transformer(tmp_path / "double", "tests.double_task:task", 48, x64)
    rounded, recorded = losses_of(Model(single))
    with jax.enable_x64(True):
        exact, _ = losses_of(Model(single, np.float64))
        ours, theirs = losses_of(Model(double, np.float64))
    off = np.abs(rounded - exact).mean()
    assert 0 < np.abs(recorded - exact).mean() < 2 * off
    # Merges of the product are in float32, and so are the losses that it tells.
    assert np.abs(theirs - ours).mean() < off / 3


@pytest.mark.slow
def test_the_report_tells_the_correlation_of_merged_differences(tmp_path):
    """From lengths alone; the independent implementation has the differences themselves."""
    _, run = along(tmp_path, '"sync.band" = 1000.0, "outer.average" = []')
    recorded = open_job(run)
    found = outer_gain(list(recorded.merges()), recorded.job.outer)
    cosines = [
        one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        for each in Model(run).deltas.values()
        for one, other in pairwise(each)
    ]
    assert abs(found.rho - np.mean(cosines)) < 0.2, (found, np.mean(cosines))
