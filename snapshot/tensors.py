"""Named tensors in one safetensors file, written so that it is there whole or not at all."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.numpy
from numpy.typing import NDArray


def save_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors (name to array; bfloat16 included) under ``path``, atomically and durably.

    The bytes depend on names and values alone, not on the mapping's order.

    Raises:
        OSError: the file cannot be written; whatever stood under ``path`` is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        safetensors.numpy.save_file(dict(tensors), partial, dict(metadata or {}))
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
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
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001, the library's error type is not exported
        raise ValueError(f"{path}: not a safetensors file: {error}") from None
