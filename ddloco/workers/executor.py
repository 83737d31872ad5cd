"""Executes the work that an actor's effects request: JAX in its own process, numpy in threads. The
same effect on the same arrays gives the same result, in a live run and in a replay. Results are
stored under their handles before the event that reports them is returned."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import trio
import xxhash

from clocks import actor_of, number_of, read_regular
from ddloco.job.config import DATA_PARALLEL, Job, Outer
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.job.protocol.work import (
    TENSOR_DIGEST_BYTES,
    AverageGradients,
    ContributionsSummed,
    DecodeFragment,
    Differentiate,
    EncodeFragment,
    Evaluate,
    Evaluated,
    FragmentDecoded,
    FragmentEncoded,
    FragmentMerged,
    MakeParameters,
    MergeFragment,
    ModelSaved,
    Overwrite,
    ParametersMade,
    Recover,
    Recovered,
    RunStep,
    SaveModel,
    StepFinished,
    SumContributions,
)
from ddloco.machines.outer.merge import NOT_FINITE, merge_fragment
from ddloco.machines.outer.optimizers.optimizer import state_digest
from ddloco.machines.outer.optimizers.table import usual_direction, zero_state
from ddloco.machines.outer.outlier_test import OutlierTest
from ddloco.machines.outer.sums import sum_contributions
from ddloco.machines.syncer.global_fragments import names
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkFailed, WorkResult
from ddloco.stage.actors.work_table import Doer, doers, does
from ddloco.stage.arrays.array_table import F32, ArrayTable, HostCopy, Stored
from ddloco.stage.arrays.shared_memory import Region, SharedMemory
from ddloco.stage.driver.snapshot_sink import SnapshotSink
from ddloco.stage.process.errors import said_of
from ddloco.workers import rpc
from ddloco.workers.compression import FragmentCompression
from ddloco.workers.data_stream import travelling
from ddloco.workers.fragment_store import FragmentStore, FragmentStoreError, StoredFragment
from ddloco.workers.layout import Layouts, tensors_of
from ddloco.workers.merge_kernel import merge_kernel
from ddloco.workers.process import WorkerDiedError, WorkerProcess, WorkerRequestError, fitting
from ddloco.workers.snapshot_work import SnapshotWork
from ddloco.workers.state_transfer import StateTransfer
from snapshot import save_tensors
from transport import Bytes, Payload

MODEL_FILE = Path("model") / "model.safetensors"

_in_thread = trio.to_thread.run_sync


def tensor_digests(payload: Payload) -> bytes:
    """Return the beginnings of the digests of a payload's tensors, for the tape."""
    return b"".join(meta.digest[:TENSOR_DIGEST_BYTES] for meta in payload.tensors)


UNKEPT, KEPT_AGAIN = "merge not kept", "merges are kept again"


class WorkExecutor(Doer):
    """Does the work of one actor. The worker imports ``task`` in place of the job's own;
    ``outer_at`` has the outer settings of the merge of a global step, by default the job's;
    ``settle`` copies what a successor on another host needs, once the model is saved."""

    def __init__(
        self,
        job: Job,
        incarnation: str,
        arrays: ArrayTable,
        process: WorkerProcess,
        *,
        folder: Path,
        keep: FragmentStore,
        sink: SnapshotSink,
        task: str = "",
        note: Callable[[str, dict[str, Any]], None] = lambda *_: None,
        outer_at: Callable[[int], Outer] | None = None,
        settle: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self._settle = settle
        self._job = job
        self._task = task or job.job.task
        self._name = actor_of(incarnation)
        self._returned = number_of(incarnation) > 1
        """Whether it had an incarnation before, so that it goes to another place in its data."""
        self._arrays = arrays
        self._process = process
        self._folder = folder
        self._keep = keep
        self._note = note
        self._unkept = ""
        """Why the newest merge could not be stored; empty if it was."""
        self._layouts: Layouts | None = None
        self._compression: FragmentCompression | None = None
        self._outer_at = outer_at if outer_at is not None else lambda _: job.outer
        self.state = StateTransfer(arrays, process)
        self.capture = SnapshotWork(arrays, process, sink)
        self._doers = doers(self, self.state, self.capture)

    async def prepare(self) -> rpc.Prepared:
        """Have the worker load the task; ``WorkerRequestError`` if it cannot be used."""
        job = self._job
        learner = self._name in job.learner_names()
        request = rpc.preparation(job, self._name, self._task)
        prepared = await self._process.expect(request, rpc.Prepared)
        try:
            plan = job.sendable_plan(prepared.leaves)
        except ValueError as error:
            raise WorkerRequestError(rpc.Failed("task", f"task {self._task}: {error}")) from None
        laid = await self._process.expect(rpc.Lay(plan), rpc.Laid)
        self.state.nbytes = self.capture.nbytes = laid.state_bytes
        self.capture.plan = plan
        # The state of a data-parallel job is its syncer's.
        trains = learner != (job.job.method in DATA_PARALLEL)
        if trains and job.snapshot.wanted:
            await self.capture.warm()
        if learner and trains:
            await self._process.expect(rpc.CompileAhead(self._returned), rpc.Ready)
        self.lay_out(plan)
        return prepared

    def lay_out(self, plan: FragmentPlan) -> None:
        self._layouts = Layouts(plan, self._job.outer)
        self._compression = FragmentCompression(self._job, self._name, self._layouts, self._arrays)

    @property
    def plan(self) -> FragmentPlan:
        """How the parameters are split into fragments and laid out; known after ``prepare``."""
        return self.layouts.plan

    @property
    def layouts(self) -> Layouts:
        """Converts between the layouts of fragments; known after ``prepare``."""
        assert self._layouts is not None, "prepared before any work"
        return self._layouts

    @property
    def compression(self) -> FragmentCompression:
        """The arithmetic of compressed differences; known after ``prepare``."""
        assert self._compression is not None, "prepared before any work"
        return self._compression

    def do(self, work: Work) -> Awaitable[WorkResult]:
        """Do one piece of work; a failure is a result too. A step begins before this returns."""
        return self._caught(work, self._doers[type(work)](work))

    async def _caught(self, work: Work, result: Awaitable[WorkResult]) -> WorkResult:
        try:
            return await result
        except WorkerRequestError as error:
            return WorkFailed(work.work, error.failed.kind, str(error))
        except WorkerDiedError as error:
            return WorkFailed(work.work, "worker", str(error))
        except FragmentStoreError as error:
            return WorkFailed(work.work, "task", str(error))
        except OSError as error:
            return WorkFailed(work.work, "worker", said_of(error))

    # Work in the JAX worker process.

    @does(Recover)
    async def _recover(self, work: Recover) -> Recovered:
        found = await _in_thread(self._keep.find)
        for each in found:
            self.take_back(each)
        kept = tuple(each.kept for each in found)
        return Recovered(work.work, kept, self._keep.run, self._keep.done())

    def take_back(self, found: StoredFragment) -> None:
        p, version = found.kept.fragment, found.kept.version
        arrays = (found.theta, found.state, self.layouts.sent(p, found.theta))
        for handle, array in zip(names(p, version), arrays, strict=True):
            self._arrays.put(handle, array)

    @does(MakeParameters)
    async def _make_parameters(self, work: MakeParameters) -> ParametersMade:
        region = self._arena.allocate(self.plan.total_bytes)
        await self._process.expect(rpc.Fill(rpc.span_of(region)), rpc.Ready)
        digest = xxhash.xxh3_128()
        for p in work.fragments:
            data = region.data[slice(*self.plan.fragment_slice(p))]
            payload = await _in_thread(partial(self.layouts.copied, p, data))
            theta = self.layouts.flat(p, payload.data)
            self._arrays.put(f"theta/{p}/0", theta)
            self._arrays.put(f"wire/{p}/0", payload)
            digest.update(payload.digest)
        self._arena.free(region)
        return ParametersMade(work.work, digest.digest())

    @does(RunStep)
    def _run_step(self, work: RunStep) -> Awaitable[StepFinished]:
        self.capture.trains = True
        spans: list[rpc.NewFragment] = []
        lent: list[Region] = []
        for each in work.overwrites:
            region = self._arrays.share(self._arrays.get(each.handle).data, lent)
            since = self._span_of_copy(each) if each.since else None
            spans.append(rpc.NewFragment(each.fragment, rpc.span_of(region), each.mixing, since))
        copies = self._copies_of(work)
        out = self._arena.allocate(self.plan.total_bytes) if work.out else None
        every = self._job.worker.check_every
        place = work.skip, work.cursor, work.t, work.data, every > 0 and work.step % every == 0
        span = rpc.span_of(out) if out is not None else None
        train = rpc.Train(work.step, tuple(spans), span, *place, work.count)
        places = tuple((p, rpc.span_of(copy.region)) for p, copy in copies)
        before = [rpc.CopyFragments(places)] if copies else []
        *copied, answer = self._process.ask(*before, train)

        async def finish() -> StepFinished:
            for each in copied:
                fitting(await each, rpc.Ready)
            for _, copy in copies:
                copy.written.set()
            trained = fitting(await answer, rpc.Trained)
            self.state.release()
            for region in lent:
                self._arena.free(region)
            if out is not None:
                self._arrays.put(work.out, HostCopy(out))
            return step_finished(work, trained)

        return finish()

    def _span_of_copy(self, each: Overwrite) -> rpc.Span:
        copy: HostCopy = self._arrays.get(each.since)
        start, stop = self.plan.fragment_slice(each.fragment)
        return rpc.Span(copy.region.offset + start - copy.start, stop - start)

    def _copies_of(self, work: RunStep) -> list[tuple[int, HostCopy]]:
        copies: list[tuple[int, HostCopy]] = []
        for each in work.copies:
            start, stop = self.plan.fragment_slice(each.fragment)
            copy = HostCopy(self._arena.allocate(stop - start), start, trio.Event())
            self._arrays.put(each.handle, copy)
            copies.append((each.fragment, copy))
        return copies

    @does(Differentiate)
    async def _differentiate(self, work: Differentiate) -> StepFinished:
        source, out = self._arrays.lend(self._arrays.get(work.source).data), self._whole()
        request = rpc.ComputeGradient(rpc.span_of(source), rpc.span_of(out), work.batch)
        trained = await self._process.expect(request, rpc.Trained)
        data = self._arena.borrow(out, 0, len(out.data))
        self._arrays.put(work.out, await _in_thread(partial(self.layouts.described, 0, data)))
        self._arena.free(source)
        self._arena.free(out)
        return step_finished(work, trained)

    @does(AverageGradients)
    def _average_gradients(self, work: AverageGradients) -> Awaitable[FragmentMerged]:
        self.capture.averages()
        return self._averaged(work)

    async def _averaged(self, work: AverageGradients) -> FragmentMerged:
        mean = np.zeros_like(self._arrays.get(work.theta))
        shares = {share.name: share for share in work.shares}
        flats = {
            n: self.layouts.flat(0, self._arrays.get(s.handle).data) for n, s in shares.items()
        }
        finite = tuple(name for name, flat in flats.items() if np.isfinite(flat).all())
        whole = sum(shares[name].weight for name in finite)
        sound = finite if whole else ()
        reasons = dict.fromkeys(finite, "no batch of this step has a token")
        refused = tuple((n, reasons.get(n, NOT_FINITE)) for n in shares if n not in sound)
        weights = tuple(shares[name].weight / whole for name in sound)
        for name, weight in zip(sound, weights, strict=True):
            mean += np.float32(weight) * flats[name]
        source, out = self._arrays.lend(self.layouts.wire(0, mean)), self._whole()
        update = rpc.Update(rpc.span_of(source), rpc.span_of(out), work.t)
        done = self._process.expect(update, rpc.Ready) if sound else None
        self.capture.updates()
        if done is not None:
            await done
        payload = await _in_thread(partial(self.layouts.copied, 0, out.data))
        theta = self.layouts.flat(0, payload.data)
        self._arena.free(source)
        self._arena.free(out)
        for handle, array in zip(work.out, (theta, payload), strict=True):
            self._arrays.put(handle, array)
        digest = xxhash.xxh3_128_digest(theta.data)
        return FragmentMerged(work.work, sound, weights, refused, digest, b"", payload.digest)

    def _whole(self) -> Region:
        return self._arena.allocate(self.plan.total_bytes)

    @does(Evaluate)
    async def _evaluate(self, work: Evaluate) -> Evaluated:
        region = self._arena.allocate(self.plan.total_bytes)
        for p, handle in enumerate(work.fragments):
            start, stop = self.plan.fragment_slice(p)
            region.data[start:stop] = self.layouts.bytes_of(p, self._arrays.get(handle))
        request = rpc.Score(rpc.span_of(region), work.counters)
        scored = await self._process.expect(request, rpc.Scored)
        self._arena.free(region)
        return Evaluated(work.work, scored.loss, scored.metrics)

    async def look(self, wanted: str) -> rpc.Looked:
        """Measure tensors of the worker's state; see ``tensor_measures``."""
        return await self._process.expect(rpc.Look(wanted), rpc.Looked)

    # Work with numpy, in threads.

    @does(EncodeFragment)
    async def _encode_fragment(self, work: EncodeFragment) -> FragmentEncoded:
        host: HostCopy = self._arrays.get(work.source)
        await host.written.wait()
        if work.base:
            return await self._compress_fragment(work)
        # Borrowed: ZeroMQ may still send the payload when the machine needs the copy no more.
        data = host.borrowed(self._arena, *self.plan.fragment_slice(work.fragment))
        payload = await _in_thread(partial(self.layouts.described, work.fragment, data))
        self._arrays.put(work.out, payload)
        return FragmentEncoded(work.work, payload.digest, tensors=tensor_digests(payload))

    async def _compress_fragment(self, work: EncodeFragment) -> FragmentEncoded:
        payload, lost = await _in_thread(partial(self.compression.contribution, work))
        self._arrays.put(work.out, payload)
        error = b""
        if lost is not None:
            self._arrays.put(work.error_out, lost)
            error = xxhash.xxh3_128_digest(lost.data)
        return FragmentEncoded(work.work, payload.digest, error, tensor_digests(payload))

    @does(DecodeFragment)
    async def _decode_fragment(self, work: DecodeFragment) -> FragmentDecoded:
        base, difference = (self._arrays.get(each).data for each in work.reads)
        make = partial(self.compression.version, work.fragment, base, difference)
        payload = await _in_thread(make)
        self._arrays.put(work.out, payload)
        return FragmentDecoded(work.work, payload.digest)

    @does(MergeFragment)
    async def _merge_fragment(self, work: MergeFragment) -> FragmentMerged:
        # In the arena, so that learners on this host may read there what they are sent.
        theta = self._arena.array(self._arrays.get(work.theta).nbytes).view(np.float32)
        wire: Bytes | None = None
        if not self.layouts.is_flat(work.fragment):
            start, stop = self.plan.fragment_slice(work.fragment)
            wire = self._arena.array(stop - start)
        merged, made = await _in_thread(partial(self._merge, work, (theta, wire)))
        for handle, array in zip(work.makes, made, strict=True):
            self._arrays.put(handle, array)
        return merged

    def _merge(
        self, work: MergeFragment, out: tuple[F32, Bytes | None]
    ) -> tuple[FragmentMerged, list[Stored]]:
        merged, made, stored = self._compute_merge(work, out)
        if stored is not None:
            self._put(stored)
        return merged, made

    def merge_apart(self, work: MergeFragment) -> tuple[FragmentMerged, Any]:
        """Compute a merge whose result is stored nowhere; returns its new parameters."""
        merged, made, _ = self._compute_merge(work)
        return merged, made[0]

    def _compute_merge(
        self, work: MergeFragment, out: tuple[F32 | None, Bytes | None] = (None, None)
    ) -> tuple[FragmentMerged, list[Stored], StoredFragment | None]:
        """Merge; returns also the arrays in the order of ``makes``, and what is to be stored."""
        theta: F32 = self._arrays.get(work.theta)
        outer, compression = self._outer_at(work.t), self.compression
        state = self._arrays.get(work.state) if work.state else zero_state(outer, theta)
        if outer != self._job.outer:
            compression = compression.with_layouts(Layouts(self.plan, outer))
        contributions, segments, anchor, sums = compression.merged(work, theta)
        tested = work.band and not all(segment.state for segment in segments)
        usual = usual_direction(outer, state)
        outlier_test = OutlierTest(work, theta, usual, segments, anchor) if tested else None
        result = merge_fragment(
            theta,
            state,
            contributions,
            segments,
            outer=outer,
            anchor=anchor,
            outlier_test=outlier_test,
            adopt=work.adopt,
            kernel=merge_kernel(),
            out=out[0],
            sums=sums,
        )
        measured = outlier_test.measured if outlier_test is not None else ()
        payload = self.layouts.sent(work.fragment, result.theta, out[1])
        made: list[Stored] = [result.theta, result.state, payload]
        sent: tuple[Payload, ...] = ()
        if work.differences is not None and work.differences.held:
            held: Payload = self._arrays.get(work.differences.held)
            sent = self.compression.to_send(work, result.theta, held)
            made += sent
        merged = FragmentMerged(
            work.work,
            result.accepted,
            result.weights,
            result.refused,
            xxhash.xxh3_128_digest(result.theta.data),
            state_digest(result.state),
            payload.digest,
            (*measured, *(each for told in work.sums.values() for each in told.measured)),
            outlier_test.moved(result.theta) if outlier_test is not None else 0.0,
            *(each.digest for each in sent),
            tensors=tensor_digests(payload),
        )
        stored: StoredFragment | None = None
        if result.accepted:
            stored = StoredFragment(work.kept(merged), result.theta, result.state)
        return merged, made, stored

    @does(SumContributions)
    async def _sum_contributions(self, work: SumContributions) -> ContributionsSummed:
        return await _in_thread(partial(self._sum, work))

    def _sum(self, work: SumContributions) -> ContributionsSummed:
        contributions, segments, anchor, _ = self.compression.summed(work)
        tested = work.band and not all(segment.state for segment in segments)
        outlier_test = OutlierTest(work, anchor, None, segments) if tested else None
        found = sum_contributions(
            anchor, contributions, segments, outlier_test=outlier_test, kernel=merge_kernel()
        )
        payload = self.compression.sum_payload(work, found.directions)
        self._arrays.put(work.out, payload)
        measured = outlier_test.measured if outlier_test is not None else ()
        summed = found.accepted, found.refused, found.lengths
        return ContributionsSummed(work.work, *summed, payload.digest, measured)

    def _put(self, found: StoredFragment) -> None:
        """Store a merge on disk; with ``tape.on_error`` other than "stop" continue if that fails:
        the merge stored before stays valid."""
        problem = ""
        try:
            self._keep.put(found)
        except OSError as error:
            if self._job.tape.on_error == "stop":
                raise
            problem = said_of(error)
        if problem != self._unkept:
            said = {"reason": problem} if problem else {"fragment": found.kept.fragment}
            trio.from_thread.run_sync(self._note, UNKEPT if problem else KEPT_AGAIN, said)
        self._unkept = problem

    @does(SaveModel)
    async def _save_model(self, work: SaveModel) -> ModelSaved:
        path = self._folder / MODEL_FILE

        def save() -> bytes:
            tensors: dict[str, Any] = {}
            for p, handle in enumerate(work.fragments):
                data = self.layouts.bytes_of(p, self._arrays.get(handle))
                tensors |= tensors_of(self.plan, p, data)
            save_tensors(path, tensors, {"job": self._job.id})
            return xxhash.xxh3_128_digest(read_regular(path))

        saved = ModelSaved(work.work, await _in_thread(save))
        if work.done:
            with suppress(OSError):  # The job is done all the same.
                await _in_thread(self._keep.note_done)
        await self._settle()
        return saved

    @property
    def _arena(self) -> SharedMemory:
        return self._arrays.shared


def step_finished(work: RunStep | Differentiate, trained: rpc.Trained) -> StepFinished:
    done = (trained.loss, trained.tokens, trained.batch, travelling(trained.cursor))
    measured = (trained.data_s, trained.compiling_s)
    told = (trained.tensors, trained.corrupt, trained.before, trained.counters)
    step = work.last if isinstance(work, RunStep) else work.step
    seen = (trained.reads, trained.nan, trained.shapes)
    return StepFinished(work.work, step, *done, trained.metrics, *measured, *told, *seen)
