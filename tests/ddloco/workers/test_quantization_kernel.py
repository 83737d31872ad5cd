"""The compiled compression gives numpy's bytes, and is not used where it does not."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.protocol.compression import BLOCK, encoded_bytes
from ddloco.workers import quantization_kernel as module
from ddloco.workers.quantization import NUMPY, NumpyQuantizer
from ddloco.workers.quantization_kernel import CompiledQuantizer, quantizer

FORMATS = ("float32", "bfloat16", "int8", "int4", "e3m0", "int2", "int1")
SCALES = (1.0, 1e-3, 1e-29, 1e-41, 1e19, 3e38)
"""Ordinary values, levels that are nearly too close, subnormal numbers, sums that overflow."""

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


@pytest.fixture
def compiled():
    """The compiled compression."""
    found = quantizer()
    assert isinstance(found, CompiledQuantizer)
    return found


def results(by, form, values, base, error, seed):
    """Everything that two calls write."""
    out = np.full(encoded_bytes(values.size, form), 0xAA, np.uint8)
    lost, read = np.full((2, values.size), 7, np.float32)
    by.encode(values, form, out, base=base, error=error, noise_seed=seed, lost=lost)
    by.decode(out, form, read, base=base)
    return out.tobytes(), lost.tobytes(), read.tobytes()


@needs_compiler
@pytest.mark.parametrize("form", FORMATS)
@given(
    size=st.sampled_from([1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 200 * BLOCK + 130]),
    scale=st.sampled_from(SCALES),
    bad=st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf]),
    given_too=st.tuples(st.booleans(), st.booleans()),
    noise=st.one_of(st.none(), st.integers(0, 2**48)),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_compiled_compression_gives_numpys_bytes(form, size, scale, bad, given_too, noise, seed):
    """For all sizes, with and without a base and an earlier error, to nearest and at random, with
    subnormal and huge numbers, NaN and infinity."""
    numbers = np.random.default_rng(seed).standard_normal((3, size), np.float32)
    with np.errstate(over="ignore"):
        values, base, error = numbers * np.float32(scale)
    values[size // 2] = bad
    more = [each if wanted else None for each, wanted in zip((base, error), given_too, strict=True)]

    one, other = (results(by, form, values, *more, noise) for by in (quantizer(), NUMPY))

    assert one == other


@needs_compiler
def test_arrays_that_c_cannot_read_are_left_to_numpy(compiled):
    """Those with gaps between their elements."""
    values = np.random.default_rng(0).standard_normal(2 * BLOCK, np.float32)[::2]

    found = results(compiled, "int4", values, None, None, None)

    assert found == results(NUMPY, "int4", values, None, None, None)


@needs_compiler
def test_a_library_with_other_bytes_is_not_used(compiled, monkeypatch):
    """Nor is one that is not there: compression is then numpy's."""
    quantizer.cache_clear()
    decode = CompiledQuantizer.decode
    monkeypatch.setattr(
        CompiledQuantizer,
        "decode",
        lambda self, data, form, out, *, base=None: decode(self, data, form, out),
    )
    assert isinstance(quantizer(), NumpyQuantizer)
    monkeypatch.undo()
    quantizer.cache_clear()
    monkeypatch.setattr(module, "LIBRARY", "no_such_file.so")
    assert isinstance(quantizer(), NumpyQuantizer)
    quantizer.cache_clear()
    assert isinstance(compiled, CompiledQuantizer)
