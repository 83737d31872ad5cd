"""A check sum of each tensor after a step, computed where the tensors are.

It is a program of its own, so that the step is compiled as it would be without it. Sums of whole
numbers do not depend on the order in which a device adds them.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddloco.job.protocol.work import TENSOR_DIGEST_BYTES

U32 = jnp.uint32
PLACE, BITS = 0x85EBCA6B, 0x9E3779B1
"""Odd factors: a multiplication by one of them maps different numbers to different ones."""


def tensor_sums(tensors: Sequence[Any], *, divided: bool = False) -> Any:
    """Return 32 bits of each tensor, as an array on its devices.

    Each word is mixed with its place and then added. A tensor of which one word differs has another
    sum; of two that differ in more, one pair in 2**32 has the same.

    Args:
        tensors: the tensors.
        divided: whether they may be divided among devices, and must not be gathered. The sums are
            the same; on one device they take a sixth longer.
    """
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
