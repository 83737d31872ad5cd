"""SGD with Nesterov momentum (paper 3.6): b = momentum * b + D, theta -= lr * (D + momentum * b).
It is compiled where the installation has a compiled kernel, with the bits of numpy."""

from collections.abc import Sequence

from ddloco.machines.outer.block_kernel import F32
from ddloco.machines.outer.optimizers.optimizer import OuterOptimizer, OuterStep


def _take(step: OuterStep, theta: F32, state: Sequence[F32], out: F32, new: Sequence[F32]) -> None:
    rates = (step.scale, step.outer.lr, step.outer.momentum)
    step.kernel.nesterov(theta, state[0], rates, (out, new[0]))


NESTEROV = OuterOptimizer(("momentum",), _take, usual="momentum")
