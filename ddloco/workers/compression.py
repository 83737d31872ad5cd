"""Compressed differences of fragments: made, taken apart, and merged (paper section 5). Upwards the
difference is to the version that a learner trained from; downwards it is between the new version
and what learners hold of the one before; so what a version loses is part of the next difference."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from ddloco.job.config import Job
from ddloco.job.protocol.work import EncodeFragment, MergeFragment, Share, SumContributions
from ddloco.machines.outer.merge import SummedFragment, TensorSegment, WeightedFragment
from ddloco.stage.arrays.array_table import F32, ArrayTable, HostCopy
from ddloco.workers.layout import Layouts
from transport import Bytes, Payload


class MergeInputs(NamedTuple):
    """The contributions of a merge or of a relay's sum, the tensors in them, and what their changes
    are measured from: the global fragment as learners hold it, flat float32; and, of a merge, the
    sums of relays."""

    contributions: list[WeightedFragment]
    segments: tuple[TensorSegment, ...]
    anchor: F32
    sums: Sequence[SummedFragment] = ()


class FragmentCompression:
    """The arithmetic of one actor's compressed differences; its noise differs from that of
    others."""

    def __init__(self, job: Job, name: str, layouts: Layouts, arrays: ArrayTable) -> None:
        self._job = job
        self._name = name
        self._settings = job.compress
        self._seed = f"{job.job.seed}/{name}"
        self._layouts = layouts
        self._arrays = arrays

    def with_layouts(self, layouts: Layouts) -> "FragmentCompression":
        return FragmentCompression(self._job, self._name, layouts, self._arrays)

    def contribution(self, work: EncodeFragment) -> tuple[Payload, F32 | None]:
        """Compress a learner's contribution; returns also what it lost, flat float32, with error
        feedback."""
        p = work.fragment
        host: HostCopy = self._arrays.get(work.source)
        elements = self._layouts.segments(p)[-1].stop
        # Of a difference that is not finite nothing is kept: the syncer will refuse it as a whole.
        lost = np.empty(elements, np.float32) if work.error_out else None
        payload = self._layouts.compressed(
            *(p, self._settings.up),
            host.part(*self._layouts.plan.fragment_slice(p)),
            self._arrays.get(work.base).data,
            error=self._arrays.get(work.error) if work.error else None,
            lost=lost,
            noise_seed=self._noise(work.source, p),
        )
        return payload, lost

    def version(self, fragment: int, base: Bytes, difference: Bytes) -> Payload:
        flat = self._layouts.decompressed(fragment, self._settings.down, difference, base)
        return self._layouts.sent(fragment, flat)

    def to_send(self, work: MergeFragment, theta: F32, held: Payload) -> tuple[Payload, Payload]:
        p, down = work.fragment, self._settings.down
        noise_seed = self._noise(f"{work.t}", p)
        difference = self._layouts.compressed(p, down, theta, held.data, noise_seed=noise_seed)
        return self.version(p, held.data, difference.data), difference

    def merged(self, work: MergeFragment, theta: F32) -> MergeInputs:
        """Return the inputs of a merge into ``theta``. If a learner has sent a difference, every
        contribution is read as flat float32 parameters: those of the base version, plus what the
        learner has changed."""
        p, anchor = work.fragment, self._held(work, theta)
        anchors = work.differences.anchors if work.differences is not None else {}
        alone = [share for share in work.shares if share.handle not in work.sums]
        given: list[tuple[Share, Payload]] = [(s, self._arrays.get(s.handle)) for s in alone]
        sums = self._sums(work)
        if not anchors:
            whole = [WeightedFragment(s.name, s.weight, each.pieces) for s, each in given]
            return MergeInputs(whole, self._layouts.segments(p), anchor, sums)
        contributions: list[WeightedFragment] = []
        for share, payload in given:
            if share.name in anchors:
                base: F32 = self._arrays.get(anchors[share.name])
                read = self._layouts.on_demand(p, self._settings.up, payload.pieces, base)
            else:
                flat = self._layouts.flat(p, payload.data)
                if anchor is not theta:
                    with np.errstate(all="ignore"):
                        flat = theta + (flat - anchor)
                read = flat.view(np.uint8)
            contributions.append(WeightedFragment(share.name, share.weight, read))
        return MergeInputs(contributions, self._layouts.flat_segments(p), theta, sums)

    def _sums(self, work: MergeFragment) -> list[SummedFragment]:
        """The sums of relays among the inputs of a merge, each in the place of its first name."""
        found: list[SummedFragment] = []
        for handle in dict.fromkeys(share.handle for share in work.shares):
            told = work.sums.get(handle)
            if told is None:
                continue
            shares = [share for share in work.shares if share.handle == handle]
            payload: Payload = self._arrays.get(handle)
            read = self._layouts.on_demand(work.fragment, told.form, payload.pieces)
            names, weights = [s.name for s in shares], [s.weight for s in shares]
            found.append(SummedFragment(names, weights, read, told.lengths))
        return found

    def summed(self, work: SumContributions) -> MergeInputs:
        """The inputs of a relay's sum: all changes are measured from the version of its anchor."""
        p, anchor = work.fragment, self._layouts.flat(work.fragment, self._data(work.anchor))
        given: list[tuple[Share, Payload]] = [(s, self._arrays.get(s.handle)) for s in work.shares]
        if not work.differences:
            whole = [WeightedFragment(s.name, s.weight, each.pieces) for s, each in given]
            return MergeInputs(whole, self._layouts.segments(p), anchor)
        contributions: list[WeightedFragment] = []
        for share, payload in given:
            if share.name in work.differences:
                read = self._layouts.on_demand(p, self._settings.up, payload.pieces, anchor)
            else:
                read = self._layouts.flat(p, payload.data).view(np.uint8)
            contributions.append(WeightedFragment(share.name, share.weight, read))
        return MergeInputs(contributions, self._layouts.flat_segments(p), anchor)

    def sum_payload(self, work: SumContributions, directions: F32) -> Payload:
        p, seed = work.fragment, self._noise(work.out, work.fragment)
        return self._layouts.compressed(p, self._settings.up, directions, None, noise_seed=seed)

    def _data(self, handle: str) -> Bytes:
        payload: Payload = self._arrays.get(handle)
        return payload.data

    def _held(self, work: MergeFragment, theta: F32) -> F32:
        """What learners hold of ``theta``, flat: as it was rounded for the wire, or what compressed
        differences have made of it. Task state is averaged, so it is taken as it is; and a merge
        that adopts the learners' version takes nothing of ``theta``."""
        p, more = work.fragment, work.differences
        if work.adopt:
            return theta
        if more is not None and more.held:
            held = self._layouts.flat(p, self._arrays.get(more.held).data)
        else:
            held = self._layouts.rounded(p, theta)
        if held is not theta:
            for segment in self._layouts.segments(p):
                if segment.state:
                    held[segment.start : segment.stop] = theta[segment.start : segment.stop]
        return held

    def _noise(self, what: str, fragment: int) -> int | None:
        """The seed of stochastic rounding: the same in every replay, another for every payload."""
        if self._settings.rounding == "nearest":
            return None
        return xxhash.xxh3_64_intdigest(f"{self._seed}/{what}/{fragment}".encode()) >> 16
