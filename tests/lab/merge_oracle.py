"""model-oracle, finite: compares every merge with a reference that shares no code with the kernel.

The reference is forty lines of plain numpy in float64, without blocks, threads or buffers. Results
must also be finite.
"""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.job.config import MergeRuleName, Outer, OuterOptimizerName
from ddloco.job.protocol.work import FragmentMerged, MergeFragment, Share, SumContributions
from ddloco.machines.outer.optimizers.optimizer import STEPS
from ddloco.machines.syncer.machine import Syncer
from ddloco.replayer.invariants.base import InvariantCheck, hold
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.workers.simulated.compression import contributed
from ddloco.workers.simulated.work import ELEMENTS, Content
from transport import Effect, Event

F64 = NDArray[np.float64]
Numbers = dict[str, F64]
"""The state of an outer optimizer by name, in float64."""

Inputs = tuple[F64, Numbers, list[tuple[str, float, F64]]]
"""Parameters, outer state, and (name, weight, parameters) of the shares."""

CHANGE_MAX = 1e30
"""A larger change is rejected like NaN: float32 cannot hold its square."""

ROUNDING = 1e-6
TOLERANCE = 1e-4
"""Relative; the kernel sums in float32, the reference in float64."""


class Oracle(InvariantCheck[World, Node]):
    """Computes every merge again, from the contents of its shares at the time of the request."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], tuple[MergeFragment, Inputs]] = {}
        self._relayed: dict[tuple[str, int], F64] = {}
        """By learner and global step, what a relay was given for its newest sum: how its parameters
        differ from what learners hold of the version that they are merged into."""

    def see(self, world: World, node: Node, event: Event, effects: Sequence[Effect]) -> None:
        """Compute a merge when it is requested; compare it when it is done.

        What a relay has summed is merged here from its contributions, as if there were no relay.
        """
        for effect in effects:
            if isinstance(effect, SumContributions):
                self._sum(node, effect)
        if not isinstance(node.actor.machine, Syncer):
            return
        if isinstance(event, FragmentMerged):
            self._compare(world, node, event)
        for effect in effects:
            if isinstance(effect, MergeFragment):
                inputs = _inputs(node, effect, self._relayed)
                self._asked[node.incarnation, effect.work] = effect, inputs

    def _sum(self, node: Node, work: SumContributions) -> None:
        anchor = numbers(node.contents[work.anchor])
        for share in work.shares:
            given = numbers(node.contents[share.handle])
            difference = given if share.name in work.differences else given - anchor
            self._relayed[share.name, work.t] = difference

    def _merge(
        self, world: World, merge: MergeFragment, inputs: Inputs, doubted: Sequence[str]
    ) -> tuple[tuple[str, ...], F64, Numbers]:
        (theta, state, shares), outer = inputs, world.job.outer
        finite = [each for each in shares if (np.abs(theta - each[2]) <= CHANGE_MAX).all()]
        sound = [each for each in finite if each[0] not in doubted]
        names = [leaf.name for leaf in world.plan.fragments[merge.fragment]]
        delta = np.zeros_like(theta)
        for index, name in enumerate(names if sound else []):
            part = slice(index * ELEMENTS, (index + 1) * ELEMENTS)
            moves = np.array([theta[part] - params[part] for _, _, params in sound])
            weights = np.array([weight for _, weight, _ in sound])
            plain = any(fnmatchcase(name, pattern) for pattern in outer.average)
            delta[part] = REFERENCES["average" if plain else outer.merge](moves, weights)
        taken = tuple(name for name, _, _ in sound)
        return taken, *STEP_REFERENCES[outer.optimizer](theta, state, delta, outer)

    def _compare(self, world: World, node: Node, event: FragmentMerged) -> None:
        merge, inputs = self._asked.pop((node.incarnation, event.work))
        # Whether rejections by the outlier test were justified is checked in ``belief``.
        measured = [each.name for each in event.measured]
        doubted = [name for name, _ in event.refused if name in measured]
        names, theta, state = self._merge(world, merge, inputs, doubted)
        what = f"merge {merge.t} of fragment {merge.fragment}"
        made, kept = (node.contents[handle] for handle in merge.out[:2])
        found = {"theta": numbers(made), **outer_state(kept)}
        for name, got in found.items():
            hold(np.isfinite(got).all(), "finite", f"{what}: {name} is not finite")
        hold(event.accepted == names, "model-oracle", f"{what} took {event.accepted}, not {names}")
        if not names:
            return
        steps = inputs[1].get(STEPS, np.zeros(1)) + 1.0
        for name, expected in {"theta": theta, **state, STEPS: steps}.items():
            got = found[name]
            # Small differences of large parameters, as after a bit flip, have larger rounding.
            rounding = ROUNDING * float(np.abs(inputs[0]).max())
            if merge.sums and world.job.compress.up != "float32":
                continue  # Rounded once more, by the relay.
            near = np.allclose(got, expected, rtol=TOLERANCE, atol=TOLERANCE + rounding)
            hold(near, "model-oracle", f"{what}: {name} is off by {np.abs(got - expected).max()}")


def _inputs(node: Node, merge: MergeFragment, relayed: Mapping[tuple[str, int], F64]) -> Inputs:
    """The inputs of a merge, read when it is requested."""
    theta = numbers(node.contents[merge.theta])
    state = outer_state(node.contents[merge.state]) if merge.state else {}
    shares: list[tuple[str, float, F64]] = []
    for s in merge.shares:
        summed = s.handle in merge.sums
        given = theta + relayed[s.name, merge.t] if summed else contribution(node, merge, s)
        shares.append((s.name, s.weight, given))
    return theta, state, shares


def contribution(node: Node, merge: MergeFragment, share: Share) -> F64:
    """The parameters that a share of a merge stands for, in float64."""
    array = contributed(merge, share, node.contents)
    assert array is not None, "only worlds with arithmetic have an oracle"
    return array.astype(np.float64)


def numbers(content: Content) -> F64:
    """The numbers of a content, in float64."""
    assert content.array is not None, "only worlds with arithmetic have an oracle"
    return content.array.astype(np.float64)


def outer_state(content: Content) -> Numbers:
    """The arrays of an outer optimizer's state, in float64."""
    assert content.state is not None, "only worlds with arithmetic have an oracle"
    return {name: array.astype(np.float64) for name, array in content.state.items()}


def average(moves: F64, weights: F64) -> F64:
    """The weighted mean of outer gradients, (M, n) to (n,)."""
    return (weights[:, None] * moves).sum(0) / weights.sum()


def radial(moves: F64, weights: F64) -> F64:
    """Radial-directional averaging (paper: App. D.2): mean norm times mean direction."""
    norms: Any = np.sqrt((moves * moves).sum(1))
    units = np.divide(moves, norms[:, None], out=np.zeros_like(moves), where=norms[:, None] > 0)
    direction = average(units, weights)
    length = float(np.sqrt((direction * direction).sum()))
    if length < 1e-6:
        return average(moves, weights)
    return float((weights * norms).sum() / weights.sum()) * direction / length


def median(moves: F64, weights: F64) -> F64:
    """The median of each element over the outer gradients that have a weight."""
    return np.median(moves[weights > 0], axis=0)


REFERENCES: dict[MergeRuleName, Callable[[F64, F64], F64]] = {
    "rda": radial,
    "average": average,
    "median": median,
}
"""The reference of each merge rule."""


def nesterov(theta: F64, state: Numbers, delta: F64, outer: Outer) -> tuple[F64, Numbers]:
    """The paper's outer step."""
    momentum = outer.momentum * state.get("momentum", 0.0) + delta
    return theta - outer.lr * (delta + outer.momentum * momentum), {"momentum": momentum}


def sgd(theta: F64, state: Numbers, delta: F64, outer: Outer) -> tuple[F64, Numbers]:
    """A step along the change."""
    del state
    return theta - outer.lr * delta, {}


def adam(theta: F64, state: Numbers, delta: F64, outer: Outer) -> tuple[F64, Numbers]:
    """Adam, with both means corrected for their beginning at zero."""
    mean = outer.b1 * state.get("mean", 0.0) + (1 - outer.b1) * delta
    variance = outer.b2 * state.get("variance", 0.0) + (1 - outer.b2) * delta**2
    steps = float(state.get(STEPS, np.zeros(1))[0]) + 1
    length = np.sqrt(variance / (1 - outer.b2**steps)) + outer.eps
    moved = outer.lr * mean / (1 - outer.b1**steps) / length
    return theta - moved, {"mean": mean, "variance": variance}


StepReference = Callable[[F64, Numbers, F64, Outer], tuple[F64, Numbers]]
STEP_REFERENCES: dict[OuterOptimizerName, StepReference] = {
    "nesterov": nesterov,
    "sgd": sgd,
    "adam": adam,
}
"""The reference of each outer optimizer."""
