"""What can happen to any actor, beyond what transport tells; its own work adds how that ends."""

from typing import Literal

from transport import BytesArrived, Event, LaneBroken, TimerFired


class Begun(Event, frozen=True):
    """The first event of an actor of a user's program."""

    incarnation: str


class WorkResult(Event, frozen=True):
    """Base of how work ends; the number is that of the effect that asked for it."""

    work: int


class Computed(WorkResult, frozen=True):
    """Base of how the work of a user's program ends; ``made`` are the digests of the arrays that
    the effect named, filled in by the stage."""

    made: tuple[bytes, ...] = ()


class WorkFailed(WorkResult, frozen=True):
    """Work could not be done. ``kind`` says whose fault it is: the task's, or the worker died."""

    kind: Literal["task", "worker"]
    reason: str


class Captured(WorkResult, frozen=True):
    """A piece of one's part of a snapshot is written; ``content`` is its digest, in hex. Where it
    could not be, ``failed`` says why."""

    content: str = ""
    failed: str = ""


class Committed(WorkResult, frozen=True):
    """The snapshot is there; where it is not, ``failed`` says why."""

    failed: str = ""


class SnapshotRequested(Event, frozen=True):
    """Somebody outside wants a snapshot."""


class Restored(Event, frozen=True):
    """The actor's first event behind a cut, in another run than the one whose snapshot it is.
    ``missing`` are links whose other ends do not go on from it, ``run`` is the other run where runs
    of a job are told apart."""

    snapshot: str
    missing: tuple[str, ...] = ()
    run: str = ""


class SnapshotSettled(Event, frozen=True):
    """What became of a snapshot that this actor began: it is there, or ``failed`` says why not.
    Said by the actor to its machine; on no tape."""

    snapshot: str
    failed: str = ""


class StopRequested(Event, frozen=True):
    """Somebody outside wants the actor to end in good order, and with it all that it leads."""

    reason: str


class LeaveRequested(Event, frozen=True):
    """This process is to go, and will be started again, here or elsewhere: the actor leaves in good
    order and soon, and whatever it takes part in goes on."""

    reason: str


HappensToAll = (
    LaneBroken
    | BytesArrived
    | TimerFired
    | Captured
    | Committed
    | SnapshotRequested
    | Restored
    | WorkFailed
    | StopRequested
    | LeaveRequested
)
"""What every tape may hold, besides messages and an actor's own events."""
