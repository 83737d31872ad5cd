"""How far outer steps go compared with contributions."""

import numpy as np
import pytest

from ddloco.debugger.merge_history import Merge, MergeAnswer, Wait
from ddloco.debugger.outer_gain import outer_gain, stretch
from ddloco.job.config import Outer


def merge(moved, *norms, weight=1.0):
    """A merge of contributions of these lengths."""
    answers = tuple(
        MergeAnswer(f"learner-{n}.1", "", 0, 1, 1, 1, "", weight, norm, None, None)
        for n, norm in enumerate(norms)
    )
    wait = Wait(0.0, 0.0, 0.0, 0.0)
    return Merge(1, 0, "syncer.1:9", 1.0, "", 0.0, wait, 1, answers, (), (), moved, "", "", "")


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.3, 0.8])
def test_the_correlation_is_found_from_lengths(rho):
    """Of differences that are drawn with it: what the report would say of that run."""
    rng, size, momentum, lr = np.random.default_rng(0), 4000, 0.6, 0.7
    delta, velocity, merges = rng.standard_normal(size), np.zeros(size), []
    for _ in range(400):
        velocity = momentum * velocity + delta
        step = lr * (delta + momentum * velocity)
        merges.append(merge(float(np.linalg.norm(step)), float(np.linalg.norm(delta))))
        delta = rho * delta + np.sqrt(1 - rho**2) * rng.standard_normal(size)
    found = outer_gain(merges, Outer(lr=lr, momentum=momentum))
    assert found.rho == pytest.approx(rho, abs=0.03)
    assert found.gain == pytest.approx(lr * (1 + momentum / (1 - momentum * rho)), rel=0.03)


def test_steps_are_longest_where_differences_agree():
    """Up to the rate divided by one minus the momentum."""
    assert [stretch(rho, 0.9) for rho in (-0.9, 0.0, 0.5, 0.999)] == sorted(
        stretch(rho, 0.9) for rho in (-0.9, 0.0, 0.5, 0.999)
    )
    assert stretch(0.999999, 0.6) == pytest.approx(2.5, rel=1e-3)
    assert stretch(0.3, 0.0) == 1.0


def test_what_cannot_be_told_is_left_out():
    """Without lengths nothing; with other rules only how long the steps were."""
    assert outer_gain([], Outer()) is None
    assert outer_gain([merge(0.0, 1.0)], Outer()) is None, "no lengths with sync.band 0"
    assert outer_gain([merge(1.0, None)], Outer()) is None
    for outer in (Outer(merge="average"), Outer(optimizer="sgd", lr=1.0), Outer(momentum=0.0)):
        found = outer_gain([merge(3.0, 1.0, 2.0)], outer)
        assert (2.0, None, None, 1) == tuple(found)
