"""Compressed differences: the fast path against a plain one, element by element."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ddloco.job.protocol.compression import BITS, BLOCK, blocks_of, encoded_bytes
from ddloco.workers.quantization import SCALE_MIN, decode, encode

SCALED = ("int8", "int4", "e3m0", "int2", "int1")
FORMATS = (*SCALED, "bfloat16", "float32")
HIGHEST = {"int8": 254, "int4": 14, "int2": 3, "int1": 1}

finite = st.floats(-(2.0**60), 2.0**60, width=32)
small = st.floats(-1.0, 1.0, width=32)
differences = st.one_of(
    arrays(np.float32, st.integers(1, 3 * BLOCK), elements=small),
    arrays(np.float32, st.integers(1, 40), elements=finite),
)


def encoded(values, form, seed=None):
    """The bytes of an array."""
    out = np.full(encoded_bytes(values.size, form), 0xAA, np.uint8)
    encode(values, form, out, seed)
    return out


def back(values, form, seed=None):
    """An array as its receiver reads it."""
    return decode(encoded(values, form, seed), form, values.size)


def plain_scale(block, form, count):
    """A block's scale as the docstring of the module says it."""
    with np.errstate(all="ignore"):
        if form == "int2":
            return np.sqrt(np.einsum("i,i->", block, block) / np.float32(count))
        if form == "int1":
            return np.float32(2) * (np.einsum("i->", np.abs(block)) / np.float32(count))
        largest = np.abs(block).max()
        return largest if form == "e3m0" else largest / np.float32(HIGHEST[form] / 2)


def plain_code(value, form):
    """The code of one element that was divided by its block's scale."""
    if form == "e3m0":
        magnitude, level = abs(float(value)), 0
        if magnitude >= 2.0**-7:
            level = 1
            while level < 7 and magnitude >= 1.5 * 2.0 ** (level - 7):
                level += 1
        return level | (8 if np.signbit(value) else 0)
    offset = HIGHEST[form] / 2
    if form in {"int8", "int4"}:
        return int(np.rint(float(value) + offset))
    return int(np.rint(np.clip(value + np.float32(offset), 0, HIGHEST[form])))


def plain(values, form):
    """All scales, then all codes, the first one in the lowest bits: bit by bit."""
    scales, bits = [], []
    filled = np.zeros(blocks_of(values.size) * BLOCK, np.float32)
    filled[: values.size] = values
    for at in range(0, filled.size, BLOCK):
        block = filled[at : at + BLOCK]
        scale = plain_scale(block, form, min(BLOCK, values.size - at))
        scales.append(scale)
        with np.errstate(all="ignore"):
            factor = np.float32(1) / scale if scale >= SCALE_MIN else np.float32(0)
            codes = [plain_code(each * factor, form) for each in block]
        bits += [(code >> n) & 1 for code in codes for n in range(BITS[form])]
    packed = np.packbits(np.array(bits, np.uint8), bitorder="little")
    return np.concatenate([np.array(scales, "<f4").view(np.uint8), packed])


@pytest.mark.parametrize("form", SCALED)
@given(values=differences)
@settings(max_examples=25, deadline=None)
def test_the_fast_path_is_the_plain_one(form, values):
    """Every byte is what the definition says."""
    assert encoded(values, form).tobytes() == plain(values, form).tobytes()


@given(values=differences)
@settings(deadline=None)
def test_bfloat16_is_rounded_as_usual(values):
    """To the nearest, and to even where two are as near."""
    import ml_dtypes

    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert back(values, "bfloat16").tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, 5 * BLOCK + 7, 300 * BLOCK])
def test_what_was_read_may_be_sent_again(form, size):
    """Levels are fixed points where the scale is a largest magnitude: what was read is sent again
    as it is."""
    values = np.random.default_rng(size).normal(size=size).astype(np.float32)
    once = back(values, form)
    assert once.shape == values.shape
    if form in {"float32", "bfloat16", "e3m0"}:
        assert once.tobytes() == back(once, form).tobytes()


ERRORS = {"bfloat16": 0.002, "int8": 0.01, "int4": 0.14, "e3m0": 0.21, "int2": 0.36, "int1": 0.62}


@pytest.mark.parametrize("form", ERRORS)
def test_the_error_is_that_of_the_format(form):
    """Relative to normally distributed differences: the root mean square of what is lost."""
    values = np.random.default_rng(1).normal(size=64 * BLOCK).astype(np.float32)
    lost = back(values, form) - values
    error = float(np.sqrt(np.mean(lost * lost)))
    assert ERRORS[form] / 2 < error < ERRORS[form]


@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4", "e3m0"])
def test_stochastic_rounding_has_no_bias(form):
    """The mean of many roundings is the number, however small it is."""
    values = np.zeros(400 * BLOCK, np.float32)
    values[::BLOCK] = 1.0  # The largest magnitude of each block.
    values[1::BLOCK], values[2::BLOCK], values[3::BLOCK] = 0.004, -0.3, 0.011
    read = back(values, form, 7).reshape(-1, BLOCK)
    near = back(values, form).reshape(-1, BLOCK)
    for column, value in ((1, 0.004), (2, -0.3), (3, 0.011)):
        spacing = max(abs(float(near[0, column])), 2.0**-6) if form != "int8" else 1 / 127
        spacing = 1 / 7 if form == "int4" else spacing
        assert abs(read[:, column].mean() - value) < 4 * spacing / np.sqrt(len(read))
    assert back(values, form, 7).tobytes() == back(values, form, 7).tobytes()
    assert back(values, form, 7).tobytes() != back(values, form, 8).tobytes()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("seed", [None, 3])
def test_what_is_not_finite_stays_so(form, wrong, seed):
    """A merge must be able to refuse it; and the bytes are the same each time."""
    values = np.ones(3 * BLOCK, np.float32)
    values[BLOCK + 5] = wrong
    read = back(values, form, seed)
    assert not np.isfinite(read[BLOCK : 2 * BLOCK]).all()
    assert np.isfinite(read[:BLOCK]).all()
    assert np.isfinite(read[2 * BLOCK :]).all()
    assert encoded(values, form, seed).tobytes() == encoded(values, form, seed).tobytes()


@pytest.mark.parametrize("form", FORMATS)
def test_zeros_and_the_smallest_numbers_are_harmless(form):
    """Their reciprocals are infinite; what is read is finite and not larger."""
    for value in (0.0, 1e-45, 1e-38, 1e-31):
        values = np.full(BLOCK, value, np.float32)
        read = back(values, form)
        assert np.isfinite(read).all()
        assert np.abs(read).max() <= max(1.01 * value, 1e-30)


@pytest.mark.parametrize(("form", "bits"), [("int4", 4.125), ("int1", 1.125), ("bfloat16", 16.0)])
def test_codes_are_packed(form, bits):
    """The bits of an element, with its share of the scale."""
    assert 8 * encoded_bytes(100 * BLOCK, form) / (100 * BLOCK) == bits
