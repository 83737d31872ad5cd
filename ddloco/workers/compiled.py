"""Loads arithmetic that was compiled when ddloco was installed, if it computes as numpy does."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

K = TypeVar("K")


def compiled(
    library: str, make: Callable[[ctypes.CDLL], K], numpy: K, results: Callable[[K], object]
) -> K:
    """Return the compiled form of an interface that ``make`` gives, or numpy's where there is no
    such file, or where its ``results`` from a sample differ from numpy's."""
    try:
        found = make(ctypes.CDLL(str(Path(__file__).with_name(library))))
    except OSError:
        return numpy
    return found if results(found) == results(numpy) else numpy


def address(array: NDArray[Any] | None) -> int | None:
    return None if array is None else array.ctypes.data
