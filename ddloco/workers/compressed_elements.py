"""Elements of a compressed tensor, which are decompressed where they are read."""

from typing import NamedTuple

import numpy as np

from ddloco.job.protocol.compression import BITS, BLOCK, SCALE_BYTES, UNSCALED, Format, blocks_of
from ddloco.workers.quantization import F32, U8
from ddloco.workers.quantization_kernel import quantizer


class CompressedElements(NamedTuple):
    """``LazyElements``, from the first element of a block on, as differences to ``base``; None for
    zeros."""

    scales: U8
    codes: U8
    form: Format
    size: int
    base: F32 | None

    def part(self, start: int, stop: int) -> "CompressedElements":
        """Elements ``start:stop``, of which the first one begins a block."""
        first, last, each = start, stop, BITS[self.form] // 8
        scales, codes, base = self.scales, self.codes, self.base
        if self.form not in UNSCALED:
            first, last, each = start // BLOCK, blocks_of(stop), SCALE_BYTES
            code = BLOCK * BITS[self.form] // 8
            codes = codes[first * code : last * code]
        return CompressedElements(
            scales[first * each : last * each],
            codes,
            self.form,
            stop - start,
            None if base is None else base[start:stop],
        )

    def read(self, start: int = 0) -> F32:
        """Decompress those from ``start`` on, which begins a block."""
        scales, codes, form, size, base = self.part(start, self.size) if start else self
        out = np.empty(size, np.float32)
        quantizer().decode(np.concatenate([scales, codes]), form, out, base=base)
        return out


def compressed_elements(data: U8, form: Format, size: int, base: F32 | None) -> CompressedElements:
    scales = data.size if form in UNSCALED else blocks_of(size) * SCALE_BYTES
    return CompressedElements(data[:scales], data[scales:], form, size, base)


def row_bytes(form: Format, elements: int) -> tuple[int, int]:
    """The bytes of the scales, and of the codes, of whole blocks."""
    bits = elements * BITS[form] // 8
    return (bits, 0) if form in UNSCALED else (elements // BLOCK * SCALE_BYTES, bits)
