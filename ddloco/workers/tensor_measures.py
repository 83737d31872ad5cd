"""What people want to know of tensors without reading them: norm, largest element, and how many are
not finite, of parameters, the optimizer's state, and differences to the time before."""

from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from ddloco.workers.rpc import TensorMeasure
from ddloco.workers.task_state import is_key

OPTIMIZER, UPDATE = "optimizer:/", "update:/"
"""The prefixes of the optimizer's tensors, and of the difference of a tensor to the one before."""


class TensorMeasures:
    """Measures tensors; remembers those of the time before, of which updates are wanted."""

    def __init__(self) -> None:
        self._before: dict[str, NDArray[Any]] = {}

    def __call__(
        self, wanted: str, parameters: dict[str, Any], others: dict[str, Any]
    ) -> list[TensorMeasure]:
        """Measure the tensors whose names match a pattern, ``*`` for all, in the order of their
        names; those of other hosts are left out, and what has no values yet."""
        there = {**parameters, **others}
        found = [
            measured(name, np.asarray(leaf))
            for name, leaf in there.items()
            if fnmatchcase(name, wanted) and _has_values(leaf)
        ]
        # Copies: JAX does not donate an array of which a view is left.
        now = {
            name: np.array(leaf)
            for name, leaf in parameters.items()
            if fnmatchcase(UPDATE + name, wanted) and _has_values(leaf)
        }
        for name in now.keys() & self._before.keys():
            step = now[name].astype(np.float64) - self._before[name].astype(np.float64)
            found.append(measured(UPDATE + name, step, now[name].dtype.name))
        self._before = now
        return sorted(found, key=lambda each: each.name)


def _has_values(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or (
        isinstance(leaf, jax.Array) and leaf.is_fully_addressable and not is_key(leaf)
    )


def measured(name: str, array: NDArray[Any], dtype: str = "") -> TensorMeasure:
    values = np.abs(array.astype(np.float64)).ravel()
    sound = values[np.isfinite(values)]
    return TensorMeasure(
        name,
        dtype or array.dtype.name,
        array.shape,
        float(np.linalg.norm(sound)),
        float(sound.max(initial=0.0)),
        values.size - sound.size,
    )
