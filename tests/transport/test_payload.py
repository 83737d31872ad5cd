"""Payloads: how tensors lie in one run of bytes, and whose digest is whose."""

import ast
import math
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import transport
from transport import DTYPES, Payload, TensorMeta, aligned, describe
from transport.payload import (
    ALIGNMENT,
    ArrivingDigests,
    Pieces,
    broken_tensor,
    copy_payload,
    payload_bytes,
    tensor_bytes,
)

layouts_st = st.lists(
    st.tuples(
        st.text("abc/", min_size=1, max_size=4),
        st.lists(st.integers(0, 5), max_size=3).map(tuple),
        st.sampled_from(sorted(DTYPES)),
    ),
    max_size=5,
    unique_by=lambda tensor: tensor[0],
)


def test_every_name_of_the_package_is_there():
    """What is imported when it is first used is the same as what type checkers see."""
    tree = ast.parse(Path(transport.__file__).read_text())
    seen = next(node for node in tree.body if isinstance(node, ast.If))
    promised = {
        (each.module, alias.name)
        for each in seen.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }

    assert promised == {
        (f"transport.{home}", name) for home, names in transport._HOMES.items() for name in names
    }
    assert all(getattr(transport, name) for _, name in promised)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        transport.nothing  # noqa: B018, it is the attribute that is asked for


def payload_of(layout, seed=0):
    """Give a payload of random bytes."""
    sizes = [math.prod(shape) * DTYPES[dtype].itemsize for _, shape, dtype in layout]
    data = np.random.default_rng(seed).integers(0, 256, sum(map(aligned, sizes)), np.uint8)
    return Payload(describe(data, layout), data)


@given(layouts_st)
def test_a_description_measures_what_is_there(layout):
    """Names, shapes and types are as given, digests are of each tensor's bytes, none is broken."""
    payload = payload_of(layout)

    assert [(m.name, m.shape, m.dtype) for m in payload.tensors] == layout
    assert payload_bytes(payload.tensors) == len(payload.data)
    assert broken_tensor(payload) is None
    start = 0
    for meta in payload.tensors:
        assert start % ALIGNMENT == 0
        assert tensor_bytes(meta) == math.prod(meta.shape) * DTYPES[meta.dtype].itemsize
        piece = payload.data[start : start + tensor_bytes(meta)].tobytes()
        assert meta.digest == xxhash.xxh3_128_digest(piece)
        start += aligned(tensor_bytes(meta))


@given(layouts_st, st.data())
def test_a_changed_byte_breaks_the_tensor_that_it_is_in(layout, data):
    """The broken tensor is named; a byte of padding belongs to no tensor."""
    payload = payload_of(layout)
    if not len(payload.data):
        return
    index = data.draw(st.integers(0, len(payload.data) - 1))
    changed = payload.data.copy()
    changed[index] ^= 0x80
    start, owner = 0, None
    for meta in payload.tensors:
        if start <= index < start + tensor_bytes(meta):
            owner = meta.name
        start += aligned(tensor_bytes(meta))

    assert broken_tensor(Payload(payload.tensors, changed)) == owner


@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=4), st.data())
def test_pieces_read_as_one_array(whole, cuts, data):
    """Any span has the bytes that it has in one array; it is a view if it lies in one piece."""
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    parts = [np.frombuffer(whole[start:stop], np.uint8) for start, stop in pairwise(bounds)]
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))

    span = Pieces(parts)[start:stop]

    assert span.tobytes() == whole[start:stop]
    alone = any(a <= start < stop <= b for a, b in pairwise(bounds))
    assert any(np.shares_memory(span, part) for part in parts) == alone
    assert Payload((), *parts).data.tobytes() == whole


def test_the_whole_digest_covers_names_shapes_types_and_bytes():
    """Two payloads that differ in anything but padding have different digests."""
    layout = [("a", (2, 3), "float32"), ("b", (4,), "bfloat16")]
    one = payload_of(layout)
    others = [
        payload_of([("x", (2, 3), "float32"), layout[1]]),
        payload_of([("a", (3, 2), "float32"), layout[1]]),
        payload_of([layout[0], ("b", (4,), "float16")]),
        payload_of(layout, seed=1),
        payload_of(layout[:1]),
    ]

    assert len({each.digest for each in [one, *others]}) == 6
    assert payload_of(layout).digest == one.digest
    assert len(one.digest) == 16


def test_bfloat16_travels_as_itself():
    """Values written as bfloat16 are read back bit for bit from the payload's bytes."""
    values = np.array([1.0, -2.5, float("inf"), 3e-40], ml_dtypes.bfloat16)
    data = np.zeros(aligned(values.nbytes), np.uint8)
    data[: values.nbytes] = values.view(np.uint8)

    [meta] = describe(data, [("x", (4,), "bfloat16")])

    assert (meta.bits, tensor_bytes(meta)) == (16, 8)
    assert data[:8].view(ml_dtypes.bfloat16).tobytes() == values.tobytes()


@pytest.mark.parametrize(("bits", "nbytes"), [(1, 2), (4, 5), (8, 9), (12, 14), (16, 18)])
def test_narrow_elements_are_counted_in_whole_bytes(bits, nbytes):
    """Nine elements of a few bits take the bytes that they need, rounded up."""
    assert tensor_bytes(TensorMeta("x", (9,), "float16", bits, bytes(16))) == nbytes


@pytest.mark.parametrize(("nbytes", "room"), [(0, 0), (1, 64), (64, 64), (65, 128)])
def test_room_is_a_multiple_of_the_alignment(nbytes, room):
    """Nothing takes no room, anything takes whole cache lines."""
    assert aligned(nbytes) == room


@given(layouts_st, st.lists(st.integers(1, 3000), min_size=1, max_size=5))
def test_digests_are_the_same_in_pieces(layout, lengths):
    """However a payload's bytes arrive, and a copy has the digests of what it copied."""
    payload = payload_of(layout)
    digests = ArrivingDigests(payload.tensors)
    rest, turn = payload.data.data, 0
    while len(rest):
        digests.update(rest[: lengths[turn % len(lengths)]])
        rest, turn = rest[lengths[turn % len(lengths)] :], turn + 1

    assert digests.broken is None
    copied = copy_payload(payload.data, layout)
    assert copied.tensors == payload.tensors
    assert broken_tensor(copied) is None
