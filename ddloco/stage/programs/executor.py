"""Executes the work of a user's actor: the user's function, in threads, from arrays to arrays."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import trio
from numpy.typing import NDArray

from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import Computed, WorkFailed, WorkResult
from ddloco.stage.actors.work_table import doers
from ddloco.stage.arrays.array_table import ArrayTable
from ddloco.stage.driver.snapshot_sink import SnapshotSink
from ddloco.stage.driver.snapshot_writer import ActorCapture
from ddloco.stage.process.entry_point import in_one_line
from transport import Payload, payload_of, tensors_of

Tensors = Mapping[str, NDArray[Any]]

Compute = Callable[[Any, Sequence[Tensors]], tuple[WorkResult, Sequence[Tensors]]]
"""Does a piece of work. Its arguments are the effect and the arrays that the effect ``reads``, in
that order; it returns the result event and the arrays that the effect ``makes``. It is called in a
thread, and again in every replay, so it must be deterministic: no clock, no files, and randomness
only from a seed in the effect."""


class ComputationExecutor:
    """Does the work of one actor, in a live run and in a replay alike."""

    def __init__(
        self, compute: Compute, asked: Any, arrays: ArrayTable, sink: SnapshotSink
    ) -> None:
        self._compute = compute
        self._asked = asked
        self._arrays = arrays
        self._doers = doers(ActorCapture(arrays, sink))

    def do(self, work: Work) -> Awaitable[WorkResult]:
        """Do one piece of work; a failure is a result too. The arrays are looked up before this
        returns, since the next event may free them."""
        doer = self._doers.get(type(work))
        if doer is not None:
            return doer(work)
        return self._do(work, [self._arrays.get(handle) for handle in work.reads])

    async def _do(self, work: Work, read: Sequence[Payload]) -> WorkResult:
        try:
            result, made = await trio.to_thread.run_sync(self._computed, work, read)
        except Exception as error:  # noqa: BLE001, an exception of user code is its result
            return WorkFailed(work.work, "task", f"{type(work).__name__}: {in_one_line(error)}")
        for handle, payload in zip(work.makes, made, strict=True):
            self._arrays.put(handle, payload)
        return result

    def _computed(self, work: Work, read: Sequence[Payload]) -> tuple[WorkResult, list[Payload]]:
        if not isinstance(work, self._asked):
            raise TypeError("the program does not name it; want it in Program(asked=...)")
        given: list[Tensors] = [tensors_of(payload) for payload in read]
        result, tensors = self._compute(work, given)
        made = [payload_of(each) for each in tensors]
        if result.work != work.work:
            raise ValueError(f"the result is of work {result.work}, want {work.work}")
        if len(made) != len(work.makes):
            raise ValueError(f"{len(made)} arrays were returned, want {len(work.makes)}")
        if isinstance(result, Computed):
            result = msgspec.structs.replace(result, made=tuple(each.digest for each in made))
        return result, made
