"""The outer optimizers by name. A new one is its file, its line here, and its name and settings in
``job.config``."""

import numpy as np

from ddloco.job.config import Outer, OuterOptimizerName
from ddloco.machines.outer.block_kernel import F32
from ddloco.machines.outer.optimizers.adam import ADAM
from ddloco.machines.outer.optimizers.nesterov import NESTEROV
from ddloco.machines.outer.optimizers.optimizer import STEPS, OuterOptimizer, State
from ddloco.machines.outer.optimizers.sgd import SGD

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
