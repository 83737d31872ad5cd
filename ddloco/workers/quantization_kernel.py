"""Compression of differences, compiled: each block is made, scaled and packed in the first cache.
``quantization_kernel.c`` is compiled when ddloco is installed, by ``hatch_build.py``. Without it
numpy computes the same bytes, more slowly: the two are compared on a sample before the compiled one
is taken."""

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.job.protocol.compression import BLOCK, SCALE_BYTES, Format, blocks_of, encoded_bytes
from ddloco.workers.compiled import address, compiled
from ddloco.workers.quantization import F32, NUMPY, U8, Quantizer

LIBRARY = "_quantization_kernel.so"

FORMS: dict[Format, int] = {
    form: number for number, form in enumerate(("bfloat16", "int8", "int4", "e3m0", "int2", "int1"))
}
"""The formats that the compiled loops know, with how they are told; "float32" is left to numpy."""

_SAMPLE = 5 * BLOCK + 7
"""Whole blocks, and a part of one."""


@cache
def quantizer() -> Quantizer:
    """The fastest compression that this installation has."""
    return compiled(LIBRARY, CompiledQuantizer, NUMPY, _sampled)


class CompiledQuantizer:
    """``Quantizer`` in C, without the GIL."""

    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self._encode = library.ddloco_encode
        self._encode.argtypes = [*[pointer] * 3, size, ctypes.c_int, *[pointer] * 3]
        self._encode.restype = None
        self._decode = library.ddloco_decode
        self._decode.argtypes = [*[pointer] * 3, size, ctypes.c_int, pointer]
        self._decode.restype = None
        self.decoder = ctypes.cast(self._decode, pointer).value
        """The address of ``ddloco_decode``, for other compiled loops."""

    def encode(
        self,
        values: F32,
        form: Format,
        out: U8,
        *,
        base: F32 | None = None,
        error: F32 | None = None,
        noise_seed: int | None = None,
        lost: F32 | None = None,
    ) -> None:
        told = FORMS.get(form)
        if told is None or not _in_rows(values, base, error, lost, out):
            NUMPY.encode(
                *(values, form, out), base=base, error=error, noise_seed=noise_seed, lost=lost
            )
            return
        assert out.size == encoded_bytes(values.size, form), "the format's size"
        read, noise = (address(values), address(base), address(error)), _noise(noise_seed)
        self._encode(*read, values.size, told, address(noise), address(out), address(lost))

    def decode(self, data: U8, form: Format, out: F32, *, base: F32 | None = None) -> None:
        told = FORMS.get(form)
        if told is None or not _in_rows(data, out, base):
            NUMPY.decode(data, form, out, base=base)
            return
        assert data.size == encoded_bytes(out.size, form), "the format's size"
        codes = data[blocks_of(out.size) * SCALE_BYTES :]
        self._decode(address(data), address(codes), address(base), out.size, told, address(out))


def _in_rows(*arrays: NDArray[Any] | None) -> bool:
    """Whether C can read and write the arrays where they are."""
    return all(each is None or (each.flags.c_contiguous and each.flags.aligned) for each in arrays)


def _noise(seed: int | None) -> NDArray[np.uint64] | None:
    """The state of the generator from which numpy would draw; a copy that C may change."""
    if seed is None:
        return None
    state: Any = np.random.SFC64(seed).state
    return np.array(state["state"]["state"], np.uint64)


def _sampled(by: Quantizer) -> list[Any]:
    arrays = np.random.default_rng(0).standard_normal((3, _SAMPLE), np.float32)
    arrays[0, :BLOCK] *= np.float32(1e-33)
    arrays[0, BLOCK], arrays[0, 2 * BLOCK] = np.nan, np.inf
    return [_results(by, form, arrays, seed) for form in FORMS for seed in (None, 11)]


def _results(by: Quantizer, form: Format, arrays: F32, seed: int | None) -> tuple[bytes, ...]:
    values, base, error = arrays
    out = np.empty(encoded_bytes(values.size, form), np.uint8)
    lost, read = np.empty_like(values), np.empty_like(values)
    by.encode(values, form, out, base=base, error=error, noise_seed=seed, lost=lost)
    by.decode(out, form, read, base=base)
    return out.tobytes(), lost.tobytes(), read.tobytes()
