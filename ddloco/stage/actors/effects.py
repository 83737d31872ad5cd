"""The effects that every actor may request besides those of ``transport``. Work effects carry a
number, which their result event repeats. Arrays are named by handles."""

from functools import partial
from typing import Any, ClassVar, Literal

from ddloco.stage.actors.events import Captured, Committed, Computed, WorkResult
from ddloco.stage.actors.work_handles import Made, Read, Use, handles_in
from snapshot import Part
from transport import Effect

Status = Literal["done", "stopped", "left", "bad-input", "failed"]


class Work(Effect, frozen=True):
    """Base of the effects that a worker performs; the result event repeats ``work``.

    Attributes:
        worker_state: what the work does with the worker's own state, which no handle names.
    """

    work: int

    result: ClassVar[type[WorkResult]] = WorkResult
    worker_state: ClassVar[Literal["", "reads", "changes", "replaces"]] = ""

    def __init_subclass__(cls) -> None:
        """Have the handles found when they are first asked for: before that, the class's fields
        have no defaults."""
        super().__init_subclass__()
        for use in ("reads", "makes"):
            if use not in cls.__dict__:
                setattr(cls, use, property(partial(_first_listed, cls, use)))

    @property
    def reads(self) -> tuple[str, ...]:
        """The handles of the arrays that the work reads, as ``Read`` marks them."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """The handles of the arrays that exist once the work is done, as ``Made`` marks them."""
        return ()


def _first_listed(kind: type[Work], use: Use, work: Work) -> tuple[str, ...]:
    listed = handles_in(kind, use)
    setattr(kind, use, property(listed))
    return listed(work)


class Calculation(Work, frozen=True):
    """Base of the work of a user's program: it reads the arrays ``source`` and makes ``out``."""

    result = Computed

    source: tuple[Read, ...]
    out: tuple[Made, ...]


class CaptureState(Work, frozen=True):
    """Write the actor's part of ``snapshot``: its frozen state at the cut, the arrays that it held,
    and the worker's state after the step that was running at the cut."""

    result = Captured
    worker_state = "reads"

    snapshot: str
    state: bytes
    handles: tuple[Read, ...]


class CaptureFlight(Work, frozen=True):
    """Write the channel state: the in-flight messages, frozen, and their arrays."""

    result = Captured

    snapshot: str
    messages: bytes
    handles: tuple[Read, ...]


class CommitSnapshot(Work, frozen=True):
    """Write the manifest, which completes the snapshot."""

    result = Committed

    snapshot: str
    parts: tuple[Part, ...]
    absent: dict[str, str]


AskedByAll = CaptureState | CaptureFlight | CommitSnapshot
"""The work that every actor may have under way, besides its own."""


class TakeSnapshot(Effect, frozen=True):
    """Begin a snapshot whose cut is this event. The actor performs this effect itself; the driver
    never sees it."""


class Observe(Effect, frozen=True):
    """Log an event; ``fields`` are plain data."""

    event: str
    fields: dict[str, Any]


class Finish(Effect, frozen=True):
    """End the actor; it handles no event after this. ``again``: what failed was the machine, so the
    process should be started again."""

    status: Status
    reason: str
    again: bool = False
