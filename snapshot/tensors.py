"""Named tensors in one safetensors file, written atomically."""

import errno
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError


def save_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors (name to array; bfloat16 included) to ``path``, atomically and durably.

    The bytes depend only on names and values, not on the order of mappings or on strides.

    Raises:
        OSError: the file cannot be written; an existing file at ``path`` is unchanged.
    """
    assert tensors or not metadata, "of metadata about no tensors the library makes a broken file"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        # The library writes an array's memory as it is and ignores its strides.
        straight = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
        safetensors.numpy.save_file(straight, partial, dict(metadata) if metadata else None)
        with partial.open("rb+") as file:
            _sort_metadata(file)
            os.fsync(file.fileno())
        partial.replace(path)
    except SafetensorError as error:
        told = re.search(r"os error (\d+)", str(error))
        number = int(told[1]) if told else errno.EIO
        reason = os.strerror(number) if told else str(error)
        raise OSError(number, f"cannot be written: {reason}", str(path)) from None
    except OSError as error:
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(path)) from None
    finally:
        partial.unlink(missing_ok=True)


def load_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read what ``save_tensors`` wrote.

    Raises:
        OSError: the file does not exist.
        ValueError: it is not a safetensors file; names it.
    """
    try:
        return safetensors.numpy.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from None


def load_metadata(path: Path) -> dict[str, str]:
    """Read the metadata that ``save_tensors`` wrote with the tensors.

    Raises:
        OSError: the file does not exist.
        ValueError: it is not a safetensors file; names it.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from None


def _sort_metadata(file: BinaryIO) -> None:
    """Sort the metadata, which the library writes in random order."""
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
    if len(header.get("__metadata__", {})) < 2:
        return
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode().ljust(length)
    assert len(text) == length, "the same header in another order has the same length"
    file.seek(8)
    file.write(text)
    file.flush()
