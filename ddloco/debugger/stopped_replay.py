"""A replay that stops at a consistent cut: every actor's machine and arrays, as they were there."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import trio
from msgspec import to_builtins
from numpy.typing import NDArray

from clocks import actor_of
from ddloco.debugger.recorded_job import RecordedJob
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.replayer.job_executor import JobExecutor
from ddloco.replayer.recording import check_task
from ddloco.replayer.replay_of import replay_of
from ddloco.replayer.report import Report
from ddloco.replayer.tape_runner import TapeRunner
from ddloco.stage.actors.status import actor_status
from ddloco.stage.arrays.array_table import HostCopy
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.rpc import TensorMeasure
from transport import DTYPES, Payload, tensors_of

Tensors = dict[str, NDArray[Any]]


class StoppedReplay:
    """A job in the middle of its replay, workers and all, before the actor ``incarnation`` handles
    event ``number``. ``status`` is its machine's, or what is seen of it from outside
    (``ActorStatus``); ``tensors`` are measures of its worker's parameters and optimizer's state."""

    def __init__(
        self,
        run: RecordedRun,
        runners: Mapping[str, TapeRunner],
        incarnation: str,
        number: int,
        tensors: Sequence[TensorMeasure] = (),
    ) -> None:
        self.run, self.runners, self.tensors = run, runners, tensors
        self.incarnation, self.number = incarnation, number
        self.event = next((e for r, e in run.events(incarnation) if r.n == number), None)
        actor = runners[incarnation].actor
        self.machine = actor.machine
        told = getattr(actor.machine, "status", None)
        self.status: dict[str, Any] = to_builtins(
            told(actor.at) if told is not None else actor_status(actor, actor.at)
        )

    def arrays(self, actor: str = "") -> list[str]:
        """Return the handles of an actor's arrays, by name or incarnation; by default, of the actor
        that the replay was stopped for."""
        return sorted(self._runner(actor).arrays.handles())

    def array(self, handle: str, actor: str = "") -> Tensors:
        """Return copies of the tensors under a handle, by name; ``ConfigError`` if there is no such
        array, or it could not be computed."""
        arrays = self._runner(actor).arrays
        if handle not in arrays.handles():
            there = ", ".join(sorted(arrays.handles())[:12]) or "none"
            raise ConfigError(f"no array {handle!r} there; there are {there}")
        stored = arrays.get(handle)
        if stored is None:
            raise ConfigError(f"array {handle!r} could not be computed: a tape is missing")
        return tensors_in(stored, self.plan())

    def _runner(self, actor: str) -> TapeRunner:
        wanted = actor or self.incarnation
        for incarnation in reversed(list(self.runners)):
            if wanted in {incarnation, actor_of(incarnation)}:
                return self.runners[incarnation]
        raise ConfigError(
            f"{wanted} is not in the replay here; there are {', '.join(self.runners)}"
        )

    def plan(self) -> FragmentPlan | None:
        return self.run.plan if isinstance(self.run, RecordedJob) else None


def tensors_in(stored: Any, plan: FragmentPlan | None) -> Tensors:
    """Return copies of the tensors of a stored array, by name; one without names is ``array``."""
    if isinstance(stored, Payload):
        return {name: tensor.copy() for name, tensor in tensors_of(stored).items()}
    if isinstance(stored, HostCopy):
        assert plan is not None, "a replay that got here knows the parameters"
        end = stored.start + len(stored.region.data)
        found: Tensors = {}
        for p, leaves in enumerate(plan.fragments):
            for i, leaf in enumerate(leaves):
                start = plan.tensor_offset(p, i)
                if not stored.start <= start < end:
                    continue  # It is the copy of another fragment.
                raw = stored.part(start, start + leaf.nbytes).copy()
                found[leaf.name] = raw.view(DTYPES[leaf.dtype]).reshape(leaf.shape)
        return found
    # A simulated array has a description beside it, and so has a state.
    named: Mapping[str, NDArray[Any]] | None = getattr(stored, "state", stored)
    if isinstance(named, Mapping):
        return {name: array.copy() for name, array in named.items()}
    inner = getattr(stored, "array", stored)
    return {"array": np.array(inner)}


def replay_until(
    run: RecordedRun,
    incarnation: str,
    number: int,
    look: Callable[[StoppedReplay], None],
    *,
    task: str = "",
    trust: bool = False,
    warn: Callable[[str], None] = lambda _: None,
    progress: Callable[[int], None] = lambda _: None,
    turns: Path | None = None,
) -> Report:
    """Replay a run up to just before an event, and look at it there, once; the number after a
    tape's last stands for its end. The other arguments are those of ``replay_of``. Everything in
    the event's causal past has happened then, and nothing else."""
    check_task(list(run.tapes.values()), run.path, task, trust=trust)
    last = run.tape_of(incarnation).events
    known = run.clock(incarnation, min(number, last)).wire()
    limits = {**known, incarnation: number - 1}
    replay = replay_of(run.path, progress, warn, task=task, trust=trust, turns=turns, limits=limits)

    async def stop(runners: Mapping[str, TapeRunner]) -> None:
        if replay.report.divergences:
            return
        executor = runners[incarnation].pending.executor
        tensors: Sequence[TensorMeasure] = ()
        if isinstance(executor, JobExecutor):
            tensors = (await executor.measures("*")).tensors
        look(StoppedReplay(run, runners, incarnation, number, tensors))

    return trio.run(replay.run, stop)


def arrays_at(run: RecordedRun, incarnation: str, number: int, handle: str) -> Tensors:
    found: list[Tensors] = []
    report = replay_until(
        run,
        incarnation,
        number + 1,
        lambda there: found.append(there.array(handle)),
        trust=run.trust,
    )
    if not found:
        raise ConfigError(
            f"{run.path}: the replay parts from the tapes before: {report.divergence}"
        )
    return found[0]
