"""Check sums of tensors: any change of one word is seen, whatever the tensor's type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.job.protocol.work import TENSOR_DIGEST_BYTES
from ddloco.workers.tensor_sums import packed, tensor_sums
from transport import DTYPES


def sums(*tensors):
    """The sums of some tensors, as on a tape."""
    said = packed(jax.jit(tensor_sums)(tensors))
    n = TENSOR_DIGEST_BYTES
    return [said[at : at + n] for at in range(0, len(said), n)]


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (33,), (5, 7, 3)])
def test_each_flipped_bit_is_seen(dtype, shape):
    """One bit of one element of one tensor; the others have the sums that they had."""
    values = np.asarray(np.random.default_rng(7).normal(size=shape), DTYPES[dtype])
    before = sums(jnp.asarray(values), jnp.ones(3))
    bits = values.reshape(-1).view(f"u{values.itemsize}")
    for at in range(bits.size):
        for bit in range(0, 8 * values.itemsize, 5):
            bits[at] ^= bits.dtype.type(1 << bit)
            after = sums(jnp.asarray(values), jnp.ones(3))
            bits[at] ^= bits.dtype.type(1 << bit)
            assert (after[0] == before[0], after[1] == before[1]) == (False, True)


@pytest.mark.parametrize(
    "change",
    [np.negative, lambda x: x[::-1], lambda x: np.roll(x, 1), lambda x: x * 2, np.zeros_like],
    ids=["signs", "reversed", "rolled", "doubled", "zeros"],
)
def test_a_change_of_all_elements_is_seen(change):
    """Also one that keeps the set of the values, or flips the highest bit of an even number."""
    values = np.random.default_rng(3).normal(size=1024).astype(np.float32)
    assert sums(jnp.asarray(values)) != sums(jnp.asarray(np.ascontiguousarray(change(values))))


def test_zeros_of_two_signs_and_nan_are_told_apart():
    """The bits are compared, and not the values."""
    found = sums(*(jnp.array([x], jnp.float32) for x in (0.0, -0.0, np.nan, -np.nan)))
    assert len(set(found)) == 4
