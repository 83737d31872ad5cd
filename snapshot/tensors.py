"""Named tensors in one safetensors file, written atomically."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from clocks import replace_file
from snapshot.packing import pack


def save_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors (name to array; bfloat16 included) to ``path``, atomically and durably.

    The bytes depend only on names and values, not on the order of mappings or on strides. Only
    tensors that are not contiguous are copied.

    Raises:
        OSError: the file cannot be written; an existing file at ``path`` is unchanged.
        PackingError: a name or a dtype that the format does not support.
    """
    views = pack(tensors, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        replace_file(path, views, durable=True, suffix="partial")
    except OSError as error:
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(path)) from None


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
