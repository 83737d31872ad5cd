"""The events of every actor besides those of ``transport``; actors add results of their work."""

from typing import Literal

from transport import BytesArrived, Event, LaneBroken


class Begun(Event, frozen=True):
    """The first event of an actor of a user's program."""

    incarnation: str


class WorkResult(Event, frozen=True):
    """Base of the results of work; ``work`` is the number of the effect that requested it."""

    work: int


class Computed(WorkResult, frozen=True):
    """Base of the results of a user program's work. The runtime fills in ``made``, the digests of
    the arrays that the effect named."""

    made: tuple[bytes, ...] = ()


FailureKind = Literal["task", "later", "worker"]
"""Why work failed: user code raised before anything of its kind had succeeded; it raised after
that, so that it may be sound and what it needs is away; or the worker died. The last two are the
world's doing, which no replay repeats."""


class WorkFailed(WorkResult, frozen=True):
    """Work failed."""

    kind: FailureKind
    reason: str


class Captured(WorkResult, frozen=True):
    """A blob of the actor's part of a snapshot was written (``content``: its digest in hex), or
    ``failed`` says why not."""

    content: str = ""
    failed: str = ""


class Committed(WorkResult, frozen=True):
    """The snapshot is complete, or ``failed`` says why not."""

    failed: str = ""


class SnapshotRequested(Event, frozen=True):
    """A user or an observer requests a snapshot."""


class Restored(Event, frozen=True):
    """The actor's first event after a cut, in a new run that resumes from the snapshot. ``missing``
    names the links whose peers do not resume from it. ``run`` is empty if the runs of a job are not
    distinguished."""

    snapshot: str
    missing: tuple[str, ...] = ()
    run: str = ""


class SnapshotSettled(Event, frozen=True):
    """A snapshot that this actor began is complete, or ``failed`` says why not; it was ``refused``
    if too many were under way, as another one would be at this event. It is passed to the machine,
    and not recorded on the tape."""

    snapshot: str
    failed: str = ""
    refused: bool = False


class StopRequested(Event, frozen=True):
    """A user requests an orderly end of the actor, and of the job if the actor leads it."""

    reason: str


class LeaveRequested(Event, frozen=True):
    """The process must exit soon and will be restarted, on this host or another; the job
    continues."""

    reason: str


class DismissRequested(Event, frozen=True):
    """A user wants another actor to leave for good; the actor that leads tells it to."""

    who: str


HappensToAll = (
    LaneBroken
    | BytesArrived
    | Captured
    | Committed
    | SnapshotRequested
    | Restored
    | WorkFailed
    | StopRequested
    | LeaveRequested
    | DismissRequested
)
"""The events that every tape may hold, besides messages, timers and the actor's own events."""
