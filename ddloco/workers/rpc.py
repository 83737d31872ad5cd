"""What an actor and its JAX worker process say to each other, over a socket pair.

Each message is a length (u32, little-endian) and a msgpack map. Arrays never travel here: they lie
in the arena, and a ``Span`` says where. One answer to each request, in order.
"""

from typing import Any, Literal

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ddloco.config.job import Inner
from ddloco.protocol.fragment_plan import FragmentPlan, Leaf
from ddloco.runtime.shared_memory import Region

LENGTH_BYTES = 4
CHORE_BYTES_MAX = 64 * 2**20
"""The plan of a model with a million tensors fits."""


class Span(Struct, frozen=True, array_like=True):
    """A region of the arena."""

    offset: int
    nbytes: int


def span_of(region: Region) -> Span:
    """Where a region lies."""
    return Span(region.offset, len(region.data))


class Chore(Struct, frozen=True, tag=True):
    """Base of requests and answers."""


class Prepare(Chore, frozen=True):
    """Import the task, make its parameters from the seed, describe them and the machine. A syncer
    has no ``shard``, and opens no stream."""

    task: str
    options: dict[str, Any]
    inner: Inner
    seed: int
    shard: int | None
    shards: int


class Prepared(Chore, frozen=True):
    """The parameters' leaves, and everything that can change arithmetic here."""

    leaves: tuple[Leaf, ...]
    fingerprint: dict[str, str]


class Lay(Chore, frozen=True):
    """Lay the parameters out as ``plan`` says from now on."""

    plan: FragmentPlan


class Laid(Chore, frozen=True):
    """Done; bytes of the whole state, parameters and optimizer's, 0 where it cannot be copied."""

    state_bytes: int


class Touch(Chore, frozen=True):
    """Have the memory at ``out``, so that no later copy waits for the system to give it."""

    out: Span


class CopyOut(Chore, frozen=True):
    """Write the whole state to ``out``; the answer says what the last step had brought."""

    out: Span


class Trained(Chore, frozen=True):
    """One step's loss, tokens, batch digest (xxh3-128), and where stream and schedules stand now
    (see ``data_stream``)."""

    loss: float
    tokens: int
    batch: bytes
    cursor: bytes = b""


class Own(Struct, frozen=True, array_like=True):
    """What a worker knows besides its state, when it goes on from its own: how many batches it has
    ``drawn``, and what its ``last`` step has brought, None before the first."""

    drawn: int
    last: Trained | None


class Install(Chore, frozen=True):
    """Take over the whole state that lies in these regions, one after the other: a peer's, if it is
    sound; or, with ``own``, one's own as it was in a snapshot, whatever it holds."""

    pieces: tuple[Span, ...]
    own: Own | None = None


class Fill(Chore, frozen=True):
    """Write the parameters to ``out``."""

    out: Span


class Installed(Chore, frozen=True):
    """Whether the state was sound, and so was taken over."""

    sound: bool


class Ready(Chore, frozen=True):
    """Done, with nothing to tell."""


class Train(Chore, frozen=True):
    """Overwrite fragments, leave out ``skip`` batches by going to ``cursor``, run one step, copy
    the parameters to ``out``."""

    step: int
    overwrites: tuple[tuple[int, Span], ...]
    out: Span
    skip: int
    cursor: bytes = b""


class Copied(Chore, frozen=True):
    """The state is copied, as it was after the step that brought ``last``."""

    last: Trained | None


class Differentiate(Chore, frozen=True):
    """Take the parameters in ``source``, write the gradient of the next batch to ``out``."""

    source: Span
    out: Span


class Update(Chore, frozen=True):
    """One step of the inner optimizer with the gradient in ``source``; parameters to ``out``."""

    source: Span
    out: Span


class TrainTogether(Chore, frozen=True):
    """Run ``steps`` updates, each with the mean of the gradients of these shards' next batches."""

    shards: tuple[int, ...]
    steps: int


class Score(Chore, frozen=True):
    """Held-out loss of the parameters in ``source``, or of the trained ones where it is None."""

    source: Span | None


class Scored(Chore, frozen=True):
    """Held-out loss; None where the task cannot tell."""

    loss: float | None


class Failed(Chore, frozen=True):
    """The request could not be done: the task's fault, or the worker's. Where user code raised, the
    ``trace`` shows where, for people: it reaches no tape."""

    kind: Literal["task", "worker"]
    reason: str
    trace: str = ""


Request = (
    Prepare
    | Lay
    | Fill
    | Touch
    | CopyOut
    | Install
    | Train
    | Differentiate
    | Update
    | TrainTogether
    | Score
)
Answer = Prepared | Laid | Installed | Ready | Trained | Copied | Scored | Failed

encode = Encoder().encode
decode_request = Decoder(Request).decode
decode_answer = Decoder(Answer).decode


def framed(chore: Chore) -> bytes:
    """A message with its length in front."""
    body = encode(chore)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body
