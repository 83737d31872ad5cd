"""The effects that every actor may request besides those of ``transport``.

An actor defines further work effects of its own. Work effects carry a number, ``work``, which
their result event repeats. Arrays are named by handles.
"""

from typing import Any, Literal

from snapshot import Part
from transport import Effect

Status = Literal["done", "stopped", "left", "bad-input", "failed"]


class Work(Effect, frozen=True):
    """Base of the effects that a worker performs; the result event repeats ``work``."""

    work: int

    @property
    def reads(self) -> tuple[str, ...]:
        """The handles of the arrays that the work reads."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """The handles of the arrays that exist once the work is done."""
        return ()


class Calculation(Work, frozen=True):
    """Base of the work of a user's program: it reads the arrays ``source`` and makes ``out``."""

    source: tuple[str, ...]
    out: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.source

    @property
    def makes(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.out


class CaptureState(Work, frozen=True):
    """Write the actor's part of ``snapshot``.

    The part holds the actor's frozen state at the cut, the arrays that it held, and the worker's
    state after the step that was running at the cut.
    """

    snapshot: str
    state: bytes
    handles: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.handles


class CaptureFlight(Work, frozen=True):
    """Write the channel state: the in-flight messages, frozen, and their arrays."""

    snapshot: str
    messages: bytes
    handles: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.handles


class CommitSnapshot(Work, frozen=True):
    """Write the manifest, which completes the snapshot."""

    snapshot: str
    parts: tuple[Part, ...]
    absent: dict[str, str]


AskedByAll = CaptureState | CaptureFlight | CommitSnapshot
"""The work that every actor may have under way, besides its own."""


class TakeSnapshot(Effect, frozen=True):
    """Begin a snapshot whose cut is this event.

    The actor performs this effect itself; the driver never sees it. ``SnapshotSettled`` reports
    the end of the snapshot.
    """


class Observe(Effect, frozen=True):
    """Log an event; ``fields`` are plain data."""

    event: str
    fields: dict[str, Any]


class Finish(Effect, frozen=True):
    """End the actor; it handles no event after this."""

    status: Status
    reason: str
