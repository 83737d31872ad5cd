"""Snapshots of a simulated job: what a store holds of a real one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from ddloco.actors.effects import CaptureFlight, CaptureState, CommitSnapshot, Work
from ddloco.actors.events import Captured, Committed
from ddloco.protocol.effects import RunStep

if TYPE_CHECKING:
    from ddloco.workers.simulated.work import Content


State = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """What one actor wrote: frozen bytes, the contents of handles, its worker's state."""

    frozen: bytes
    contents: dict[str, "Content"]
    worker: State | None = None

    @property
    def name(self) -> str:
        """A digest of all of it, in hex."""
        digest = xxhash.xxh3_128(self.frozen)
        for handle, content in self.contents.items():
            digest.update(handle.encode() + content.digest)
        digest.update(repr(self.worker).encode())
        return digest.hexdigest()


@dataclass
class Album:
    """What was written, and what stands."""

    pictures: dict[str, Picture] = field(default_factory=dict[str, Picture])
    committed: dict[str, CommitSnapshot] = field(default_factory=dict[str, CommitSnapshot])

    def write(self, picture: Picture) -> str:
        """Add a picture; its name."""
        name = picture.name
        self.pictures[name] = picture
        return name


class Photographer:
    """One actor's work for snapshots.

    A worker's state belongs to a cut as it is when the step that then ran is done.
    """

    def __init__(self, album: Album) -> None:
        self.album = album
        self._running = False
        self._awaited: list[int] = []
        self._states: dict[int, State] = {}

    def begin(self, work: Work, state: Callable[[], State]) -> None:
        """Work is asked for, with the worker's state as it is."""
        if isinstance(work, RunStep):
            self._running = True
        elif isinstance(work, CaptureState) and self._running:
            self._awaited.append(work.work)
        elif isinstance(work, CaptureState):
            self._states[work.work] = state()

    def stepped(self, state: State) -> None:
        """A step is done."""
        self._running = False
        for work in self._awaited:
            self._states[work] = state
        self._awaited.clear()

    def ready(self, work: Work) -> bool:
        """Whether work can end now: not while the step runs whose end it must see."""
        return not isinstance(work, CaptureState) or work.work in self._states

    def do(self, work: Work, contents: Any) -> Captured | Committed:
        """Do one piece of work."""
        if isinstance(work, CommitSnapshot):
            self.album.committed[work.snapshot] = work
            return Committed(work.work)
        assert isinstance(work, CaptureState | CaptureFlight), "nothing else is about snapshots"
        held = {handle: contents[handle] for handle in work.handles}
        if isinstance(work, CaptureFlight):
            picture = Picture(work.messages, held)
        else:
            picture = Picture(work.state, held, self._states.pop(work.work))
        return Captured(work.work, self.album.write(picture))
