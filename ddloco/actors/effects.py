"""What any actor may ask of the world, beyond what transport offers; its own work it adds itself.

Work effects carry a number, ``work``, that their result event repeats. Arrays are named by handles.
"""

from typing import Any, Literal

from snapshot import Part
from transport import Effect

Status = Literal["done", "stopped", "left", "bad-input", "failed"]


class Work(Effect, frozen=True):
    """Base of what workers do; its result event repeats the number."""

    work: int

    @property
    def reads(self) -> tuple[str, ...]:
        """Handles of the arrays that it needs."""
        return ()

    @property
    def makes(self) -> tuple[str, ...]:
        """Handles of the arrays that are there when it is done."""
        return ()


class Calculation(Work, frozen=True):
    """Base of the work of a user's program: arrays of the handles ``source`` go in, arrays that get
    the handles ``out`` come out."""

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
    """Write one's own part of ``snapshot``: the actor as it stood at the cut, frozen, the arrays
    that it held, and its worker's state, as it is when the step that then ran is done."""

    snapshot: str
    state: bytes
    handles: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.handles


class CaptureFlight(Work, frozen=True):
    """Write what was in flight: messages, frozen, and the arrays that they brought."""

    snapshot: str
    messages: bytes
    handles: tuple[str, ...]

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Work``."""
        return self.handles


class CommitSnapshot(Work, frozen=True):
    """Write the manifest: from now on the snapshot is there."""

    snapshot: str
    parts: tuple[Part, ...]
    absent: dict[str, str]


class TakeSnapshot(Effect, frozen=True):
    """Begin a snapshot with this event; performed by the actor, never reaches the world. Its end
    is told with ``SnapshotSettled``."""


class Observe(Effect, frozen=True):
    """Something that people should see; ``fields`` are plain data."""

    event: str
    fields: dict[str, Any]


class Finish(Effect, frozen=True):
    """The actor is done; nothing is handled after this."""

    status: Status
    reason: str
