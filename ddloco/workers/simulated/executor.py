"""Executes simulated work in a replay of a tape that the simulator recorded."""

from collections.abc import Awaitable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import trio

from ddloco.job.config import Job
from ddloco.job.protocol.tape_facts import ARITHMETIC, TENSORS
from ddloco.job.protocol.work import FragmentMerged, MergeFragment
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.workers import rpc
from ddloco.workers.simulated.work import FragmentMemory, SimulatedWork, leaves_of
from replay import TapeHeader


@dataclass
class _Contents(MutableMapping[str, Any]):
    arrays: ArrayTable

    def __getitem__(self, handle: str) -> Any:
        return self.arrays.get(handle)

    def __setitem__(self, handle: str, content: Any) -> None:
        self.arrays.put(handle, content)

    def __delitem__(self, handle: str) -> None:
        self.arrays.free(handle)

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError("simulated_work asks for handles by name")

    def __len__(self) -> int:
        return len(self.arrays)


class SimulatedWorkExecutor:
    def __init__(
        self, job: Job, header: TapeHeader, arrays: ArrayTable, fragment_memory: FragmentMemory
    ) -> None:
        self._leaves = leaves_of(int(job.task[TENSORS]))
        self._fingerprint = header.fingerprint
        arithmetic = header.fingerprint[ARITHMETIC] == str(True)
        plan = job.plan(self._leaves)
        self._simulated_work = SimulatedWork(
            job, header.incarnation, plan, fragment_memory, arithmetic=arithmetic
        )
        self._contents = _Contents(arrays)

    async def prepare(self) -> rpc.Prepared:
        await trio.lowlevel.checkpoint()
        return rpc.Prepared(self._leaves, self._fingerprint)

    def do(self, work: Work) -> Awaitable[WorkResult]:
        self._simulated_work.begin(work, self._contents)
        return self._do(work)

    async def _do(self, work: Work) -> WorkResult:
        await trio.lowlevel.checkpoint()
        while not self._simulated_work.capture.ready(work):
            await trio.lowlevel.checkpoint()
        return self._simulated_work.do(work, self._contents)

    def merge_apart(self, work: MergeFragment) -> tuple[FragmentMerged, Any]:
        """Compute a merge whose result is stored nowhere; returns its new parameters."""
        return self._simulated_work.merge_apart(work, self._contents)

    def settle(self, result: WorkResult) -> None:
        self._simulated_work.settle(result)
