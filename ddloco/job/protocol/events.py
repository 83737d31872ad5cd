"""All events of learners and syncers; with those of the transport, everything that a tape holds."""

from collections.abc import Sequence

from msgspec import Struct

from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.messages import JobBody
from ddloco.stage.actors.events import HappensToAll, WorkResult
from transport import Event, MessageArrived


class OwnState(Struct, frozen=True, array_like=True):
    """A learner's own state from a snapshot, in a job that continued without it: its worker's state
    under ``handle``, after step ``copy`` and with fragment ``versions``; ``digest`` covers it all.
    """

    snapshot: str
    copy: int
    versions: tuple[int, ...]
    handle: str
    digest: bytes


class Started(Event, frozen=True):
    """The actor's first event: the parameters' leaves, as its worker describes them. A learner that
    ``tells`` reports the losses of its steps. One that ``copies`` copies single fragments to the
    host when they are asked for. Those on older tapes did neither."""

    incarnation: str
    leaves: tuple[Leaf, ...]
    state: OwnState | None = None
    tells: bool = False
    copies: bool = False


class Kept(Struct, frozen=True, array_like=True):
    """A stored fragment: its version, the base version of each incarnation's last contribution, and
    the batches that each actor had used. Its arrays are under ``theta/p/v``, ``outer/p/v`` and
    ``wire/p/v``; ``digest`` covers the first two. ``tokens`` were merged into it so far, in a
    job that ends by tokens."""

    fragment: int
    version: int
    spent: dict[str, int]
    batches: dict[str, int]
    digest: bytes
    tokens: int = 0


class Recovered(WorkResult, frozen=True):
    """The stored fragments that were found, sorted by number; none at a job's first start. ``run``
    identifies this run among those of the same job. ``done`` says that an earlier incarnation ended
    the job as done."""

    kept: tuple[Kept, ...]
    run: str = ""
    done: bool = False


class ParametersMade(WorkResult, frozen=True):
    """The task's initial parameters are stored under the requested handles."""

    digest: bytes


class StepFinished(WorkResult, frozen=True):
    """An inner step is done. ``loss`` is that of its batch before the update, ``tokens`` and
    ``batch`` are the batch's token count and digest, ``cursor`` gives the positions of stream and
    schedules (see ``Progress.cursor``), ``metrics`` are the task's own numbers, ``data_s`` and
    ``compiling_s`` are how long the worker waited for the batch and compiled the step again:
    measured times, which no replay repeats. ``tensors`` are ``TENSOR_DIGEST_BYTES`` of each tensor
    after the update, in the order of the plan."""

    step: int
    loss: float
    tokens: int
    batch: bytes
    cursor: bytes = b""
    metrics: dict[str, float] = {}
    data_s: float = 0.0
    compiling_s: float = 0.0
    tensors: bytes = b""


TENSOR_DIGEST_BYTES = 4
"""Bytes of a tensor's digest on a tape: enough to tell which tensor differs first."""


def first_tensor(leaves: Sequence[Leaf], one: bytes, other: bytes) -> str:
    """The name of the first tensor of a fragment whose digest differs; empty if that is unknown.

    Args:
        leaves: the fragment's tensors, in the order of the plan.
        one: the digests of one result, as in ``FragmentEncoded.tensors``; empty in old tapes.
        other: those of the other.
    """
    n = TENSOR_DIGEST_BYTES
    for at, leaf in enumerate(leaves):
        mine, theirs = one[at * n : (at + 1) * n], other[at * n : (at + 1) * n]
        if mine and theirs and mine != theirs:
            return leaf.name
    return ""


class FragmentEncoded(WorkResult, frozen=True):
    """A fragment of a host copy is ready to be sent; ``digest`` is its payload's, ``error`` that of
    what the compression lost, if that is kept. ``tensors`` are the first ``TENSOR_DIGEST_BYTES`` of
    the digests of its tensors, in the order of the plan."""

    digest: bytes
    error: bytes = b""
    tensors: bytes = b""


class FragmentDecoded(WorkResult, frozen=True):
    """A compressed version of a fragment is ready to be installed; ``digest`` is its payload's."""

    digest: bytes


class StateCopied(WorkResult, frozen=True):
    """The state is stored under the requested handle, to be split into ``pieces``; 0 if the task's
    optimizer state cannot be copied. ``digest`` is xxh3-128 of the whole state."""

    pieces: int
    digest: bytes


class PieceEncoded(WorkResult, frozen=True):
    """A piece of a state is ready to be sent; ``digest`` is its payload's."""

    digest: bytes


class StateInstalled(WorkResult, frozen=True):
    """The state was installed; or, if it is not ``sound`` (it has NaN or Inf), ignored."""

    sound: bool


class Measured(Struct, frozen=True, array_like=True):
    """A finite contribution: the norm of theta - contribution, and its cosine to the sum of the
    others' directions; None if there are no others, or it is not comparable."""

    name: str
    norm: float
    cosine: float | None


class FragmentMerged(WorkResult, frozen=True):
    """A merge is done. ``accepted`` and ``weights`` (normalised) are parallel, in the order of
    summation; ``refused`` holds (learner, reason); the digests are of the new arrays, ``state`` of
    all those of the outer optimizer. ``measured`` covers accepted and refused contributions;
    ``moved`` is the length of the outer step. ``held`` and ``sent`` are the digests of the result
    as learners will hold it, and as it is sent, if it is compressed. ``tensors`` is as in
    ``FragmentEncoded``, of the new parameters."""

    accepted: tuple[str, ...]
    weights: tuple[float, ...]
    refused: tuple[tuple[str, str], ...]
    theta: bytes
    state: bytes
    wire: bytes
    measured: tuple[Measured, ...] = ()
    moved: float = 0.0
    held: bytes = b""
    sent: bytes = b""
    tensors: bytes = b""


class Evaluated(WorkResult, frozen=True):
    """The held-out loss of the global parameters, None if the task has no ``evaluate``, and its
    other metrics."""

    loss: float | None
    metrics: dict[str, float] = {}


class ModelSaved(WorkResult, frozen=True):
    """The global parameters are in the run folder; ``digest`` is xxh3-128 of the file."""

    digest: bytes


Happened = (
    HappensToAll
    | MessageArrived[JobBody]
    | Started
    | Recovered
    | ParametersMade
    | StepFinished
    | FragmentEncoded
    | FragmentDecoded
    | StateCopied
    | PieceEncoded
    | StateInstalled
    | FragmentMerged
    | Evaluated
    | ModelSaved
)
"""The union of the events on a job's tapes."""
