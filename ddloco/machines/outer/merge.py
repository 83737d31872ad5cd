"""One merge of one fragment: weights, a merge rule, an outer step (paper 3.4 to 3.6). It is a pure
function of the values.

Sign: a contribution's outer gradient is Delta = Theta - theta, and the outer optimizer descends.
Theta is the *anchor*, the fragment as learners hold it: measured from theta itself, what a narrow
wire rounds off would be a part of every outer gradient, and pull theta back.

Contributions are sorted by name as UTF-8 bytes, blocks are counted from the start of each tensor,
and their sums are added in float64, so neither the order of arrival nor threads can change the
bits.

Memory is the bound. Pass one reads the anchor and the M contributions, pass two reads them again
and writes the direction, pass three reads direction, state and Theta: with Nesterov 2M + 8 in all.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from math import hypot, isfinite, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ddloco.job.config import MergeRuleName, Outer
from ddloco.job.protocol.fragment_plan import FragmentPlan, is_state
from ddloco.machines.outer.block_kernel import (
    F32,
    NUMPY,
    BlockKernel,
    Raw,
    elements_of,
    square_sum,
    subtract,
)
from ddloco.machines.outer.merge_rules import (
    AVERAGE,
    MERGE_RULES,
    MergeRule,
    tensor_rule,
    value_rule,
)
from ddloco.machines.outer.optimizers.optimizer import STEPS, OuterStep, State
from ddloco.machines.outer.optimizers.table import OPTIMIZERS, zero_state
from transport import Bytes

F64 = NDArray[np.float64]


class FindFaults(Protocol):
    def __call__(
        self,
        candidates: Sequence["WeightedFragment"],
        norms: Sequence[float],
        faults: Sequence[str],
        /,
    ) -> list[str]:
        """Return all faults of contributions that came directly."""
        ...

    def fault_of_sum(self, names: Sequence[str], length: float) -> str:
        """Return the fault of a relay's sum, given the mean length of what is in it."""
        ...


ChunkMap = Callable[[Callable[["Chunk"], Any], Iterable["Chunk"]], Iterable[Any]]

# Four float32 blocks of this size fit the caches; with smaller ones threads compete for the GIL.
BLOCK_ELEMENTS = 128 * 1024
CHUNK_BLOCKS = 4  # The unit of work for a pool of threads: about a millisecond.

# Outside these bounds a block's sum of squares may have lost elements to float32's range.
SQUARES_MIN, SQUARES_MAX = 1e-28, 1e37
# A larger change of a tensor is rejected: weights times such changes would leave float32's range.
NORM_MAX = 1e30

NOT_FINITE = "NaN or Inf"
"""What a fault says of a tensor of which a number is not finite."""

SUM_SLACK = 2.0
"""How many times longer the mean of directions in a relay's sum may be than each of them: rounding
in any format of ``[compress]`` lengthened differences by at most 4 % where that was measured."""

REPLACING = Outer(optimizer="sgd", lr=1.0)
"""The step that replaces values by the merged ones."""

_VIEWS = {"float32": "<f4", "float64": "<f8", "float16": "<f2", "bfloat16": "<u2"}


class TensorSegment(NamedTuple):
    """One tensor: elements `start:stop` of the flat float32 fragment, merged by `rule`. In a
    contribution's buffer it starts at byte `offset` from the fragment's start, little-endian, in
    `dtype`. A tensor of `state` is not trained: it becomes what its rule makes of the values,
    without an outer optimizer, and counts neither for a contribution's norm nor for its
    direction. A fault names it by its `name`."""

    start: int
    stop: int
    rule: MergeRuleName
    dtype: str
    offset: int
    state: bool = False
    name: str = ""


class FragmentBytes(Protocol):
    """Bytes of which ranges within one tensor are read, such as ``Pieces``."""

    @property
    def size(self) -> int:
        """The number of bytes."""
        ...

    def __getitem__(self, span: slice) -> Bytes:
        """Return the bytes of a span, which has a start and a stop."""
        ...


class LazyFragment:
    """The bytes of a flat float32 fragment, whose elements are computed where they are read."""

    size: int

    def __getitem__(self, span: slice) -> Bytes:
        return elements_of(self.elements(span.start // 4, span.stop // 4)).view(np.uint8)

    def elements(self, start: int, stop: int) -> Raw:
        """Return those of a span in one tensor, lazy if its start is a multiple of ``LANES`` in
        it."""
        raise NotImplementedError


class WeightedFragment(NamedTuple):
    """A learner's copy of the fragment: its name, merge weight (>= 0) and raw uint8 bytes."""

    name: str
    weight: float
    buffer: Bytes | FragmentBytes


class SummedFragment(NamedTuple):
    """What a relay has made of several contributions (see `sums`): their names and merge weights,
    flat float32 bytes with the weighted mean of their directions, and for each tensor that of their
    lengths."""

    names: Sequence[str]
    weights: Sequence[float]
    buffer: Bytes | FragmentBytes
    lengths: Sequence[float]


class MergeResult(NamedTuple):
    """The new fragment, and the contributions: `accepted` and `weights` (sum 1) are parallel, and
    so are `norms` (l2 of the change of the fragment's parameters) where there are no sums;
    `refused` holds (name, reason)."""

    theta: F32
    state: State
    accepted: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    weights: tuple[float, ...]
    norms: tuple[float, ...]


class Chunk(NamedTuple):
    """A run of blocks of segment number `which`: elements start:stop, counted in the fragment."""

    which: int
    segment: TensorSegment
    start: int
    stop: int


class MergeInput(NamedTuple):
    """The input of the passes. Changes are ``anchor - contribution``; the step is from theta."""

    theta: F32
    anchor: F32
    segments: Sequence[TensorSegment]
    chunks: Sequence[Chunk]
    map_chunks: ChunkMap
    kernel: BlockKernel
    sums: Sequence[tuple[SummedFragment, float]] = ()
    """Sums of relays, each with its part of all weights."""


def fragment_segments(plan: FragmentPlan, p: int, outer: Outer) -> tuple[TensorSegment, ...]:
    first = plan.fragment_slice(p)[0]
    segments: list[TensorSegment] = []
    start = 0
    for i, leaf in enumerate(plan.fragments[p]):
        stop = start + leaf.size
        offset = plan.tensor_offset(p, i) - first
        state, rule = is_state(leaf.name), tensor_rule(outer, leaf.name)
        rule = value_rule(rule) if state else rule
        segments.append(TensorSegment(start, stop, rule, leaf.dtype, offset, state, leaf.name))
        start = stop
    return tuple(segments)


def merge_fragment(
    theta: F32,
    state: State,
    contributions: Sequence[WeightedFragment],
    segments: Sequence[TensorSegment],
    *,
    outer: Outer,
    map_chunks: ChunkMap = map,
    anchor: F32 | None = None,
    outlier_test: FindFaults | None = None,
    adopt: bool = False,
    kernel: BlockKernel = NUMPY,
    out: F32 | None = None,
    sums: Sequence[SummedFragment] = (),
) -> MergeResult:
    """Merge the contributions to one fragment, in any order, and take one outer step. A
    contribution with NaN, Inf, a change beyond float32, an invalid weight or too few bytes is
    rejected as a whole, and so are all of a sum that cannot be merged. ``anchor`` is theta as the
    learners hold it; with ``adopt`` theta, which was lost, is replaced by what the rules make of
    the values. ``map_chunks`` and ``kernel`` do not affect the result. Returns copies of theta and
    state if nothing is accepted or all weights are 0. Raises ``ValueError`` if two contributions
    have the same name, which the caller must prevent."""
    _check_state(state, theta, outer)
    if adopt:
        assert not sums, "a relay measures from the syncer's version"
        return _adopt(theta, state, contributions, segments, (map_chunks, kernel, out))
    held, chunks = theta if anchor is None else anchor, chunks_of(theta.size, segments)
    work = MergeInput(theta, held, segments, chunks, map_chunks, kernel)
    accepted, squares, norms, refused = judge(work, contributions, outlier_test)
    sound, unsound = _sound_sums(work, sums, outlier_test)
    refusals = sorted_by_name([*refused, *unsound])
    total = sum(c.weight for c in accepted) + sum(sum(each.weights) for each in sound)
    out = np.empty_like(theta) if out is None else out
    if total == 0.0:
        return _unchanged(theta, state, refusals, out)
    weights = tuple(c.weight / total for c in accepted)
    work = work._replace(sums=[(each, sum(each.weights) / total) for each in sound])
    scales = _direct(work, accepted, weights, squares, out)
    newer = _finish(work, outer, state, scales, out)
    learners, weights = _members(accepted, weights, work.sums)
    return MergeResult(out, newer, learners, refusals, weights, tuple(norms))


def _members(
    accepted: Sequence[WeightedFragment],
    weights: Sequence[float],
    sums: Sequence[tuple[SummedFragment, float]],
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    taken = [(each.name, weight) for each, weight in zip(accepted, weights, strict=True)]
    for each, part in sums:
        whole = sum(each.weights) or 1.0
        taken += [(n, part * w / whole) for n, w in zip(each.names, each.weights, strict=True)]
    taken.sort(key=lambda pair: pair[0].encode())
    return tuple(name for name, _ in taken), tuple(weight for _, weight in taken)


def _unchanged(
    theta: F32, state: State, refusals: tuple[tuple[str, str], ...], out: F32
) -> MergeResult:
    out[:] = theta
    copied = {name: array.copy() for name, array in state.items()}
    return MergeResult(out, copied, (), refusals, (), ())


def _check_state(state: State, theta: F32, outer: Outer) -> None:
    names = OPTIMIZERS[outer.optimizer].state
    assert state.keys() == {*names, STEPS}, f"{sorted(state)}: the state of another optimizer"
    assert all(state[name].shape == theta.shape for name in names), "they run in parallel"


def _adopt(
    theta: F32,
    state: State,
    contributions: Sequence[WeightedFragment],
    segments: Sequence[TensorSegment],
    means: tuple[ChunkMap, BlockKernel, F32 | None],
) -> MergeResult:
    """Replace theta by the merged values of all tensors, computed as a step of ``REPLACING``, which
    cancels ``theta``. The outer optimizer goes on with the state that belongs to ``theta``, such as
    the momentum of the merges before."""
    map_chunks, kernel, out = means
    found = merge_fragment(
        theta,
        zero_state(REPLACING, theta),
        contributions,
        [segment._replace(rule=value_rule(segment.rule)) for segment in segments],
        outer=REPLACING,
        map_chunks=map_chunks,
        kernel=kernel,
        out=out,
    )
    return found._replace(state={name: array.copy() for name, array in state.items()})


def chunks_of(size: int, segments: Sequence[TensorSegment]) -> list[Chunk]:
    """Cut a fragment of so many elements into the units of work; the segments tile it."""
    assert (segments[0].start, segments[-1].stop) == (0, size), "segments tile the whole of theta"
    assert all(a.stop == b.start for a, b in pairwise(segments)), "segments tile theta in order"
    step = CHUNK_BLOCKS * BLOCK_ELEMENTS
    return [
        Chunk(which, segment, start, min(start + step, segment.stop))
        for which, segment in enumerate(segments)
        for start in range(segment.start, segment.stop, step)
    ]


class Judged(NamedTuple):
    """Contributions that can be merged, with the squared norm of each tensor and the norm of all
    that are trained; and (name, reason) of those that cannot."""

    accepted: list[WeightedFragment]
    squares: F64
    norms: list[float]
    refused: list[tuple[str, str]]


def judge(
    work: MergeInput, contributions: Sequence[WeightedFragment], outlier_test: FindFaults | None
) -> Judged:
    """Measure contributions, and reject those that cannot be read, are not finite, or are outliers;
    see ``merge_fragment``."""
    candidates, unread = _admit(contributions, work.segments)
    squares, faults = _measure(work, candidates)
    trained = [k for k, segment in enumerate(work.segments) if not segment.state]
    norms = [sqrt(float(sum(row[trained]))) for row in squares]
    if outlier_test is not None:
        faults = outlier_test(candidates, norms, faults)
    faulty = [(c.name, fault) for c, fault in zip(candidates, faults, strict=True) if fault]
    kept = [i for i, fault in enumerate(faults) if not fault]
    accepted, lengths = [candidates[i] for i in kept], [norms[i] for i in kept]
    return Judged(accepted, squares[kept], lengths, [*unread, *faulty])


def _admit(
    contributions: Sequence[WeightedFragment], segments: Sequence[TensorSegment]
) -> tuple[list[WeightedFragment], list[tuple[str, str]]]:
    """Sort by name, and reject contributions that cannot be read."""
    ordered = sorted(contributions, key=lambda c: c.name.encode())
    for one, following in pairwise(ordered):
        if one.name == following.name:
            raise ValueError(f"two contributions are named {one.name!r}")
    needed = max(s.offset + (s.stop - s.start) * _itemsize(s) for s in segments)
    admitted: list[WeightedFragment] = []
    refused: list[tuple[str, str]] = []
    for c in ordered:
        if not (isfinite(c.weight) and c.weight >= 0):
            refused.append((c.name, f"weight is {c.weight}"))
        elif not _is_bytes(c.buffer) or c.buffer.size < needed:
            refused.append((c.name, f"{c.buffer.size} of {needed} bytes"))
        else:
            admitted.append(c)
    return admitted, refused


def sorted_by_name(refused: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(refused, key=lambda pair: pair[0].encode()))


def _measure(work: MergeInput, candidates: Sequence[WeightedFragment]) -> tuple[F64, list[str]]:
    """Pass one: squared norms (contribution by segment), and each contribution's first fault."""
    squares = np.zeros((len(candidates), len(work.segments)))
    faults = [""] * len(candidates)
    measure = partial(_measure_chunk, work, candidates)
    for chunk, row in zip(work.chunks, work.map_chunks(measure, work.chunks), strict=True):
        for i, (square, fault) in enumerate(row):
            squares[i, chunk.which] += square
            faults[i] = faults[i] or fault
    for i, row in enumerate(squares):
        if not faults[i] and row.max() > NORM_MAX**2:
            largest = work.segments[int(row.argmax())]
            faults[i] = f"tensor {largest.name}: the change is beyond float32"
    return squares, faults


def _measure_chunk(
    work: MergeInput, candidates: Sequence[WeightedFragment], chunk: Chunk
) -> list[tuple[float, str]]:
    found = [(0.0, "")] * len(candidates)
    # The block of the anchor stays in the cache while all contributions are compared with it.
    for block in _blocks(chunk):
        anchor, raws = work.anchor[block], [_view(c, chunk.segment, block) for c in candidates]
        for i, square in enumerate(work.kernel.change_squares(anchor, raws)):
            measured, fault = square, ""
            if not SQUARES_MIN <= square <= SQUARES_MAX:
                measured, fault = _measure_extreme(anchor, elements_of(raws[i]))
                fault = fault and f"tensor {chunk.segment.name}: {fault}"
            found[i] = (found[i][0] + measured, found[i][1] or fault)
    return found


def _measure_extreme(anchor: F32, raw: NDArray[Any]) -> tuple[float, str]:
    """Handle a sum of squares beyond float32: return the fault, or compute it in float64."""
    change = np.empty_like(anchor)
    with np.errstate(over="ignore", invalid="ignore"):
        subtract(anchor, raw, change)
        if not np.isfinite(change).all():
            if not np.isfinite(anchor).all():
                raise ValueError("the global fragment itself is not finite")
            # With zeros as anchor, the difference is the contribution's own values in float32.
            own = np.empty_like(change)
            subtract(np.zeros_like(change), raw, own)
            beyond = np.isfinite(raw).all() if raw.dtype.kind == "f" else np.isfinite(own).all()
            return 0.0, "the change is beyond float32" if beyond else NOT_FINITE
    return square_sum(change.astype(np.float64)), ""


def _direct(
    work: MergeInput,
    accepted: Sequence[WeightedFragment],
    weights: Sequence[float],
    squares: F64,
    out: F32,
) -> list[float]:
    """Pass two: write each segment's direction to `out`; returns the factors for pass three."""
    columns: list[list[float]] = np.sqrt(squares).T.tolist()
    # A single contribution is its own direction by every rule, and is not rounded.
    single = len(accepted) == 1 and not work.sums
    rules = [AVERAGE if single else MERGE_RULES[segment.rule] for segment in work.segments]
    parts = [part for _, part in work.sums]

    def gather(chunk: Chunk) -> float:
        rule, norms = rules[chunk.which], columns[chunk.which]
        how = rule, factors_of(rule, weights, norms), parts
        return gather_chunk(work, accepted, how, chunk, out)

    squared = [0.0] * len(work.segments)
    for chunk, square in zip(work.chunks, work.map_chunks(gather, work.chunks), strict=True):
        squared[chunk.which] += square
    scales: list[float] = []
    for which, (rule, norms) in enumerate(zip(rules, columns, strict=True)):
        lengths = [each.lengths[which] for each, _ in work.sums]
        every = [*weights, *parts], [*norms, *lengths]
        scale = rule.scale(*every, squared[which]) if rule.scale is not None else 1.0
        if scale is None:
            # What a sum's directions had as lengths is known of all of them together.
            longer = [part * length for part, length in zip(parts, lengths, strict=True)]
            for chunk in (c for c in work.chunks if c.which == which):
                gather_chunk(work, accepted, (AVERAGE, weights, longer), chunk, out)
        scales.append(1.0 if scale is None else scale)
    return scales


def factors_of(
    rule: MergeRule, weights: Sequence[float], norms: Sequence[float]
) -> Sequence[float]:
    """What each change of a tensor is multiplied by before the sum."""
    return weights if rule.factor is None else list(map(rule.factor, weights, norms))


def gather_chunk(
    work: MergeInput,
    accepted: Sequence[WeightedFragment],
    how: tuple[MergeRule, Sequence[float], Sequence[float]],
    chunk: Chunk,
    out: F32,
) -> float:
    """Write the direction that the rule finds to `out`, with these factors of contributions and of
    sums; returns its sum of squares."""
    rule, factors, of_sums = how
    counted = [(c, factor) for c, factor in zip(accepted, factors, strict=True) if factor]
    used = [factor for _, factor in counted]
    square = 0.0
    for block in _blocks(chunk):
        raws = [_view(c, chunk.segment, block) for c, _ in counted]
        if rule.combine is not None:
            assert not work.sums, "other rules than weighted means have no sums"
            arrays = [elements_of(raw) for raw in raws]
            square += rule.combine(work.anchor[block], arrays, out[block])
            continue
        found = work.kernel.weighted_change(work.anchor[block], raws, used, out[block])
        square += _add_sums(work, of_sums, block, out[block]) if work.sums else found
    return square


def _add_sums(work: MergeInput, factors: Sequence[float], block: slice, out: F32) -> float:
    """Add a block of the sums, times their factors, to `out`; returns its sum of squares."""
    raws = [_sum_view(each, block) for each, _ in work.sums]
    added, zeros = np.empty_like(out), np.zeros_like(out)
    # The kernel adds factor * (0 - raw), in which both signs change exactly.
    work.kernel.weighted_change(zeros, raws, [-factor for factor in factors], added)
    np.add(out, added, out=out)
    return square_sum(out)


def _sum_view(each: SummedFragment, block: slice) -> F32:
    return each.buffer[4 * block.start : 4 * block.stop].view(np.float32)


def _sound_sums(
    work: MergeInput, sums: Sequence[SummedFragment], outlier_test: FindFaults | None
) -> tuple[list[SummedFragment], list[tuple[str, str]]]:
    """The sums that can be merged, and why the contributions of the others are rejected."""
    sound: list[SummedFragment] = []
    refused: list[tuple[str, str]] = []
    for each, squares in zip(sums, _sum_squares(work, sums), strict=True):
        fault = _fault_of_sum(work, each, squares)
        if not fault and outlier_test is not None:
            trained = [n for n, s in zip(each.lengths, work.segments, strict=True) if not s.state]
            fault = outlier_test.fault_of_sum(each.names, hypot(*trained))
        if fault:
            refused += [(name, fault) for name in each.names]
        else:
            sound.append(each)
    return sound, refused


def _sum_squares(work: MergeInput, sums: Sequence[SummedFragment]) -> list[list[float]]:
    """For each sum the squared length of each tensor; NaN or Inf if that is not finite."""
    found = [[0.0] * len(work.segments) for _ in sums]
    for chunk in work.chunks if sums else ():
        for block in _blocks(chunk):
            raws = [_sum_view(each, block) for each in sums]
            zeros = np.zeros_like(work.anchor[block])
            for own, raw, square in zip(
                found, raws, work.kernel.change_squares(zeros, raws), strict=True
            ):
                exact = square_sum(raw.astype(np.float64)) if not isfinite(square) else square
                own[chunk.which] += exact
    return found


def _fault_of_sum(work: MergeInput, each: SummedFragment, squares: Sequence[float]) -> str:
    """Why a sum cannot be merged; empty if it can. A mean of directions is no longer than the
    longest of them, but for what compression adds."""
    for which, (segment, square) in enumerate(zip(work.segments, squares, strict=True)):
        length = each.lengths[which]
        longest = length if MERGE_RULES[segment.rule].factor is None else 1.0
        if not isfinite(square):
            return f"tensor {segment.name}: {NOT_FINITE} in the sum of its relay"
        if length > NORM_MAX:
            return f"tensor {segment.name}: the sum of its relay is beyond float32"
        if square > (SUM_SLACK * longest) ** 2:
            return f"tensor {segment.name}: the sum of its relay is longer than what is in it"
    return ""


def _finish(
    work: MergeInput, outer: Outer, state: State, scales: Sequence[float], out: F32
) -> State:
    """Pass three: scale the direction, stored in `out`, and take the outer step; returns the new
    state."""
    number = int(state[STEPS][0]) + 1
    names = OPTIMIZERS[outer.optimizer].state
    newer = {name: np.empty_like(work.theta) for name in names}
    steps = [OuterStep(outer, number, scale, work.kernel) for scale in scales]
    arrays = [state[name] for name in names], [newer[name] for name in names]
    for _ in work.map_chunks(partial(_finish_chunk, work, steps, arrays, out), work.chunks):
        pass
    return {**newer, STEPS: np.array([number], np.int64)}


def _finish_chunk(
    work: MergeInput,
    steps: Sequence[OuterStep],
    arrays: tuple[Sequence[F32], Sequence[F32]],
    out: F32,
    chunk: Chunk,
) -> None:
    step, replaced = steps[chunk.which], chunk.segment.state
    if replaced:
        step = step._replace(outer=REPLACING)
    take = OPTIMIZERS[step.outer.optimizer].take
    for block in _blocks(chunk):
        before, after = ([array[block] for array in each] for each in arrays)
        take(step, work.theta[block], before, out[block], after)
        for array in after if replaced else ():
            array.fill(0.0)


def _blocks(chunk: Chunk) -> Iterable[slice]:
    for start in range(chunk.start, chunk.stop, BLOCK_ELEMENTS):
        yield slice(start, min(start + BLOCK_ELEMENTS, chunk.stop))


def _view(contribution: WeightedFragment, segment: TensorSegment, block: slice) -> Raw:
    """A block's elements in a contribution; copied only if the block is in two pieces."""
    if isinstance(contribution.buffer, LazyFragment):
        return contribution.buffer.elements(block.start, block.stop)
    itemsize = _itemsize(segment)
    first = segment.offset + (block.start - segment.start) * itemsize
    last = segment.offset + (block.stop - segment.start) * itemsize
    return contribution.buffer[first:last].view(_VIEWS[segment.dtype])


def _is_bytes(buffer: Bytes | FragmentBytes) -> bool:
    return not isinstance(buffer, np.ndarray) or (buffer.dtype == np.uint8 and buffer.ndim == 1)


def _itemsize(segment: TensorSegment) -> int:
    return np.dtype(_VIEWS[segment.dtype]).itemsize
