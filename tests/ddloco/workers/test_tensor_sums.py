"""Check sums of tensors: any change of one word is seen, whatever the tensor's type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ddloco.job.protocol.work import TENSOR_DIGEST_BYTES
from ddloco.workers.tensor_sums import finding_nan, host_sums, packed, summing, tensor_sums
from transport import DTYPES


def on_device(tensors):
    """The sums as a GPU computes them."""
    return packed(jax.jit(tensor_sums)(tensors))


@pytest.fixture(params=[on_device, host_sums])
def sums(request):
    """The sums of some tensors, as on a tape."""

    def each(*tensors):
        said, n = request.param(tensors), TENSOR_DIGEST_BYTES
        return [said[at : at + n] for at in range(0, len(said), n)]

    return each


def test_a_tensor_is_donated_after_its_sum():
    """A view that was left would make JAX copy each parameter in each step."""
    tensor = jnp.ones((100, 100))
    place = tensor.unsafe_buffer_pointer()
    assert summing({})([tensor])() == host_sums([tensor])
    updated = jax.jit(lambda x: x + 1, donate_argnums=0)(tensor)
    assert updated.unsafe_buffer_pointer() == place


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (33,), (5, 7, 3)])
def test_each_flipped_bit_is_seen(dtype, shape, sums):
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
def test_a_change_of_all_elements_is_seen(change, sums):
    """Also one that keeps the set of the values, or flips the highest bit of an even number."""
    values = np.random.default_rng(3).normal(size=1024).astype(np.float32)
    assert sums(jnp.asarray(values)) != sums(jnp.asarray(np.ascontiguousarray(change(values))))


def test_zeros_of_two_signs_and_nan_are_told_apart(sums):
    """The bits are compared, and not the values."""
    found = sums(*(jnp.array([x], jnp.float32) for x in (0.0, -0.0, np.nan, -np.nan)))
    assert len(set(found)) == 4


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (33,), (5, 7)])
def test_a_nan_is_found_wherever_it_is(dtype, shape):
    """On the host as on a device; infinities are none, which some states begin with."""
    values = np.full(shape, np.inf, DTYPES[dtype])
    whole = finding_nan({})
    mesh = finding_nan({"out_shardings": jax.sharding.SingleDeviceSharding(jax.devices()[0])})
    assert [find([jnp.asarray(values)]) for find in (whole, mesh)] == [[False]] * 2
    for at in range(0, values.size, 4):
        spoilt = values.copy()
        spoilt.reshape(-1)[at] = np.nan
        tensors = [jnp.asarray(values), jnp.asarray(spoilt)]
        assert [find(tensors) for find in (whole, mesh)] == [[False, True]] * 2
