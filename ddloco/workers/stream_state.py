"""A stream's state as bytes, and back: plain data, as Python and numpy have it. What msgpack lacks
is an extension: tuples, whole numbers of more than 64 bits (numpy's PCG64 has two of 128 bits) and
arrays of numbers (MT19937 has one)."""

from typing import Any, cast

import msgpack
import numpy as np

PLAIN = "numbers, text, bytes, lists, tuples, dicts, arrays of numbers"

TUPLE, WHOLE, ARRAY = 1, 2, 3

NUMBERS = "biufc"
"""The kinds of arrays: numpy's ``dtype.kind``."""


def packed_position(state: Any) -> bytes:
    """Return a stream's state as msgpack. Raises ``TypeError`` if something in it is not plain
    data, ``ValueError`` if it is nested too deep, ``OverflowError`` if a text or list is too
    long."""
    # Strict, so that tuples are told from lists.
    return cast("bytes", msgpack.packb(state, default=_extended, strict_types=True))


def unpacked_position(position: bytes) -> Any:
    """Return the state that ``packed_position`` was given."""
    return msgpack.unpackb(position, ext_hook=_read, strict_map_key=False)


def _extended(value: Any) -> Any:
    match value:
        case tuple():
            return msgpack.ExtType(TUPLE, packed_position([*value]))
        case np.ndarray() if value.dtype.kind in NUMBERS:
            content = packed_position([value.dtype.str, [*value.shape], value.tobytes()])
            return msgpack.ExtType(ARRAY, content)
        case np.generic() if value.dtype.kind in NUMBERS:
            return value.item()
        case bool():
            return bool(value)
        case int():
            size = value.bit_length() // 8 + 1
            return msgpack.ExtType(WHOLE, int(value).to_bytes(size, "big", signed=True))
        case float():
            return float(value)
        case str():
            return str(value)
        case dict():
            return dict(value)
        case list():
            return list(value)
        case _:
            raise TypeError(f"it has a {type(value).__name__}")


def _read(code: int, content: bytes) -> Any:
    """The value of an extension; one that is unknown stays as it is."""
    if code == TUPLE:
        return tuple(unpacked_position(content))
    if code == WHOLE:
        return int.from_bytes(content, "big", signed=True)
    if code == ARRAY:
        dtype, shape, data = unpacked_position(content)
        if np.dtype(dtype).kind not in NUMBERS:
            raise ValueError(f"an array of {dtype}")
        return np.frombuffer(data, dtype).reshape(shape).copy()
    return msgpack.ExtType(code, content)
