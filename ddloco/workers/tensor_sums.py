"""A check sum of each tensor after a step, and whether one has a NaN, computed where the tensors
are: on a GPU or a mesh by a program of its own, so that the step is compiled as it would be without
it. Sums of whole numbers do not depend on the order. Tensors of a CPU that are not divided are read
in place: XLA's reduction of whole numbers takes three to five times as long there."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash
from numpy.typing import NDArray

from ddloco.job.protocol.work import TENSOR_DIGEST_BYTES

U32 = jnp.uint32
PLACE, BITS = 0x85EBCA6B, 0x9E3779B1
"""Odd factors: a multiplication by one of them maps different numbers to different ones."""


def summing(everywhere: dict[str, Any]) -> Callable[[Sequence[Any]], Callable[[], bytes]]:
    """Return what begins to compute the sums of tensors, and returns what waits for them: 4 bytes
    of each in little-endian order, as on a tape. ``everywhere`` is empty if the tensors are on one
    device."""
    if not everywhere and jax.devices()[0].platform == "cpu":
        return lambda tensors: partial(host_sums, tensors)
    program = jax.jit(partial(tensor_sums, divided=bool(everywhere)), **everywhere)

    def begin(tensors: Sequence[Any]) -> Callable[[], bytes]:
        return partial(packed, program(tensors))

    return begin


def host_sums(tensors: Sequence[Any]) -> bytes:
    """The sums of tensors in this host's memory: the lower 32 bits of each one's xxh3-64."""
    # Views of what goes at once: JAX does not donate an array of which a view is left.
    views = (np.asarray(each.addressable_data(0)).reshape(-1).view(np.uint8) for each in tensors)
    found = [xxhash.xxh3_64_intdigest(view.data) for view in views]
    return np.array(found, np.uint64).astype("<u4").tobytes()


def finding_nan(everywhere: dict[str, Any]) -> Callable[[Sequence[Any]], Sequence[bool]]:
    """Return what says of each tensor whether it has a NaN, where the tensors are, as the sums."""
    if not everywhere and jax.devices()[0].platform == "cpu":
        return lambda tensors: [_has_nan(np.asarray(each.addressable_data(0))) for each in tensors]
    program = jax.jit(lambda them: jnp.stack([jnp.isnan(x).any() for x in them]), **everywhere)
    return lambda tensors: np.asarray(program(tensors)).tolist()


def _has_nan(view: NDArray[Any]) -> bool:
    """Numpy's largest element of floats is NaN if any is, and needs no memory to be found."""
    if view.dtype in (np.float32, np.float64) and view.size:
        return bool(np.isnan(view.max()))
    return bool(np.isnan(view).any())


def tensor_sums(tensors: Sequence[Any], *, divided: bool = False) -> Any:
    """Return 32 bits of each tensor, as an array on its devices. Each word is mixed with its place
    and then added. A tensor of which one word differs has another sum; of two that differ in more,
    one pair in 2**32 has the same. If tensors may be ``divided`` and must not be gathered, the sums
    are the same, and on one device take a sixth longer."""
    return jnp.stack([_sum(each, divided) for each in tensors])


def _sum(tensor: Any, divided: bool) -> Any:
    width = min(tensor.dtype.itemsize, TENSOR_DIGEST_BYTES)
    words = jax.lax.bitcast_convert_type(tensor, jnp.dtype(f"uint{8 * width}"))
    words = (words if divided else words.reshape(-1)).astype(U32)
    words ^= _places(words.shape) * U32(PLACE)
    words = (words ^ (words >> U32(16))) * U32(BITS)
    # The upper bits reach the lower ones, so that an even number of flipped signs is seen.
    return jnp.sum(words ^ (words >> U32(15)), dtype=U32)


def _places(shape: tuple[int, ...]) -> Any:
    """The place of each word in a row-major tensor of this shape, in 32 bits."""
    places, stride = U32(0), 1
    for axis in reversed(range(len(shape))):
        places += jax.lax.broadcasted_iota(U32, shape, axis) * U32(stride % 2**32)
        stride *= shape[axis]
    return places


def packed(sums: Any) -> bytes:
    """Return the sums as on a tape: ``TENSOR_DIGEST_BYTES`` each, in little-endian order."""
    return np.asarray(sums).astype("<u4").tobytes()
