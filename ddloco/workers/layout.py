"""The layouts of a fragment: part of a whole host copy, bytes on the wire (the same, each tensor
aligned and in its own dtype), and flat float32 for merging, without padding. A compressed
difference is a payload of as many tensors, each a row of bytes."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddloco.job.config import Outer
from ddloco.job.protocol.compression import BLOCK, Format, compressed_layout
from ddloco.job.protocol.fragment_plan import FragmentPlan, wire_layout
from ddloco.machines.outer.block_kernel import Raw
from ddloco.machines.outer.merge import LazyFragment, TensorSegment, fragment_segments
from ddloco.stage.arrays.array_table import F32
from ddloco.workers.compressed_elements import CompressedElements, compressed_elements
from ddloco.workers.quantization_kernel import quantizer
from transport import DTYPES, Bytes, Payload, Pieces, aligned, copy_payload, describe


def tensors_of(plan: FragmentPlan, fragment: int, data: Bytes) -> dict[str, NDArray[Any]]:
    """The tensors of a fragment by name, as views of its bytes (uint8)."""
    start, found = plan.fragment_slice(fragment)[0], {}
    for index, leaf in enumerate(plan.fragments[fragment]):
        at = plan.tensor_offset(fragment, index) - start
        view = data[at : at + leaf.nbytes].view(DTYPES[leaf.dtype])
        found[leaf.name] = view.reshape(leaf.shape)
    return found


class Layouts:
    def __init__(self, plan: FragmentPlan, outer: Outer) -> None:
        self.plan = plan
        self._outer = outer
        self._segments: dict[int, tuple[TensorSegment, ...]] = {}

    def segments(self, fragment: int) -> tuple[TensorSegment, ...]:
        if fragment not in self._segments:
            self._segments[fragment] = fragment_segments(self.plan, fragment, self._outer)
        return self._segments[fragment]

    def copied(self, fragment: int, data: Bytes) -> Payload:
        return copy_payload(data, wire_layout(self.plan, fragment))

    def described(self, fragment: int, data: Bytes) -> Payload:
        """A payload of a fragment's bytes where they are, which must not change any more."""
        return Payload(describe(data, wire_layout(self.plan, fragment)), data)

    def sent(self, fragment: int, flat: F32, out: Bytes | None = None) -> Payload:
        return self.described(fragment, self.wire(fragment, flat, out))

    def is_flat(self, fragment: int) -> bool:
        """Whether a fragment's bytes are those of flat float32, without padding."""
        start, stop = self.plan.fragment_slice(fragment)
        leaves = self.plan.fragments[fragment]
        packed = sum(leaf.nbytes for leaf in leaves) == stop - start
        return packed and all(leaf.dtype == "float32" for leaf in leaves)

    def flat(self, fragment: int, data: Bytes) -> F32:
        """Convert a fragment's bytes to flat float32 without padding."""
        segments = self.segments(fragment)
        flat = np.empty(segments[-1].stop, np.float32)
        for part, view in _views(segments, data):
            flat[part] = view
        return flat

    def wire(self, fragment: int, flat: F32, out: Bytes | None = None) -> Bytes:
        """Convert flat float32 to a fragment's bytes in wire dtypes, with zero padding, written to
        ``out`` or a new array; or return those of ``flat``, if these are the same: neither array is
        changed any more."""
        if self.is_flat(fragment):
            return flat.view(np.uint8)
        start, stop = self.plan.fragment_slice(fragment)
        data = np.empty(stop - start, np.uint8) if out is None else out
        data.fill(0)
        for part, view in _views(self.segments(fragment), data):
            view[:] = flat[part]
        return data

    def rounded(self, fragment: int, flat: F32) -> F32:
        """What a learner holds of a global fragment that was sent whole, as flat float32."""
        if all(leaf.dtype == "float32" for leaf in self.plan.fragments[fragment]):
            return flat
        return self.flat(fragment, self.wire(fragment, flat))

    def flat_segments(self, fragment: int) -> tuple[TensorSegment, ...]:
        """The tensors of a fragment, with how each is merged, where contributions are flat."""
        return tuple(
            segment._replace(dtype="float32", offset=segment.start * 4)
            for segment in self.segments(fragment)
        )

    def compressed(
        self,
        fragment: int,
        form: Format,
        values: Bytes | F32,
        base: Bytes | F32 | None,
        *,
        error: F32 | None = None,
        lost: F32 | None = None,
        noise_seed: int | None = None,
    ) -> Payload:
        """Return the difference between two versions of a fragment, as bytes or flat, compressed;
        see ``Quantizer.encode``. Without ``base`` the values are the difference; ``error`` is what
        earlier compressions lost, ``lost`` is filled with what this one loses."""
        layout = compressed_layout(self.plan, fragment, form)
        data = np.zeros(sum(aligned(shape[0]) for _, shape, _ in layout), np.uint8)
        for number, (out, segment) in enumerate(self._rows(fragment, form, data)):
            part = slice(segment.start, segment.stop)
            if segment.state:
                out.view(np.float32)[:] = _tensor(segment, values)
                if lost is not None:
                    lost[part] = 0.0
                continue
            quantizer().encode(
                _tensor(segment, values),
                form,
                out,
                base=None if base is None else _tensor(segment, base),
                error=None if error is None else error[part],
                noise_seed=None if noise_seed is None else noise_seed + number,
                lost=None if lost is None else lost[part],
            )
        return Payload(describe(data, layout), data)

    def decompressed(
        self, fragment: int, form: Format, data: Bytes | Pieces, base: Bytes | F32
    ) -> F32:
        """The version, flat, that a compressed payload leads to from ``base``."""
        flat = np.empty(self.segments(fragment)[-1].stop, np.float32)
        for row, segment in self._rows(fragment, form, data):
            part = flat[segment.start : segment.stop]
            if segment.state:
                part[:] = row.view(np.float32)
            else:
                quantizer().decode(row, form, part, base=_tensor(segment, base))
        return flat

    def _rows(
        self, fragment: int, form: Format, data: Bytes | Pieces
    ) -> Iterator[tuple[Bytes, TensorSegment]]:
        """The bytes of each tensor in a compressed payload; tensors without elements have none."""
        at = 0
        for (_, (size,), _), segment in zip(
            compressed_layout(self.plan, fragment, form), self.segments(fragment), strict=True
        ):
            if size:
                yield data[at : at + size], segment
            at += aligned(size)

    def on_demand(
        self, fragment: int, form: Format, data: Bytes | Pieces, base: F32 | None = None
    ) -> "DecompressedOnDemand":
        """What ``decompressed`` returns, as bytes that are computed where they are read; the
        difference itself if there is no base."""
        rows, elements = list(self._rows(fragment, form, data)), self.segments(fragment)[-1].stop
        return DecompressedOnDemand(rows, form, elements, base)

    def bytes_of(self, fragment: int, stored: Payload | F32) -> Bytes:
        """The bytes of a global fragment, whether merged here or received from another syncer."""
        return stored.data if isinstance(stored, Payload) else self.wire(fragment, stored)


class DecompressedOnDemand(LazyFragment):
    """A fragment of which only the differences to ``base`` are in memory. A merge reads every
    element twice, in rows that stay in the first cache where it is compiled, so this is no slower
    than reading the whole fragment from memory. Without a base the differences themselves are
    read."""

    def __init__(
        self,
        rows: Sequence[tuple[Bytes, TensorSegment]],
        form: Format,
        elements: int,
        base: F32 | None,
    ) -> None:
        self.size = 4 * elements
        self._starts = [segment.start for _, segment in rows]
        self._tensors: list[NDArray[Any] | CompressedElements] = []
        for row, segment in rows:
            if segment.state:
                self._tensors.append(row.view(np.float32))
                continue
            own = None if base is None else base[segment.start : segment.stop]
            size = segment.stop - segment.start
            self._tensors.append(compressed_elements(row, form, size, own))

    def elements(self, start: int, stop: int) -> Raw:
        if not self._tensors:  # Of a fragment without elements.
            return np.empty(0, np.float32)
        which = bisect_right(self._starts, start) - 1
        tensor, first = self._tensors[which], self._starts[which]
        start, stop = start - first, stop - first
        if isinstance(tensor, np.ndarray):
            return tensor[start:stop]
        within = start % BLOCK
        part = tensor.part(start - within, stop)
        return part.read()[within:] if within else part


def _tensor(segment: TensorSegment, stored: Any) -> F32:
    """A tensor of a fragment, given as bytes or flat, in float32; copied only to convert it."""
    if stored.dtype == np.float32:
        return stored[segment.start : segment.stop]
    ((_, view),) = _views((segment,), stored)
    return view.astype(np.float32, copy=False)


def _views(segments: tuple[TensorSegment, ...], data: Bytes) -> list[tuple[slice, Any]]:
    """For each tensor its slice of the flat fragment, and its view of the bytes."""
    views: list[tuple[slice, Any]] = []
    for segment in segments:
        dtype = DTYPES[segment.dtype]
        stop = segment.offset + (segment.stop - segment.start) * dtype.itemsize
        view = data[segment.offset : stop].view(dtype)
        views.append((slice(segment.start, segment.stop), view))
    return views
