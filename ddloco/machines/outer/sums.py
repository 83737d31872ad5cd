"""What a relay makes of its learners' contributions: one sum, which is merged as they would be. For
each tensor it has the two weighted means that a merge needs, of the directions that the merge rule
adds and of their lengths (paper 3.5, App. D.2). Both are additive; weights are relative to the sum
of those in it, which the syncer knows.

Outliers are judged by the relay, among the contributions that it has. Of two with opposite
directions it accepts both: it has no optimizer to tell which one is wrong.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ddloco.machines.outer.block_kernel import F32, NUMPY, BlockKernel
from ddloco.machines.outer.merge import (
    Chunk,
    ChunkMap,
    FindFaults,
    MergeInput,
    TensorSegment,
    WeightedFragment,
    chunks_of,
    factors_of,
    gather_chunk,
    judge,
    sorted_by_name,
)
from ddloco.machines.outer.merge_rules import MERGE_RULES


class ContributionsTotal(NamedTuple):
    """Contributions summed for a merge: for each tensor the weighted mean of their directions, flat
    float32, and that of their lengths; ``refused`` holds (name, reason)."""

    directions: F32
    lengths: tuple[float, ...]
    accepted: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


def sum_contributions(
    anchor: F32,
    contributions: Sequence[WeightedFragment],
    segments: Sequence[TensorSegment],
    *,
    map_chunks: ChunkMap = map,
    outlier_test: FindFaults | None = None,
    kernel: BlockKernel = NUMPY,
) -> ContributionsTotal:
    """Sum contributions to one fragment, in any order; see ``merge_fragment`` for what is rejected.
    No rule of the segments is the median. The sum is zero if nothing is accepted, or all weights
    are 0. Raises ``ValueError`` if two have the same name."""
    work = MergeInput(
        anchor, anchor, segments, chunks_of(anchor.size, segments), map_chunks, kernel
    )
    accepted, squares, _, refused = judge(work, contributions, outlier_test)
    refusals = sorted_by_name(refused)
    total = sum(each.weight for each in accepted)
    out = np.zeros_like(anchor)
    if total == 0.0:
        names = tuple(each.name for each in accepted)
        return ContributionsTotal(out, (0.0,) * len(segments), names, refusals)
    weights = [each.weight / total for each in accepted]
    columns: list[list[float]] = np.sqrt(squares).T.tolist()

    def gather(chunk: Chunk) -> float:
        rule = MERGE_RULES[chunk.segment.rule]
        how = rule, factors_of(rule, weights, columns[chunk.which]), ()
        return gather_chunk(work, accepted, how, chunk, out)

    for _ in work.map_chunks(gather, work.chunks):
        pass
    lengths = tuple(sum(w * n for w, n in zip(weights, row, strict=True)) for row in columns)
    return ContributionsTotal(out, lengths, tuple(each.name for each in accepted), refusals)
