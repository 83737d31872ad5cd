"""Named arrays as the bytes of a safetensors file, without copying the arrays.

The safetensors library builds a whole file in memory or writes it itself. Here the bytes must also
pass through a hash, and arrays may be as large as memory allows. So this module builds the header
itself, identical to the library's byte for byte, as the tests check. It also reads bfloat16 from
bytes, which the library's ``load`` cannot.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import Any, cast

import ml_dtypes
import msgspec
import numpy as np
from numpy.typing import NDArray

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "F32": np.dtype(np.float32),
    "C64": np.dtype(np.complex64),
    "F64": np.dtype(np.float64),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
}
"""In the format's order; later types are written first, so that every array is aligned."""

CODES = {dtype: code for code, dtype in DTYPES.items()}
RANKS = {code: rank for rank, code in enumerate(DTYPES)}
METADATA = "__metadata__"
LENGTH_BYTES = 8


class PackingError(ValueError):
    """Arrays cannot be packed, or bytes are not packed arrays."""


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def pack(
    arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> list[memoryview]:
    """The bytes of a safetensors file: its header, then the memory of the arrays themselves.

    Only arrays that are not contiguous are copied. The bytes depend only on names and values. The
    arrays must not change before the bytes are used. ``unpack`` reads no bytes with metadata, the
    library does.

    Raises:
        PackingError: a name or a dtype that the format does not support.
    """
    order = sorted(arrays, key=lambda name: (-RANKS[_code(name, arrays[name])], name.encode()))
    straight = [np.asarray(arrays[name], order="C") for name in order]
    header: dict[str, Any] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name, array in zip(order, straight, strict=True):
        offsets = [at, at + array.nbytes]
        header[name] = {
            "dtype": _code(name, array),
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    views = [memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text)]
    return views + [_bytes_of(array) for array in straight if array.nbytes]


def _code(name: str, array: NDArray[Any]) -> str:
    if name == METADATA:
        raise PackingError(f"{name}: a name that the format keeps for itself")
    code = CODES.get(array.dtype)
    if code is None:
        raise PackingError(f"{name}: {array.dtype} is not a type of the format; want {_types()}")
    return code


def _types() -> str:
    return ", ".join(str(dtype) for dtype in DTYPES.values())


def _bytes_of(array: NDArray[Any]) -> memoryview:
    return memoryview_of(array.reshape(-1).view(np.uint8))


def memoryview_of(data: NDArray[np.uint8]) -> memoryview:
    """The memory of an array; before Python 3.12 type checkers do not know the buffer protocol."""
    return memoryview(cast("Any", data))


def packed_start(head: bytes | bytearray) -> int:
    """Where the arrays begin in bytes from ``pack`` that begin with ``head``."""
    return LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "little")


def unpack(data: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """The arrays in bytes from ``pack``, sorted by name, as views of ``data``; raises
    PackingError."""
    try:
        start = packed_start(data[:LENGTH_BYTES].tobytes())
        if start > len(data):
            said = f"a header of {start - LENGTH_BYTES} bytes in a file of {len(data)}"
            raise PackingError(said)
        text = data[LENGTH_BYTES:start].tobytes()
        specs = msgspec.json.decode(text, type=dict[str, _Spec])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PackingError(f"no safetensors header: {error}") from None
    return {name: _array(name, specs[name], data[start:]) for name in sorted(specs)}


def _array(name: str, spec: _Spec, data: NDArray[np.uint8]) -> NDArray[Any]:
    dtype = DTYPES.get(spec.dtype)
    if dtype is None:
        raise PackingError(f"{name}: {spec.dtype} is an unknown type")
    first, stop = spec.data_offsets
    if min(spec.shape, default=0) < 0 or stop - first != prod(spec.shape) * dtype.itemsize:
        raise PackingError(f"{name}: {stop - first} bytes for the shape {list(spec.shape)}")
    if not 0 <= first <= stop <= len(data):
        raise PackingError(f"{name}: lies at {first} to {stop} of {len(data)} bytes")
    return data[first:stop].view(dtype).reshape(spec.shape)
