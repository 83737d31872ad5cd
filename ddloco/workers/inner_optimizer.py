"""The learner's own optimizer, and the counts of its schedules. It needs jax."""

from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from ddloco.job.config import Inner
from ddloco.workers.parameters import named_leaves


def inner_optimizer(inner: Inner) -> optax.GradientTransformation:
    """The optimizer that ``[inner]`` describes: clipping, then the update, with linear warm-up."""
    rate: Any = (
        optax.linear_schedule(inner.lr / inner.warmup, inner.lr, inner.warmup - 1)
        if inner.warmup > 1
        else inner.lr
    )
    update = {
        "adamw": lambda: optax.adamw(rate, inner.b1, inner.b2, weight_decay=inner.weight_decay),
        "adam": lambda: optax.adam(rate, inner.b1, inner.b2),
        "sgd": lambda: optax.sgd(rate, momentum=inner.b1 or None),
        "muon": lambda: _muon(rate, inner),
    }[inner.optimizer]()
    return optax.chain(optax.clip_by_global_norm(inner.clip), update) if inner.clip else update


def _muon(rate: Any, inner: Inner) -> optax.GradientTransformation:
    """Muon for matrices, AdamW for all others and for those that ``inner.adamw`` names. An update
    of Muon has the size that one of AdamW has (arXiv 2502.16982, equation 4), so learning rate and
    weight decay may be AdamW's."""

    def labels(params: Any) -> Any:
        names = iter([name for name, _ in named_leaves(params)])
        return jax.tree.map(lambda leaf: _label(next(names), leaf, inner.adamw), params)

    muon = optax.contrib.muon(
        rate,
        beta=inner.b1,
        weight_decay=inner.weight_decay,
        # Stacked matrices are seen one by one.
        muon_weight_dimension_numbers=lambda params: jax.tree.map(
            lambda leaf: optax.contrib.MuonDimensionNumbers(leaf.ndim - 2, leaf.ndim - 1), params
        ),
        consistent_rms=0.2,
    )
    adamw = optax.adamw(rate, inner.b1, inner.b2, weight_decay=inner.weight_decay)
    return optax.partition({"muon": muon, "adamw": adamw}, labels)


def _label(name: str, leaf: Any, adamw: tuple[str, ...]) -> str:
    own = leaf.ndim >= 2 and not any(fnmatchcase(name, each) for each in adamw)
    return "muon" if own else "adamw"


def schedule_counts(opt_state: Any) -> list[int]:
    """Return the counts of an optimizer's schedules, in the order of the tree's leaves: the integer
    scalars of every state that contains only such counts. A count next to moments (as in Adam)
    corrects the bias of new moments, and restarts with them; a schedule's is the learner's
    progress, and is kept."""
    return counts_at(opt_state, count_places(opt_state))


def counts_at(opt_state: Any, places: list[int]) -> list[int]:
    leaves = jax.tree.leaves(opt_state)
    return [int(leaves[index]) for index in places]


def count_places(opt_state: Any) -> list[int]:
    """Which leaves of an optimizer's state are the counts of its schedules. For the state of a
    large model this takes milliseconds, so a worker does it once."""
    return [index for index, counts_on in enumerate(_marks(opt_state)) if counts_on]


def with_counts(opt_state: Any, counts: list[int], steps: int) -> Any:
    """The state with its schedules set to ``counts`` from ``schedule_counts``; if those are unknown
    or from another optimizer, to ``steps``, the steps that the learner has taken."""
    leaves, tree = jax.tree.flatten(opt_state)
    places = count_places(opt_state)
    if len(places) != len(counts):
        counts = [steps] * len(places)
    for index, count in zip(places, counts, strict=True):
        leaves[index] = jnp.full_like(leaves[index], count)
    return jax.tree.unflatten(tree, leaves)


def _marks(node: Any, alone: bool = False) -> list[bool]:
    """For every leaf below ``node``, in order, whether it is a schedule's count."""
    if _is_state(node):
        fields = node._asdict()
        fields.pop("hyperparams", None)  # Of optax.inject_hyperparams: computed from a count.
        alone = not any(_has_moments(each) for each in fields.values())
    if isinstance(node, tuple | list):
        return [mark for each in node for mark in _marks(each, alone)]
    if isinstance(node, dict):
        return [mark for key in sorted(node) for mark in _marks(node[key], alone)]
    leaves = jax.tree.leaves(node)
    return [alone and jnp.ndim(each) == 0 and _is_integer(each) for each in leaves]


def _is_state(node: Any) -> bool:
    return hasattr(node, "_asdict") and type(node).__name__.endswith("State")


def _has_moments(field: Any) -> bool:
    """Whether a field contains moments itself, not inside another state."""
    leaves = jax.tree.leaves(field, is_leaf=_is_state)
    return any(not _is_state(each) and not _is_integer(each) for each in leaves)


def _is_integer(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.integer)
