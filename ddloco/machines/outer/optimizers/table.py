"""The outer optimizers by name. A new one is its ``OuterOptimizer`` and its line in ``OPTIMIZERS``,
and its name and settings in ``job.config``."""

from collections.abc import Sequence

import numpy as np

from ddloco.job.config import Outer, OuterOptimizerName
from ddloco.machines.outer.block_kernel import F32
from ddloco.machines.outer.optimizers.optimizer import (
    STEPS,
    OuterOptimizer,
    OuterStep,
    State,
    scale_direction,
)

# SGD with Nesterov momentum (paper 3.6): b = momentum * b + D, theta -= lr * (D + momentum * b).
# It is compiled where the installation has a compiled kernel, with the bits of numpy.


def _nesterov(
    step: OuterStep, theta: F32, state: Sequence[F32], out: F32, new: Sequence[F32]
) -> None:
    rates = (step.scale, step.outer.lr, step.outer.momentum)
    step.kernel.nesterov(theta, state[0], rates, (out, new[0]))


NESTEROV = OuterOptimizer(("momentum",), _nesterov, usual="momentum")


# Gradient descent without state: theta -= lr * D; with lr 1 this is FedAvg (arXiv 1602.05629).


def _sgd(step: OuterStep, theta: F32, state: Sequence[F32], out: F32, new: Sequence[F32]) -> None:
    del state, new
    scale_direction(out, step.scale)
    np.multiply(out, step.outer.lr, out=out)
    np.subtract(theta, out, out=out)


SGD = OuterOptimizer((), _sgd)


# Adam on the merged changes: FedAdam (Reddi et al., arXiv 2003.00295), but with Adam's correction
# (Kingma and Ba, arXiv 1412.6980) of both moments by the weight seen so far, so the variance may
# start at zero and the first step has the length of all others.

SQUARE_MAX = float(np.finfo(np.float32).max)
"""A larger square would be infinite, and stay so in the variance."""


def _adam(step: OuterStep, theta: F32, state: Sequence[F32], out: F32, new: Sequence[F32]) -> None:
    outer, (mean, variance), (mean_out, variance_out) = step.outer, state, new
    scale_direction(out, step.scale)
    scratch = np.empty_like(out)
    np.multiply(mean, outer.b1, out=mean_out)
    np.multiply(out, 1.0 - outer.b1, out=scratch)
    np.add(mean_out, scratch, out=mean_out)
    with np.errstate(over="ignore"):
        np.multiply(out, out, out=out)
    np.minimum(out, SQUARE_MAX, out=out)
    np.multiply(out, 1.0 - outer.b2, out=out)
    np.multiply(variance, outer.b2, out=variance_out)
    np.add(variance_out, out, out=variance_out)
    np.multiply(variance_out, 1.0 / (1.0 - _power(outer.b2, step.number)), out=scratch)
    np.sqrt(scratch, out=scratch)
    np.add(scratch, outer.eps, out=scratch)
    np.multiply(mean_out, outer.lr / (1.0 - _power(outer.b1, step.number)), out=out)
    np.divide(out, scratch, out=out)
    np.subtract(theta, out, out=out)


def _power(base: float, exponent: int) -> float:
    """``base ** exponent`` by multiplications, which every processor rounds alike; pow is not."""
    found = 1.0
    while exponent:
        if exponent & 1:
            found *= base
        base, exponent = base * base, exponent >> 1
    return found


ADAM = OuterOptimizer(("mean", "variance"), _adam, usual="mean")


OPTIMIZERS: dict[OuterOptimizerName, OuterOptimizer] = {
    "nesterov": NESTEROV,
    "sgd": SGD,
    "adam": ADAM,
}


def zero_state(outer: Outer, theta: F32) -> State:
    arrays = {name: np.zeros_like(theta) for name in OPTIMIZERS[outer.optimizer].state}
    return {**arrays, STEPS: np.zeros(1, np.int64)}


def usual_direction(outer: Outer, state: State) -> F32 | None:
    return state.get(OPTIMIZERS[outer.optimizer].usual)
