"""Everything that can happen to a learner or a syncer; with transport's own, what a tape holds."""

from msgspec import Struct

from ddloco.actors.events import HappensToAll, WorkResult
from ddloco.protocol.fragment_plan import Leaf
from ddloco.protocol.messages import Said
from transport import Event, MessageArrived


class OwnState(Struct, frozen=True, array_like=True):
    """What a learner was in a snapshot, in a job that went on without it: its worker's state, under
    ``handle``, after step ``copy``, when it held ``versions``; ``digest`` is of all of it."""

    snapshot: str
    copy: int
    versions: tuple[int, ...]
    handle: str
    digest: bytes


class Started(Event, frozen=True):
    """The actor's first event: the parameters' leaves, as its worker describes the task's."""

    incarnation: str
    leaves: tuple[Leaf, ...]
    state: OwnState | None = None


class Kept(Struct, frozen=True, array_like=True):
    """A fragment that was kept: its version, whose tokens of which base it has used up, and how
    many batches each actor had drawn by then. Its arrays stand under ``theta/p/v``,
    ``momentum/p/v`` and ``wire/p/v``; ``digest`` is of all."""

    fragment: int
    version: int
    spent: dict[str, int]
    batches: dict[str, int]
    digest: bytes


class Recovered(WorkResult, frozen=True):
    """What was found, in order of fragments; nothing at the first start of a job. ``run`` tells the
    run that goes on from it from others of the same job."""

    kept: tuple[Kept, ...]
    run: str = ""


class ParametersMade(WorkResult, frozen=True):
    """The task's initial parameters stand under the handles asked for."""

    digest: bytes


class StepFinished(WorkResult, frozen=True):
    """An inner step is done: ``loss`` of its batch before the update, ``tokens`` in the batch, the
    digest of the batch, where stream and schedules stand now (see ``Progress.cursor``), and the
    host copy of the parameters under the handle asked for."""

    step: int
    loss: float
    tokens: int
    batch: bytes
    cursor: bytes = b""


class FragmentEncoded(WorkResult, frozen=True):
    """A fragment of a host copy stands ready to be sent; ``digest`` is its payload's."""

    digest: bytes


class StateCopied(WorkResult, frozen=True):
    """The state stands under the handle asked for, to be cut into ``pieces``; none where the
    task's optimizer state cannot be copied. ``digest`` is xxh3-128 of all of it."""

    pieces: int
    digest: bytes


class PieceEncoded(WorkResult, frozen=True):
    """A piece of a state stands ready to be sent; ``digest`` is its payload's."""

    digest: bytes


class StateInstalled(WorkResult, frozen=True):
    """The state was taken over; or left alone, where it is not ``sound`` (NaN or Inf)."""

    sound: bool


class Measured(Struct, frozen=True, array_like=True):
    """A contribution of finite numbers: the norm of theta - contribution, and its cosine to the sum
    of the others' directions; None where there were none, or it is not to be compared."""

    name: str
    norm: float
    cosine: float | None


class FragmentMerged(WorkResult, frozen=True):
    """A merge is done. ``accepted`` and ``weights`` (normalised) go together, in the order of
    summation; ``refused`` holds (learner, reason); the digests are of what the handles hold.
    ``measured`` has accepted and refused ones, ``moved`` is how far the outer step went."""

    accepted: tuple[str, ...]
    weights: tuple[float, ...]
    refused: tuple[tuple[str, str], ...]
    theta: bytes
    momentum: bytes
    wire: bytes
    measured: tuple[Measured, ...] = ()
    moved: float = 0.0


class Evaluated(WorkResult, frozen=True):
    """Held-out loss of the global parameters; None where the task has no ``evaluate``."""

    loss: float | None


class ModelSaved(WorkResult, frozen=True):
    """The global parameters are in the run folder; ``digest`` is xxh3-128 of the file."""

    digest: bytes


Happened = (
    HappensToAll
    | MessageArrived[Said]
    | Started
    | Recovered
    | ParametersMade
    | StepFinished
    | FragmentEncoded
    | StateCopied
    | PieceEncoded
    | StateInstalled
    | FragmentMerged
    | Evaluated
    | ModelSaved
)
"""The union that a tape's events belong to."""
