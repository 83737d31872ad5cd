"""Compressed differences of simulated fragments: rounded by the codec of real jobs, not packed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from ddloco.job.config import Job
from ddloco.job.protocol.compression import Format, encoded_bytes
from ddloco.job.protocol.work import EncodeFragment, MergeFragment, Share, SumContributions
from ddloco.workers.quantization_kernel import quantizer

if TYPE_CHECKING:
    from ddloco.workers.simulated.work import Content

F32 = NDArray[np.float32]

DIFFERENCE = -1
"""The last number of a description of a difference between two versions of a fragment."""


class SimulatedCompression:
    def __init__(self, job: Job, incarnation: str) -> None:
        self._settings = job.compress
        self._seed = f"{job.job.seed}/{incarnation}"

    def contribution(
        self, work: EncodeFragment, part: F32, base: F32, error: F32 | None
    ) -> tuple[F32, F32]:
        """A contribution as the syncer will read it, and what the compression has lost."""
        difference = part - base
        if error is not None:
            difference = difference + error
        read = self._rounded(difference, self._settings.up, work.source)
        return read, np.nan_to_num(difference - read, nan=0.0, posinf=0.0, neginf=0.0)

    def sent(self, work: MergeFragment, theta: F32, held: F32) -> tuple[F32, F32]:
        """A merged version as learners will hold it, and the difference as they will read it."""
        read = self._rounded(theta - held, self._settings.down, f"{work.t}/{work.fragment}")
        return held + read, read

    def summed(self, work: SumContributions, directions: F32) -> F32:
        return self._rounded(directions, self._settings.up, work.out)

    def _rounded(self, values: F32, form: Format, what: str) -> F32:
        seed = None
        if self._settings.rounding == "stochastic":
            seed = xxhash.xxh3_64_intdigest(f"{self._seed}/{what}".encode())
        data = np.zeros(encoded_bytes(values.size, form), np.uint8)
        quantizer().encode(values, form, data, noise_seed=seed)
        read = np.empty_like(values)
        quantizer().decode(data, form, read)
        return read


def contributed(work: MergeFragment, share: Share, contents: Mapping[str, "Content"]) -> F32 | None:
    """The parameters that a share of a merge stands for; None without arithmetic."""
    given = contents[share.handle].array
    more = work.differences
    if more is None or given is None or (work.adopt and share.name not in more.anchors):
        return given
    if share.name not in more.anchors:
        theta, held = contents[work.theta].array, contents[more.held or work.theta].array
        if theta is None or held is None or theta is held:
            return given
        return (theta + (given - held)).astype(np.float32)
    anchor = contents[more.anchors[share.name]]
    assert anchor.what == (work.fragment, share.base, 0, 0), "a difference to another version"
    return None if anchor.array is None else anchor.array + given
