"""Snapshots of a simulated job, kept in memory as a store keeps those of a real job."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from ddloco.job.protocol.work import RunStep
from ddloco.stage.actors.effects import CaptureFlight, CaptureState, CommitSnapshot, Work
from ddloco.stage.actors.events import Captured, Committed
from ddloco.stage.actors.work_table import Doer, does

if TYPE_CHECKING:
    from ddloco.workers.simulated.work import Content


State = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CapturedPart:
    frozen: bytes
    contents: dict[str, "Content"]
    worker: State | None = None

    @property
    def name(self) -> str:
        digest = xxhash.xxh3_128(self.frozen)
        for handle, content in self.contents.items():
            digest.update(handle.encode() + content.digest)
        digest.update(repr(self.worker).encode())
        return digest.hexdigest()


@dataclass
class SnapshotMemory:
    """The parts written so far, and the committed snapshots."""

    parts: dict[str, CapturedPart] = field(default_factory=dict[str, CapturedPart])
    committed: dict[str, CommitSnapshot] = field(default_factory=dict[str, CommitSnapshot])

    def write(self, part: CapturedPart) -> str:
        name = part.name
        self.parts[name] = part
        return name


class SnapshotCapture(Doer):
    """One actor's snapshot work; if a step is running at the cut, it has the worker's state at the
    end of that."""

    def __init__(self, snapshots: SnapshotMemory) -> None:
        self.snapshots = snapshots
        self._running = False
        self._awaited: list[int] = []
        self._states: dict[int, State] = {}
        self._held: dict[int, dict[str, Content]] = {}

    def begin(
        self, work: Work, contents: Mapping[str, "Content"], state: Callable[[], State]
    ) -> None:
        """Note that work has been requested; captures the worker's state if no step is running.
        Arrays are looked up now: the replay of a snapshot that failed does not wait for the work,
        and the handles may be released before it is done."""
        if isinstance(work, CaptureState | CaptureFlight):
            self._held[work.work] = {handle: contents[handle] for handle in work.handles}
        if isinstance(work, RunStep):
            self._running = True
        elif isinstance(work, CaptureState) and self._running:
            self._awaited.append(work.work)
        elif isinstance(work, CaptureState):
            self._states[work.work] = state()

    def stepped(self, state: State) -> None:
        """A step has ended; captures the state for requests that waited for it."""
        self._running = False
        for work in self._awaited:
            self._states[work] = state
        self._awaited.clear()

    def ready(self, work: Work) -> bool:
        """Whether work can be done: not while it waits for the end of a step."""
        return not isinstance(work, CaptureState) or work.work in self._states

    # The contents were looked up when the work began.

    @does(CaptureState)
    def state(self, work: CaptureState, _: Mapping[str, "Content"]) -> Captured:
        held = self._held.pop(work.work)
        part = CapturedPart(work.state, held, self._states.pop(work.work))
        return Captured(work.work, self.snapshots.write(part))

    @does(CaptureFlight)
    def flight(self, work: CaptureFlight, _: Mapping[str, "Content"]) -> Captured:
        part = CapturedPart(work.messages, self._held.pop(work.work))
        return Captured(work.work, self.snapshots.write(part))

    @does(CommitSnapshot)
    def commit(self, work: CommitSnapshot, _: Mapping[str, "Content"]) -> Committed:
        self.snapshots.committed[work.snapshot] = work
        return Committed(work.work)
