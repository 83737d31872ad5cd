"""Gradient descent without state: theta -= lr * D; with lr 1 this is FedAvg (arXiv 1602.05629)."""

from collections.abc import Sequence

import numpy as np

from ddloco.machines.outer.block_kernel import F32
from ddloco.machines.outer.optimizers.optimizer import OuterOptimizer, OuterStep, scale_direction


def _take(step: OuterStep, theta: F32, state: Sequence[F32], out: F32, new: Sequence[F32]) -> None:
    del state, new
    scale_direction(out, step.scale)
    np.multiply(out, step.outer.lr, out=out)
    np.subtract(theta, out, out=out)


SGD = OuterOptimizer((), _take)
