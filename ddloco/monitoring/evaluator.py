"""Evaluates global models as they arrive: the held-out loss, computed beside the job.

It uses a JAX process of the observer's own. At most one model is evaluated at a time; of the models
that arrive meanwhile only the newest is evaluated.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import trio

from ddloco.job.config import Job
from ddloco.job.protocol.fragment_plan import FragmentPlan, wire_layout
from ddloco.stage.arrays.shared_memory import SharedMemory
from ddloco.stage.files.toml import ConfigError
from ddloco.workers import rpc
from ddloco.workers.process import WorkerProcess, open_worker
from ddloco.workers.task_sources import kept_modules
from snapshot import save_tensors
from transport import DTYPES, Payload

Scored = Callable[[int, float, dict[str, float]], None]
"""Called with a global step, and the held-out loss and the other metrics of its model."""


class Evaluator:
    def __init__(
        self,
        source: Path,
        plan: FragmentPlan,
        arena: SharedMemory,
        score: Callable[[rpc.Span], Awaitable[rpc.Scored]],
        scored: Scored,
        *,
        best: Path | None = None,
    ) -> None:
        self._best = best
        self._lowest = math.inf
        self._source = source
        self._plan = plan
        self._region = arena.allocate(plan.total_bytes)
        self._score = score
        self._scored = scored
        self._fragments: dict[int, tuple[int, Payload]] = {}
        self._wanted = trio.Event()
        self._last = False

    def take(self, fragment: int, t: int, payload: Payload) -> None:
        count = len(self._plan.fragments)
        got = tuple((meta.name, meta.shape, meta.dtype) for meta in payload.tensors)
        plain = all(meta.bits == DTYPES[meta.dtype].itemsize * 8 for meta in payload.tensors)
        if fragment >= count or got != wire_layout(self._plan, fragment) or not plain:
            raise ConfigError(
                f"--evaluate {self._source}: fragment {fragment} of the running job differs "
                "from this file; use the job.toml of its run folder"
            )
        self._fragments[fragment] = (t, payload)
        if len(self._fragments) == count:
            self._wanted.set()

    def finish(self) -> None:
        """Evaluate the newest model and end; no newer one will arrive."""
        self._last = True
        self._wanted.set()

    async def run(self) -> None:
        scored: dict[int, int] = {}
        while True:
            await self._wanted.wait()
            if not self._last:
                self._wanted = trio.Event()
            versions = {p: t for p, (t, _) in self._fragments.items()}
            if len(versions) == len(self._plan.fragments) and versions != scored:
                scored = versions
                await self._score_now(max(versions.values()))
            elif self._last:
                return

    async def _score_now(self, t: int) -> None:
        for fragment, (_, payload) in self._fragments.items():
            start, stop = self._plan.fragment_slice(fragment)
            self._region.data[start:stop] = payload.data
        found = await self._score(rpc.Span(self._region.offset, len(self._region.data)))
        if found.loss is None:
            raise ConfigError(f"--evaluate {self._source}: its task has no evaluate(params)")
        if self._best is not None and found.loss < self._lowest:
            self._lowest = found.loss
            await trio.to_thread.run_sync(self._keep, self._best, t, found.loss)
        self._scored(t, found.loss, found.metrics)

    def _keep(self, path: Path, t: int, loss: float) -> None:
        """Write the evaluated model, in place of an earlier one."""
        tensors: dict[str, Any] = {}
        for p, leaves in enumerate(self._plan.fragments):
            for index, leaf in enumerate(leaves):
                at = self._plan.tensor_offset(p, index)
                view = self._region.data[at : at + leaf.nbytes].view(DTYPES[leaf.dtype])
                tensors[leaf.name] = view.reshape(leaf.shape)
        try:
            save_tensors(path, tensors, {"global_step": str(t), "held_out_loss": repr(loss)})
        except OSError as error:
            raise ConfigError(f"--best {path}: {error.strerror or error}") from None


@asynccontextmanager
async def open_scorer(
    job: Job, source: Path, scored: Scored, best: Path | None = None
) -> AsyncIterator[Evaluator]:
    """Open a scorer with a worker process that has loaded the job's task; the caller must ``run``
    it."""
    with closing(SharedMemory()) as arena:
        kept = kept_modules(source.parent, job.job.task)
        async with open_worker("observer.1", arena, job.worker_of(""), kept=kept) as process:
            plan = await _prepare(job, process)

            async def score(span: rpc.Span) -> rpc.Scored:
                return await process.expect(rpc.Score(span), rpc.Scored)

            yield Evaluator(source, plan, arena, score, scored, best=best)


async def _prepare(job: Job, process: WorkerProcess) -> FragmentPlan:
    prepared = await process.expect(rpc.preparation(job), rpc.Prepared)
    try:
        plan = job.plan(prepared.leaves)
    except ValueError as error:
        raise ConfigError(f"task {job.job.task}: {error}") from None
    await process.expect(rpc.Lay(plan), rpc.Laid)
    return plan
