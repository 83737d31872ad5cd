"""The work of simulated actors: the contents of handles, and the results of work, without JAX.
Every content describes what a real array would hold (``what``), so that a wrong, missing or freed
one is detected. With ``arithmetic`` it also has numbers: small tensors that drift towards a target,
merged by the same kernel as in real jobs."""

import math
import struct
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import xxhash
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from ddloco.job.config import Job, Outer
from ddloco.job.protocol.fragment_plan import FragmentPlan, Leaf
from ddloco.job.protocol.work import (
    TENSOR_DIGEST_BYTES,
    AverageGradients,
    ContributionsSummed,
    CopyState,
    DecodeFragment,
    Differentiate,
    EncodeFragment,
    EncodePiece,
    Evaluate,
    Evaluated,
    FragmentDecoded,
    FragmentEncoded,
    FragmentMerged,
    InstallState,
    Kept,
    MakeParameters,
    MergeFragment,
    ModelSaved,
    OneStep,
    Overwrite,
    ParametersMade,
    PieceEncoded,
    Recover,
    Recovered,
    RunStep,
    SaveModel,
    StateCopied,
    StateInstalled,
    StepFinished,
    SumContributions,
)
from ddloco.machines.outer.merge import (
    SummedFragment,
    TensorSegment,
    WeightedFragment,
    fragment_segments,
    merge_fragment,
)
from ddloco.machines.outer.optimizers.optimizer import State, state_digest
from ddloco.machines.outer.optimizers.table import usual_direction, zero_state
from ddloco.machines.outer.outlier_test import OutlierTest
from ddloco.machines.outer.sums import sum_contributions
from ddloco.machines.syncer.global_fragments import OUTER
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.actors.work_table import Doer, doers, does
from ddloco.workers.simulated.compression import DIFFERENCE, SimulatedCompression, contributed
from ddloco.workers.simulated.objective import FAR, Wrong, pull, spoil, target
from ddloco.workers.simulated.snapshot_sink import SnapshotCapture, SnapshotMemory

F32 = NDArray[np.float32]

ELEMENTS = 16
"""Elements of a simulated tensor: one cache line, so that layouts need no padding."""

TOKENS = 8

PIECES = 3

PIECE = "piece"

SUM = -2
"""The third number of a description of a relay's sum, whose last is its global step."""

_DIGEST = struct.Struct("<iiii")


SHARD_BITS = 64
"""The bits of a batch below the number of its data shard."""


def shard_and_number(batch: bytes) -> tuple[int, int]:
    return divmod(int.from_bytes(batch, "little"), 1 << SHARD_BITS)


def leaves_of(tensors: int) -> tuple[Leaf, ...]:
    """The tensors of a simulated model; the first one is an embedding."""
    names = ["embed/w", *(f"layer/{index}/w" for index in range(1, tensors))]
    return tuple(Leaf(name, (ELEMENTS,), "float32") for name in names)


@dataclass(frozen=True, slots=True)
class Content:
    """What a handle refers to: a description, and with ``arithmetic`` the numbers. ``what`` is
    (fragment, version, steps since, step); a copy of all parameters, on older tapes, has one
    (version, steps) per fragment. Only checks read ``wrong``, how the numbers were corrupted, and
    ``owed``, the norm of the residual that a corrupted contribution has left."""

    what: tuple[Any, ...]
    array: F32 | None = None
    wrong: str = ""
    owed: float = 0.0
    state: State | None = None

    @property
    def digest(self) -> bytes:
        """16 bytes that differ for different contents."""
        if self.state is not None:
            return state_digest(self.state)
        if self.array is None:
            try:
                return _DIGEST.pack(*self.what)
            except struct.error:  # Not four numbers, or numbers beyond any run's.
                return xxhash.xxh3_128_digest(repr(self.what).encode())
        return xxhash.xxh3_128_digest(self.array.data)


Contents = MutableMapping[str, Content]


@dataclass
class FragmentMemory:
    """What survives a syncer: the newest merge of each fragment, and what it consumed."""

    kept: dict[int, tuple[Kept, Content, Content]] = field(
        default_factory=dict[int, tuple[Kept, Content, Content]]
    )
    run: str = "run-1"
    done: bool = False
    """Whether the whole model of a job that has ended well was saved."""

    def lose(self) -> None:
        """Simulate the loss of the syncer's folder; a new folder belongs to a new run."""
        self.kept.clear()
        self.done = False
        self.run = f"run-{int(self.run.removeprefix('run-')) + 1}"


class SimulatedWork(Doer):
    """Does the work of one simulated actor; the numbers depend on the job's seed and names."""

    def __init__(
        self,
        job: Job,
        incarnation: str,
        plan: FragmentPlan,
        fragment_memory: FragmentMemory,
        snapshots: SnapshotMemory | None = None,
        *,
        arithmetic: bool,
    ) -> None:
        self.poisoned = False
        """Whether the parameters contain NaN, as after a hardware fault."""
        self.wrong: Wrong | None = None
        """How contributions are corrupted from now on, while staying finite; None if not."""
        self._bases: dict[int, tuple[int, F32]] = {}
        self._job = job
        self._compression = SimulatedCompression(job, incarnation)
        self._name = incarnation
        self._plan = plan
        self._fragment_memory = fragment_memory
        self.capture = SnapshotCapture(snapshots if snapshots is not None else SnapshotMemory())
        self._arithmetic = arithmetic
        self._unsettled: dict[int, tuple[Kept, Content, Content]] = {}
        self._device: list[tuple[int, int]] = [(-1, 0)] * len(plan.fragments)
        self._copies: dict[int, Content] = {}
        self._batch = 0
        """How many batches of its shard this actor has drawn, including earlier incarnations."""
        self._drawn: dict[int, int] = {}
        """With ``job.shards``, how many batches of each shard were used where it holds them."""
        elements = plan.total_bytes // 4 if arithmetic else 0
        self._params = np.zeros(elements, np.float32)
        self._doers = doers(self, self.capture)

    def settle(self, result: WorkResult) -> None:
        """Store the merge of a result that is about to be reported for the actor's next
        incarnation."""
        if isinstance(result, FragmentMerged) and result.work in self._unsettled:
            merge = self._unsettled.pop(result.work)
            self._fragment_memory.kept[merge[0].fragment] = merge

    @property
    def versions(self) -> list[int]:
        """For each fragment the version that the parameters started from; -1 for none."""
        return [version for version, _ in self._device]

    def begin(self, work: Work, contents: Contents) -> None:
        """Work has been requested: copies are made now, before the next step begins."""
        self.capture.begin(work, contents, self._state)
        if isinstance(work, RunStep):
            for each in work.copies:
                what = (each.fragment, *self._device[each.fragment], work.step - 1)
                array = self._params[self._part(each.fragment)].copy() if self._arithmetic else None
                contents[each.handle] = Content(what, array)
        if isinstance(work, CopyState):
            what = (self._name, tuple(self._device), self._batch)
            array = self._params.copy() if self._arithmetic else None
            self._copies[work.work] = Content(what, array)

    def do(self, work: Work, contents: Contents) -> WorkResult:
        return self._doers[type(work)](work, contents)

    def _state(self) -> tuple[Any, ...]:
        params = self._params.tobytes() if self._arithmetic else b""
        return tuple(self._device), tuple(sorted(self._drawn.items())) or self._batch, params

    # Learners.

    @does(RunStep)
    def _run_step(self, work: RunStep, contents: Contents) -> StepFinished:
        for each in work.overwrites:
            self._overwrite(each, work.step - 1, contents)
        device = self._device
        self._device = [(version, steps + work.count) for version, steps in device]
        *before, last = (self._step(work, step) for step in range(work.step, work.last + 1))
        if work.out:
            copy = self._params.copy() if self._arithmetic else None
            contents[work.out] = Content((*self._device, work.last), copy)
        self.capture.stepped(self._state())
        told = {"cursor": last.batch, "tensors": self._tensors(), "before": tuple(before)}
        return StepFinished(work.work, work.last, *astuple(last), **told)

    def _step(self, work: RunStep, step: int) -> OneStep:
        batch = self._draw(work, first=step == work.step).to_bytes(16, "little")
        loss = self._descend(step) if self._arithmetic else 1.0 / step
        return OneStep(loss, TOKENS, batch)

    def _overwrite(self, newer: Overwrite, step: int, contents: Contents) -> None:
        """Install a version after ``step``, with what stays of the steps since the contribution."""
        p, theirs, part = newer.fragment, contents[newer.handle], self._part(newer.fragment)
        assert theirs.what == (p, newer.version, 0, 0), "another array was meant"
        since = contents[newer.since] if newer.since else None
        steps = step - since.what[-1] if since is not None else 0
        self._device[p] = (newer.version, steps)
        if theirs.array is None:
            return
        own, array = self._params[part], theirs.array
        self._bases[p] = newer.version, array
        if since is not None and since.array is not None:
            whole = isinstance(since.what[0], tuple)
            array = array + (own - (since.array[part] if whole else since.array))
        elif newer.mixing:
            mixing = np.float32(newer.mixing)
            array = mixing * own + (np.float32(1) - mixing) * array
        self._params[part] = array

    def _draw(self, work: RunStep, *, first: bool) -> int:
        """The number of a step's batch, which contains that of its data shard, if the job has
        ``job.shards``; see ``shard_and_number``."""
        if work.data is None:
            self._batch += work.skip * first + 1
            return self._batch
        shard, held = work.data.held[0], work.data.held
        if work.data.opens:
            self._drawn[shard] = work.skip
        self._drawn = {n: used for n, used in self._drawn.items() if n in held}
        self._drawn[shard] += 1
        return (shard << SHARD_BITS) + self._drawn[shard]

    def _tensors(self) -> bytes:
        """The digests of all tensors, as in ``StepFinished``; empty without arithmetic."""
        if not self._arithmetic:
            return b""
        found: list[bytes] = []
        for p, leaves in enumerate(self._plan.fragments):
            for at, leaf in enumerate(leaves):
                start = self._plan.tensor_offset(p, at) // 4
                part = self._params[start : start + leaf.nbytes // 4]
                found.append(xxhash.xxh3_64_digest(part.data)[:TENSOR_DIGEST_BYTES])
        return b"".join(found)

    def _descend(self, step: int) -> float:
        """One step towards this learner's target, with noise from the batch."""
        gap = self._params - np.float32(FAR) * pull(self._name, len(self._params))
        self._params -= np.float32(0.1 / FAR) * gap + np.float32(0.01 * math.sin(step))
        if self.poisoned:
            self._params[0] = np.nan
        return float(np.mean(gap * gap))

    @does(Differentiate)
    def _differentiate(self, work: Differentiate, contents: Contents) -> StepFinished:
        """The gradient of a quadratic loss around this replica's target."""
        source = contents[work.source]
        loss, gradient = 1.0 / work.step, None
        if source.array is not None:
            gradient = source.array - target(self._name, len(source.array))
            loss = float(np.mean(gradient * gradient))
        contents[work.out] = Content((0, source.what[1], 1, work.step), gradient)
        return StepFinished(work.work, work.step, loss, TOKENS, work.batch.to_bytes(16, "little"))

    @does(AverageGradients)
    def _average(self, work: AverageGradients, contents: Contents) -> FragmentMerged:
        theta, what = contents[work.theta], (0, work.t, 0, 0)
        whole = sum(share.weight for share in work.shares)
        weights = tuple(share.weight / whole for share in work.shares)
        made = None
        if theta.array is not None:
            made = theta.array.copy()
            for share, weight in zip(work.shares, weights, strict=True):
                gradient = contents[share.handle].array
                assert gradient is not None, "numbers are averaged with numbers"
                made -= np.float32(0.1 * weight) * gradient
        content = Content(what, made)
        for handle in work.out:
            contents[handle] = content
        names = tuple(share.name for share in work.shares)
        digest = content.digest
        return FragmentMerged(work.work, names, weights, (), digest, b"", digest)

    @does(EncodeFragment)
    def _encode(self, work: EncodeFragment, contents: Contents) -> FragmentEncoded:
        host, wrong = contents[work.source], ""
        what, part = host.what, host.array
        if isinstance(what[0], tuple):  # A copy of all parameters.
            what = (work.fragment, *what[work.fragment], what[-1])
            part = None if part is None else part[self._part(work.fragment)].copy()
        version = what[1]
        assert what[0] == work.fragment, "another fragment was copied"
        base = self._bases.get(work.fragment)
        if self.wrong is not None and part is not None and base is not None and base[0] == version:
            part, wrong = spoil(self.wrong, part, base[1]), self.wrong
        if work.base:
            assert contents[work.base].what == (work.fragment, version, 0, 0), "another version"
        lost, left, owed = None, wrong, 0.0
        if work.base and part is not None:
            anchor, error = contents[work.base].array, None
            assert anchor is not None, "numbers are compared with numbers"
            if work.error:
                error, left = contents[work.error].array, wrong or contents[work.error].wrong
            if error is not None and contents[work.error].wrong:
                owed = float(np.linalg.norm(error.astype(np.float64)))
            part, lost = self._compression.contribution(work, part, anchor, error)
        made = contents[work.out] = Content(what, part, wrong, owed)
        if not work.error_out:
            return FragmentEncoded(work.work, made.digest)
        kept = contents[work.error_out] = Content(what, lost, left)
        return FragmentEncoded(work.work, made.digest, kept.digest)

    @does(DecodeFragment)
    def _decode(self, work: DecodeFragment, contents: Contents) -> FragmentDecoded:
        """A version is what learners hold of the one before, and the difference between them."""
        before, difference = contents[work.base], contents[work.source]
        p, version, base, kind = difference.what
        assert kind == DIFFERENCE, "a version was sent whole"
        assert before.what == (p, base, 0, 0), "a difference to another version"
        array = None
        if before.array is not None and difference.array is not None:
            array = before.array + difference.array
        made = contents[work.out] = Content((p, version, 0, 0), array)
        return FragmentDecoded(work.work, made.digest)

    @does(CopyState)
    def _copy_state(self, work: CopyState, contents: Contents) -> StateCopied:
        content = contents[work.out] = self._copies.pop(work.work)
        return StateCopied(work.work, PIECES, content.digest)

    @does(EncodePiece)
    def _encode_piece(self, work: EncodePiece, contents: Contents) -> PieceEncoded:
        """Encode a piece of a copy with its place in it; a received piece is already whole."""
        source = contents[work.source]
        if source.what[-1] == PIECE:
            made = source
        else:
            parts = None if source.array is None else np.array_split(source.array, PIECES)
            part = None if parts is None else parts[work.piece].copy()
            made = Content((*source.what, work.piece, PIECE), part)
        contents[work.out] = made
        return PieceEncoded(work.work, made.digest)

    @does(InstallState)
    def _install(self, work: InstallState, contents: Contents) -> StateInstalled:
        pieces = [contents[handle] for handle in work.pieces]
        first = pieces[0].what[:-2]
        whole = [(*first, index, PIECE) for index in range(PIECES)]
        assert [piece.what for piece in pieces] == whole, "pieces of two copies, or not all"
        arrays = [piece.array for piece in pieces if piece.array is not None]
        sound = all(np.isfinite(array).all() for array in arrays)
        if sound:
            self._device = [(version, 0) for version, _ in first[1]]
        if sound and arrays:
            self._params = np.concatenate(arrays)
        return StateInstalled(work.work, sound)

    def _part(self, fragment: int) -> slice:
        start, stop = self._plan.fragment_slice(fragment)
        return slice(start // 4, stop // 4)

    # Syncers.

    @does(MakeParameters)
    def _make(self, work: MakeParameters, contents: Contents) -> ParametersMade:
        digest = xxhash.xxh3_128()
        for p in work.fragments:
            made = None
            if self._arithmetic:
                part = self._part(p)
                made = target(f"start of {self._job.job.seed}", part.stop)[part]
            contents[f"theta/{p}/0"] = contents[f"wire/{p}/0"] = Content((p, 0, 0, 0), made)
            digest.update(contents[f"wire/{p}/0"].digest)
        return ParametersMade(work.work, digest.digest())

    def merge_apart(
        self, work: MergeFragment, contents: Contents
    ) -> tuple[FragmentMerged, "Content"]:
        """Compute a merge whose result is stored nowhere; returns its new parameters."""
        event, made = self._compute_merge(work, contents)
        return event, made[0]

    @does(MergeFragment)
    def _merge(self, work: MergeFragment, contents: Contents) -> FragmentMerged:
        event, made = self._compute_merge(work, contents)
        for handle, content in zip(work.makes, made, strict=True):
            contents[handle] = content
        if event.accepted:
            self._unsettled[work.work] = (work.kept(event), made[0], made[1])
        return event

    def _compute_merge(
        self, work: MergeFragment, contents: Contents
    ) -> tuple[FragmentMerged, tuple["Content", ...]]:
        theta = contents[work.theta]
        assert not work.state or contents[work.state].what == theta.what, (
            "an outer state of another version than its parameters"
        )
        theirs = {share.name: contents[share.handle] for share in work.shares}
        what = (work.fragment, work.t, 0, 0)
        if theta.array is None:
            whole = sum(share.weight for share in work.shares)
            weights = tuple(share.weight / whole for share in work.shares)
            made = (Content(what), Content(what), Content(what))
            digest = made[0].digest
            event = FragmentMerged(work.work, tuple(theirs), weights, (), digest, digest, digest)
        else:
            event, made = self._merge_numbers(work, contents, what)
        if work.differences is not None and work.differences.held:
            sent = self._to_send(work, contents[work.differences.held], made[0])
            event = replace(event, held=sent[0].digest, sent=sent[1].digest)
            made = (*made, *sent)
        return event, made

    def _to_send(self, work: MergeFragment, held: Content, made: Content) -> tuple[Content, ...]:
        """A merged version as learners will hold it, and the difference that leads them there."""
        p, base, *_ = held.what
        arrays: tuple[F32 | None, F32 | None] = None, None
        if made.array is not None and held.array is not None:
            arrays = self._compression.sent(work, made.array, held.array)
        difference = (p, work.t, base, DIFFERENCE)
        return Content(made.what, arrays[0]), Content(difference, arrays[1])

    def _merge_numbers(
        self, work: MergeFragment, contents: Contents, what: tuple[int, ...]
    ) -> tuple[FragmentMerged, tuple[Content, Content, Content]]:
        theta = contents[work.theta].array
        assert theta is not None, "numbers are merged into numbers"
        outer = self._job.outer
        state = contents[work.state].state if work.state else zero_state(outer, theta)
        assert state is not None, "where there are parameters there is an outer state"
        contributions: list[WeightedFragment] = []
        for share in work.shares:
            if share.handle in work.sums:
                continue
            array = contributed(work, share, contents)
            assert array is not None, "numbers are merged with numbers"
            contributions.append(WeightedFragment(share.name, share.weight, array.view(np.uint8)))
        segments = _segments(self._plan, work.fragment, outer)
        outlier_test = OutlierTest(work, theta, usual_direction(outer, state), segments)
        result = merge_fragment(
            theta,
            state,
            contributions,
            segments,
            outer=outer,
            outlier_test=outlier_test if work.band else None,
            adopt=work.adopt,
            sums=_sums(work, contents),
        )
        made = (Content(what, result.theta), Content(what, state=result.state))
        digests = (made[0].digest, made[1].digest, made[0].digest)
        accepted, weights, refused = result.accepted, result.weights, result.refused
        measured = [each for told in work.sums.values() for each in told.measured]
        found = ((*outlier_test.measured, *measured), outlier_test.moved(result.theta))
        event = FragmentMerged(work.work, accepted, weights, refused, *digests, *found)
        return event, (*made, made[0])

    @does(SumContributions)
    def _sum(self, work: SumContributions, contents: Contents) -> ContributionsSummed:
        anchor = contents[work.anchor]
        what = (work.fragment, anchor.what[1], SUM, work.t)
        names = tuple(share.name for share in work.shares)
        if anchor.array is None:
            made = contents[work.out] = Content(what)
            lengths = (0.0,) * len(self._plan.fragments[work.fragment])
            return ContributionsSummed(work.work, names, (), lengths, made.digest)
        contributions: list[WeightedFragment] = []
        for share in work.shares:
            array = contents[share.handle].array
            assert array is not None, "numbers are summed with numbers"
            if share.name in work.differences:
                array = anchor.array + array
            contributions.append(WeightedFragment(share.name, share.weight, array.view(np.uint8)))
        segments = _segments(self._plan, work.fragment, self._job.outer)
        test = OutlierTest(work, anchor.array, None, segments) if work.band else None
        found = sum_contributions(anchor.array, contributions, segments, outlier_test=test)
        directions = found.directions
        if self._job.compress.up != "float32":
            directions = self._compression.summed(work, directions)
        made = contents[work.out] = Content(what, directions)
        measured = test.measured if test is not None else ()
        summed = found.accepted, found.refused, found.lengths
        return ContributionsSummed(work.work, *summed, made.digest, measured)

    @does(Recover)
    def _recover(self, work: Recover, contents: Contents) -> Recovered:
        found = [self._fragment_memory.kept[p] for p in sorted(self._fragment_memory.kept)]
        for kept, theta, state in found:
            p, v = kept.fragment, kept.version
            contents[f"theta/{p}/{v}"] = contents[f"wire/{p}/{v}"] = theta
            contents[f"{OUTER}{p}/{v}"] = state
        memory = self._fragment_memory
        return Recovered(work.work, tuple(kept for kept, _, _ in found), memory.run, memory.done)

    @does(Evaluate)
    def _evaluate(self, work: Evaluate, contents: Contents) -> Evaluated:
        arrays = [contents[handle].array for handle in work.fragments]
        numbers = [array for array in arrays if array is not None]
        loss = float(sum(np.mean(array * array) for array in numbers)) if numbers else None
        return Evaluated(work.work, loss)

    @does(SaveModel)
    def _save(self, work: SaveModel, contents: Contents) -> ModelSaved:
        digest = xxhash.xxh3_128()
        for handle in work.fragments:
            digest.update(contents[handle].digest)
        self._fragment_memory.done |= work.done
        return ModelSaved(work.work, digest.digest())


def _sums(work: MergeFragment, contents: Contents) -> list[SummedFragment]:
    found: list[SummedFragment] = []
    for handle, told in work.sums.items():
        directions = contents[handle].array
        assert directions is not None, "numbers are merged with numbers"
        mine = [share for share in work.shares if share.handle == handle]
        names, weights = [s.name for s in mine], [s.weight for s in mine]
        found.append(SummedFragment(names, weights, directions.view(np.uint8), told.lengths))
    return sorted(found, key=lambda each: each.names[0].encode())


@cache
def _segments(plan: FragmentPlan, fragment: int, outer: Outer) -> tuple[TensorSegment, ...]:
    return fragment_segments(plan, fragment, outer)
