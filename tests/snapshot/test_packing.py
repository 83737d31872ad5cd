"""Arrays as safetensors bytes: the library's own, from where the arrays lie."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot.packing import DTYPES, PackingError, pack, unpack

SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (2, 3, 4)]


def tensor(shape, dtype, seed=0):
    """Give random bits as a tensor."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


def packed(arrays):
    """The bytes in one run."""
    return b"".join(pack(arrays))


def back(data):
    """The arrays in bytes."""
    return unpack(np.frombuffer(bytearray(data), np.uint8))


def same(a, b):
    """Whether two mappings hold the same names, types, shapes and bits."""
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].shape, a[n].tobytes()) == (b[n].dtype, b[n].shape, b[n].tobytes())
        for n in a
    )


@pytest.mark.parametrize("code", DTYPES)
def test_every_type_and_shape_is_what_the_library_writes(code):
    """The bytes equal the library's, and the arrays come back bit for bit."""
    arrays = {f"t{shape}": tensor(shape, DTYPES[code]) for shape in SHAPES}

    data = packed(arrays)

    assert data == safetensors.numpy.save(arrays)
    assert same(arrays, back(data))


def test_types_together_lie_in_the_library_s_order(tmp_path):
    """Of all types at once the bytes are the library's, and its reader finds bfloat16 there."""
    arrays = {f"n{i % 5}/{code}": tensor((i, 3), d) for i, (code, d) in enumerate(DTYPES.items())}
    assert packed(arrays) == safetensors.numpy.save(arrays)

    # Its reader does not know small floats under numpy.
    arrays = {name: each for name, each in arrays.items() if "F8" not in name}
    path = tmp_path / "x"
    path.write_bytes(packed(arrays))
    read = safetensors.numpy.load_file(path)
    assert any(each.dtype == ml_dtypes.bfloat16 for each in read.values())
    assert same(arrays, read)


def test_nothing_is_packed_like_the_library_does():
    """No arrays at all are a file, too."""
    assert packed({}) == safetensors.numpy.save({})
    assert back(packed({})) == {}


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(st.sampled_from(SHAPES), st.sampled_from(sorted(DTYPES))),
        max_size=6,
    )
)
def test_any_names_in_any_order(specs):
    """Names of any characters are escaped as the library does; a mapping's order is nothing."""
    arrays = {name: tensor(shape, DTYPES[code]) for name, (shape, code) in specs.items()}

    data = packed(arrays)

    assert data == safetensors.numpy.save(arrays)
    assert data == packed(dict(reversed(arrays.items())))
    assert same(arrays, back(data))


def test_strides_are_no_matter():
    """A transposed array has the bytes of its values."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T

    assert same({"x": array.copy()}, back(packed({"x": array})))


def test_arrays_are_not_copied():
    """What is packed is the arrays' own memory."""
    array = np.zeros(100, np.float32)
    views = pack({"x": array})
    array[:] = 1

    assert bytes(views[1]) == array.tobytes()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"__metadata__": np.zeros(1)}, "keeps for itself"),
        ({"x": np.zeros(1, ">f4")}, "x: >f4 is not a type of the format; want bool"),
        ({"x": np.array(["a"])}, "not a type of the format"),
        ({"x": np.zeros(1, complex)}, "not a type of the format"),
        ({"x": np.array([None])}, "not a type of the format"),
    ],
)
def test_what_the_format_lacks_is_refused(arrays, said):
    """A name or type that cannot be written is one line that says so."""
    with pytest.raises(PackingError, match=said):
        pack(arrays)


def test_no_bytes_but_packed_ones_are_read():
    """Cut or changed anywhere in the header, bytes are refused or read within their bounds."""
    data = packed({"x": np.arange(3, dtype=np.int32), "y": np.zeros(2)})
    nested = b'{"x":{"y":' + b"[" * 100_000
    deep = len(nested).to_bytes(8, "little") + nested
    with pytest.raises(PackingError, match="no safetensors header"):
        back(deep)
    start = 8 + int.from_bytes(data[:8], "little")
    for length in range(len(data)):
        with pytest.raises(PackingError):
            back(data[:length])
    for at in range(start):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            try:
                arrays = back(changed)
            except PackingError:
                continue
            assert all(array.nbytes <= len(data) for array in arrays.values())
