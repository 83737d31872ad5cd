"""Named tensors in one safetensors file, written so that it is there whole or not at all."""

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
    """Write tensors (name to array; bfloat16 included) under ``path``, atomically and durably.

    The bytes depend on names and values alone, not on any mapping's order or an array's strides.

    Raises:
        OSError: the file cannot be written; whatever stood under ``path`` is untouched.
    """
    assert tensors or not metadata, "of metadata about no tensors the library makes a broken file"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        # The library writes an array's memory as it lies, also where its strides say otherwise.
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
        OSError: there is no such file.
        ValueError: it is no safetensors file; the text names it.
    """
    try:
        return safetensors.numpy.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from None


def load_metadata(path: Path) -> dict[str, str]:
    """The metadata that ``save_tensors`` wrote beside the tensors.

    Raises:
        OSError: there is no such file.
        ValueError: it is no safetensors file; the text names it.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from None


def _sort_metadata(file: BinaryIO) -> None:
    """Bring the metadata into one order; the library writes it in an order drawn anew each time."""
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
