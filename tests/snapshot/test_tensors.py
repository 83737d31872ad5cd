"""Tensors on disk: the values, in bytes that depend on nothing else, whole or not at all."""

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from snapshot import load_tensors, save_tensors

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool"]


def tensor(shape, dtype, seed=0):
    """Give random bits as a tensor, so that NaN payloads and the like are among them."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape, kind.itemsize), np.uint8)
    return raw.view(kind).reshape(shape)


@pytest.fixture
def path(tmp_path):
    """Give a path in a folder that does not exist yet."""
    return tmp_path / "blobs" / "x.safetensors"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (2, 3, 4)])
def test_every_type_and_shape_comes_back_bit_for_bit(path, shape, dtype):
    """Type, shape and every bit are equal, bfloat16 and empty tensors included."""
    value = tensor(shape, dtype)

    save_tensors(path, {"layer/w": value})
    [(name, back)] = load_tensors(path).items()

    assert name == "layer/w"
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "view", [lambda x: x.T, lambda x: x[::-1], lambda x: x[:, ::2], lambda x: x[1:, 1:]]
)
def test_a_view_is_saved_as_what_it_shows(path, view):
    """Strides make no difference: the values and the bytes are those of a straight copy."""
    shown = view(np.arange(20, dtype=np.float32).reshape(4, 5))
    copy = path.with_name("copy")

    save_tensors(path, {"x": shown})
    save_tensors(copy, {"x": shown.copy(order="C")})

    np.testing.assert_array_equal(load_tensors(path)["x"], shown)
    assert path.read_bytes() == copy.read_bytes()


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.permutations(range(6)))
def test_the_bytes_do_not_depend_on_any_order(tmp_path_factory, tensors, facts):
    """Tensors and metadata in another order are the same file."""
    folder = tmp_path_factory.mktemp("orders")
    names = ["a", "b", "é", "z/1", "z/10", "z/2"]
    values = [tensor((i, 2), DTYPES[i], i) for i in range(6)]
    texts = ["", "1", 'quote " and \\', "zwei\n", "\x1f\x7f", "日本"]

    save_tensors(
        folder / "one", dict(zip(names, values, strict=True)), dict(zip(names, texts, strict=True))
    )
    save_tensors(
        folder / "two", {names[i]: values[i] for i in tensors}, {names[i]: texts[i] for i in facts}
    )

    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()
    with safetensors.safe_open(folder / "two", "np") as file:
        assert file.metadata() == dict(zip(names, texts, strict=True))
    for name, value in zip(names, values, strict=True):
        assert load_tensors(folder / "two")[name].tobytes() == value.tobytes()


def test_any_safetensors_reader_reads_it(path):
    """The file is plain safetensors, its metadata where readers look for it."""
    save_tensors(path, {"w": np.ones(3, np.float32)}, {"job": "job-1"})

    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"job": "job-1"}
        assert list(file.keys()) == ["w"]
    assert set(safetensors.numpy.load_file(path)["w"]) == {1.0}


def test_no_tensors_are_a_file_too(path):
    """An empty mapping comes back empty."""
    save_tensors(path, {})

    assert load_tensors(path) == {}


def test_a_failure_leaves_the_old_file(tmp_path, small_disk):
    """On a full disk the error is an OSError that names the file, and the old content stays."""
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"x": np.zeros(1, np.float32)})
    before = path.read_bytes()

    with pytest.raises(OSError, match=str(path)), small_disk(100):
        save_tensors(path, {"x": np.ones(1000, np.float32)})

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_at_the_last_moment_leaves_the_old_file(path, monkeypatch):
    """Until the new file is whole and durable, the old one stands under its name."""
    save_tensors(path, {"x": np.zeros(1, np.float32)})
    before = path.read_bytes()

    def fail(descriptor):
        assert path.read_bytes() == before
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        save_tensors(path, {"x": np.ones(5, np.float32)})

    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path):
    """A file where the folder should be is the system's error."""
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="file"):
        save_tensors(tmp_path / "file" / "x", {})


def test_what_is_not_there_is_an_os_error(tmp_path):
    """A missing file is the system's error."""
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path / "gone")


def test_a_file_cut_anywhere_is_refused_by_name(path):
    """What is no whole safetensors file is a ValueError that names it, and nothing else."""
    save_tensors(path, {"x": tensor((3,), "float32"), "y": tensor((2,), "bfloat16")}, {"a": "b"})
    data = path.read_bytes()

    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=f"{path}: not a safetensors file"):
            load_tensors(path)
