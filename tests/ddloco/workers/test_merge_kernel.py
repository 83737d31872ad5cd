"""The compiled arithmetic of merges has numpy's bits, and is not used where it has not."""

import shutil
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.config import Outer
from ddloco.job.protocol.compression import BLOCK, encoded_bytes
from ddloco.machines.outer.block_kernel import LANES, NumpyKernel
from ddloco.machines.outer.merge import TensorSegment, WeightedFragment, merge_fragment
from ddloco.machines.outer.optimizers.optimizer import STEPS, state_digest
from ddloco.workers import merge_kernel as module
from ddloco.workers.compressed_elements import CompressedElements, compressed_elements
from ddloco.workers.layout import DecompressedOnDemand
from ddloco.workers.merge_kernel import CompiledKernel, merge_kernel
from ddloco.workers.quantization import NUMPY
from ddloco.workers.quantization_kernel import FORMS

SCALES = (1.0, 1e-3, 1e-25, 1e-41, 1e19, 3e37)
"""Ordinary values, squares that vanish, subnormal numbers, squares that overflow."""


@pytest.fixture
def compiled():
    """The compiled arithmetic; only a machine without a compiler may lack it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    kernel = merge_kernel()
    assert isinstance(kernel, CompiledKernel)
    return kernel


def compressed(values, form, base):
    """Values as merges see them if they are compressed differences."""
    data = np.zeros(encoded_bytes(values.size, form), np.uint8)
    NUMPY.encode(values, form, data, base=base)
    return compressed_elements(data, form, values.size, base)


def as_wire(values, dtype):
    """Values in a wire dtype as merges see them."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


@given(
    size=st.sampled_from([1, 7, LANES - 1, LANES, LANES + 1, 3 * LANES, 5 * LANES + 130]),
    learners=st.integers(1, 11),
    dtype=st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
    forms=st.lists(st.sampled_from(["", *FORMS, "float32"]), max_size=3),
    scale=st.sampled_from(SCALES),
    bad=st.sampled_from([0.0, -0.0, np.nan, np.inf]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=200, deadline=None)
def test_compiled_arithmetic_has_numpys_bits(size, learners, dtype, forms, scale, bad, seed):
    """For all wire dtypes and sizes, with subnormal and huge numbers, NaN and infinity; compressed
    in one format or several, with and without a base, among others that are not compressed."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((2 + learners, size), np.float32)
    theta, momentum, *values = numbers * np.float32(scale)
    values[0][size // 2] = bad
    raws = [as_wire(each, dtype) for each in values]
    for number, form in zip(range(learners), cycle(forms)):
        base = None if number % 3 == 0 else values[-1]
        raws[number] = compressed(values[number], form, base) if form else raws[number]
    factors = [float(each) for each in rng.random(learners)]
    found = []
    for kernel in (merge_kernel(), NumpyKernel()):
        out, momentum_out = np.empty_like(theta), np.empty_like(theta)
        with np.errstate(all="ignore"):
            squares = kernel.change_squares(theta, raws)
            square = kernel.weighted_change(theta, raws, factors, out)
            direction = out.copy()
            kernel.nesterov(theta, momentum, (1.7, 0.7, 0.9), (out, momentum_out))
        arrays = [np.array(squares), np.array([square]), direction, out, momentum_out]
        found.append([without_payload(each) for each in arrays])
    assert found[0] == found[1]


def without_payload(array):
    """An array's bytes with one bit pattern for every NaN, whose sign no merge depends on."""
    array = array.copy()
    array[np.isnan(array)] = np.nan
    return array.tobytes()


@pytest.mark.parametrize("form", [*FORMS, "float32"])
def test_a_part_of_compressed_elements_reads_as_the_whole_does(form):
    """From any block on, up to any element, with and without a base."""
    size = 9 * BLOCK + 70
    values, base = np.random.default_rng(1).standard_normal((2, size), np.float32)
    for own in (None, base):
        every = compressed(values, form, own)
        whole = np.empty(size, np.float32)
        data = np.concatenate([every.scales, every.codes])
        NUMPY.decode(data, form, whole, base=own)
        for start, stop in ((0, size), (0, 5), (BLOCK, 3 * BLOCK + 1), (9 * BLOCK, size)):
            part = every.part(start, stop)
            assert part.read().tobytes() == whole[start:stop].tobytes()
            for first in range(0, stop - start, BLOCK):
                assert part.read(first).tobytes() == whole[start + first : stop].tobytes()


def test_a_whole_merge_has_numpys_bits(compiled):
    """Tensors of several blocks, radial and averaged, trained and state, in two dtypes."""
    sizes, rng = (300_000, 1, 5_000), np.random.default_rng(3)
    theta = rng.standard_normal(sum(sizes), np.float32)
    values = [theta + 0.01 * rng.standard_normal(theta.size, np.float32) for _ in range(3)]
    for dtype, width in (("float32", 4), ("bfloat16", 2)):
        segments, start, offset = [], 0, 0
        for size, rule in zip(sizes, ("rda", "average", "median"), strict=True):
            segments.append(TensorSegment(start, start + size, rule, dtype, offset, size == 5_000))
            start, offset = start + size, offset + size * width
        contributions = [
            WeightedFragment(str(n), 1.0 + n, as_wire(each, dtype).view(np.uint8))
            for n, each in enumerate(values)
        ]
        state = {"momentum": 0.1 * theta, STEPS: np.array([3])}
        results = [
            merge_fragment(*(theta, state, contributions, segments), outer=Outer(), kernel=kernel)
            for kernel in (compiled, NumpyKernel())
        ]
        one, other = ([r.theta.tobytes(), state_digest(r.state), r.norms] for r in results)
        assert one == other


@pytest.mark.parametrize("form", [*FORMS, "float32"])
def test_a_whole_merge_of_compressed_contributions_has_the_bits_of_decompressed_ones(form):
    """With every rule, with task state, and beside one that was sent whole; for both kernels."""
    sizes, rng = (300_000, 1, 5_000, 2_000), np.random.default_rng(4)
    theta = rng.standard_normal(sum(sizes), np.float32)
    segments, start = [], 0
    for size, rule in zip(sizes, ("rda", "average", "median", "average"), strict=True):
        place = start, start + size, rule, "float32", start * 4
        segments.append(TensorSegment(*place, state=size < 5_000))
        start += size
    lazy, plain = [], []
    for number in range(4):
        values = theta + 0.01 * rng.standard_normal(theta.size, np.float32)
        rows = []
        for segment in segments:
            part = slice(segment.start, segment.stop)
            row = np.zeros(encoded_bytes(segment.stop - segment.start, form), np.uint8)
            NUMPY.encode(values[part], form, row, base=theta[part])
            rows.append((values[part].view(np.uint8) if segment.state else row, segment))
            if not segment.state:
                NUMPY.decode(row, form, values[part], base=theta[part])
        read = DecompressedOnDemand(rows, form, theta.size, theta)
        whole = values.view(np.uint8)
        lazy.append(WeightedFragment(str(number), 1.0 + number, read if number else whole))
        plain.append(WeightedFragment(str(number), 1.0 + number, whole))
    state = {"momentum": 0.1 * theta, STEPS: np.array([3])}
    results = [
        merge_fragment(*(theta, state, given, segments), outer=Outer(), kernel=kernel)
        for kernel in (merge_kernel(), NumpyKernel())
        for given in (plain, lazy, lazy[1:], plain[1:])
    ]
    told = [(r.theta.tobytes(), state_digest(r.state), r.norms, r.accepted) for r in results]
    assert len(told[0][3]) == 4
    assert told[0] == told[1] == told[4] == told[5] != told[2]
    assert told[2] == told[3] == told[6] == told[7]


@pytest.mark.parametrize("form", FORMS)
def test_compressed_contributions_are_read_by_compiled_loops(compiled, form, monkeypatch):
    """They are not decompressed into memory first, but for what follows the last row."""
    values = np.random.default_rng(2).standard_normal((5, 4 * LANES + 3), np.float32)
    anchor, raws = values[0], [compressed(each, form, values[0]) for each in values[1:]]
    starts = []
    read = CompressedElements.read
    monkeypatch.setattr(
        CompressedElements, "read", lambda self, at=0: starts.append(at) or read(self, at)
    )
    compiled.change_squares(anchor, raws)
    compiled.weighted_change(anchor, raws, [0.25] * 4, np.empty_like(anchor))
    assert starts == [4 * LANES] * 8


def test_a_library_with_other_bits_is_not_used(compiled, monkeypatch):
    """Nor is one that reads one compressed format in another way, or that is not there: merges are
    then numpy's."""
    merge_kernel.cache_clear()
    step = CompiledKernel.nesterov
    monkeypatch.setattr(
        CompiledKernel,
        "nesterov",
        lambda self, theta, b, rates, out: step(self, theta, b, (rates[0], 0.71, rates[2]), out),
    )
    assert isinstance(merge_kernel(), NumpyKernel)
    monkeypatch.undo()
    merge_kernel.cache_clear()
    monkeypatch.setitem(module.FORMS, "int1", module.FORMS["int2"])
    assert isinstance(merge_kernel(), NumpyKernel)
    monkeypatch.undo()
    merge_kernel.cache_clear()
    monkeypatch.setattr(module, "LIBRARY", "no_such_file.so")
    assert isinstance(merge_kernel(), NumpyKernel)
    merge_kernel.cache_clear()
