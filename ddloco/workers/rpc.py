"""The protocol between an actor and its JAX worker process, over a socket pair.

Each message is a length (u32, little-endian) and a msgpack map. Arrays are not sent: they are in
shared memory, and a ``Span`` gives their place. Each request gets one answer, in order; a request
may be sent before the former one is answered.
"""

import selectors
import socket
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ddloco.job.config import Inner, Job
from ddloco.job.protocol.fragment_plan import FragmentPlan, Leaf
from ddloco.job.protocol.work import FromShard, OneStep
from ddloco.stage.actors.events import FailureKind
from ddloco.stage.arrays.shared_memory import Region

LENGTH_BYTES = 4

READ_BYTES = 65536
"""Messages are short; only the description of a very large model needs more than one read."""


class Span(Struct, frozen=True, array_like=True):
    """A region of the arena."""

    offset: int
    nbytes: int


def span_of(region: Region) -> Span:
    return Span(region.offset, len(region.data))


class WorkerMessage(Struct, frozen=True, tag=True):
    """Base class of requests and answers."""


class Prepare(WorkerMessage, frozen=True):
    """Import the task, determine its parameters' shapes, and report them with the fingerprint. A
    syncer has no ``shard``, and opens no stream of batches. The job has ``steps`` global steps.
    ``mesh`` is the number of devices along each axis; empty for one device, or for all devices of
    several processes. ``leaves_if_corrupt`` says whether a checked step that has two results is the
    worker's failure. ``batch`` is the size of its batches, if it is not the task's; for ``retry_s``
    seconds a batch that cannot be drawn is tried again."""

    task: str
    options: dict[str, Any]
    inner: Inner
    seed: int
    shard: int | None
    shards: int
    steps: int = 1
    mesh: dict[str, int] = {}
    leaves_if_corrupt: bool = True
    batch: int | None = None
    retry_s: float = 0.0


def preparation(job: Job, name: str = "", task: str = "") -> Prepare:
    """Return the first request to an actor's worker. Only a learner uses all devices of its mesh,
    and has a stream of batches. The others have one device, with the same axes: an ``init`` that
    names them works there as well. The worker imports ``task`` in place of the job's own."""
    learner = name in job.learner_names()
    mesh = job.worker_of(name).mesh
    return Prepare(
        task=task or job.job.task,
        options=job.task,
        inner=job.inner,
        seed=job.job.seed,
        shard=job.shard(name) if learner else None,
        shards=job.data_shards,
        steps=job.job.steps,
        mesh=mesh if learner else dict.fromkeys(mesh, 1),
        leaves_if_corrupt=job.worker.on_corruption == "leave",
        batch=job.learner_table(name).batch,
        retry_s=job.worker.retry_s,
    )


class Prepared(WorkerMessage, frozen=True):
    """The parameters' leaves, everything on this host that can change arithmetic, and the task's
    source files, by relative path."""

    leaves: tuple[Leaf, ...]
    fingerprint: dict[str, str]
    sources: dict[str, str] = {}


class Lay(WorkerMessage, frozen=True):
    """Use the layout ``plan`` for the parameters from now on."""

    plan: FragmentPlan


class Laid(WorkerMessage, frozen=True):
    """Bytes of the whole state, parameters and optimizer's; 0 if it cannot be copied."""

    state_bytes: int


class Touch(WorkerMessage, frozen=True):
    """Write to the memory at ``out``, so that later copies do not wait for page faults."""

    out: Span


class CompileAhead(WorkerMessage, frozen=True):
    """Draw the first batch and begin to compile the step, while the parameters are on their way. If
    the learner has ``returned``, only if its stream can go to a place without drawing all batches
    before it."""

    returned: bool = False


class CopyOut(WorkerMessage, frozen=True):
    """Write the whole state to ``out``; the answer contains the result of the last step."""

    out: Span


class Trained(WorkerMessage, frozen=True):
    """The last step's loss, tokens, batch digest (xxh3-128), the cursor after it: the positions of
    stream and schedules (see ``data_stream``), the task's own metrics, how long the worker waited
    for batches and compiled the step again, in seconds, which is not part of its state, the sums
    of all tensors after the update (see ``tensor_sums``), fragment after fragment, what had another
    value when the first step was run twice, if it was checked, the steps before the last, the
    counters of the task's state, what user code has read since the step before, tensors of the
    state with a NaN, and the shapes of the batch."""

    loss: float
    tokens: int
    batch: bytes
    cursor: bytes = b""
    metrics: dict[str, float] = {}
    data_s: float = 0.0
    compiling_s: float = 0.0
    tensors: bytes = b""
    corrupt: str = ""
    before: tuple[OneStep, ...] = ()
    counters: tuple[int, ...] = ()
    reads: dict[str, str] = {}
    nan: tuple[str, ...] = ()
    shapes: str = ""


class Updated(WorkerMessage, frozen=True):
    """The coordinator of a data-parallel job: the global step of its optimizer's last step."""

    t: int


class RestoredState(Struct, frozen=True, array_like=True):
    """What a worker that resumes from its own state has besides it: the number of batches
    ``drawn``, and the result of its ``last`` step or update, None before the first. In a job with
    ``job.shards`` it has, per data shard, the number of batches used and the cursor after them; of
    the ``last`` step's, which is the first, that is the step's own."""

    drawn: int
    last: Trained | Updated | None
    shards: tuple[tuple[int, int, bytes], ...] = ()


class Install(WorkerMessage, frozen=True):
    """Replace the whole state by the contents of these regions, in order. A peer's state is only
    accepted if it is finite; with ``own`` it is this worker's state from a snapshot, and is always
    accepted. The regions stay as they are until the next step is finished, which may run twice."""

    pieces: tuple[Span, ...]
    own: RestoredState | None = None


class Fill(WorkerMessage, frozen=True):
    """Create the initial parameters and write them to ``out``."""

    out: Span


class Installed(WorkerMessage, frozen=True):
    """Whether the state was finite, and so was accepted."""

    sound: bool


class Ready(WorkerMessage, frozen=True):
    """The request is done, and has no result."""


class CopyFragments(WorkerMessage, frozen=True):
    """Copy these fragments of the parameters to the host, as the last step left them."""

    copies: tuple[tuple[int, Span], ...]


class NewFragment(Struct, frozen=True, array_like=True):
    """A fragment and the memory with its new values, which replace the worker's own; ``mixing`` of
    its own stay, or the difference of its own to those ``since`` is added."""

    fragment: int
    span: Span
    mixing: float = 0.0
    since: Span | None = None

    @property
    def replaces(self) -> bool:
        return not self.mixing and self.since is None


class Train(WorkerMessage, frozen=True):
    """Overwrite fragments, skip ``skip`` batches by going to ``cursor``, run ``count`` steps, and
    copy all parameters to ``out`` if there is one. ``t`` is the newest global step of the
    fragments; ``data`` says which data shard the batch is from, if not from the learner's own.
    With ``check`` the first step is run twice, and the results compared."""

    step: int
    overwrites: tuple[NewFragment, ...]
    out: Span | None
    skip: int
    cursor: bytes = b""
    t: int = 0
    data: FromShard | None = None
    check: bool = False
    count: int = 1


class Copied(WorkerMessage, frozen=True):
    """The state has been copied, as it was after the step with the result ``last``."""

    last: Trained | Updated | None


class ComputeGradient(WorkerMessage, frozen=True):
    """Take the parameters in ``source``, write the gradient of batch number ``batch``."""

    source: Span
    out: Span
    batch: int


class Update(WorkerMessage, frozen=True):
    """One step of the inner optimizer with the gradient in ``source``; parameters to ``out``. Step
    ``t`` is taken once: if it was the last one, only the parameters are written."""

    source: Span
    out: Span
    t: int


class Score(WorkerMessage, frozen=True):
    """Compute the held-out loss of the parameters in ``source``, with the ``counters`` of a learner
    in the task's state; None means what was trained here."""

    source: Span | None
    counters: tuple[int, ...] = ()


class Scored(WorkerMessage, frozen=True):
    """The held-out loss, None if the task cannot compute it, and its other metrics."""

    loss: float | None
    metrics: dict[str, float] = {}


class Dismiss(WorkerMessage, frozen=True):
    """End, together with the other processes of the learner; ``final`` if for good."""

    final: bool


class Alive(WorkerMessage, frozen=True):
    """Not an answer: a worker of several processes says that it works, twice a second."""


class Told(WorkerMessage, frozen=True):
    """Not an answer: an event for the actor's log, while a request is being fulfilled."""

    event: str
    fields: dict[str, Any]


class MeasureDevices(WorkerMessage, frozen=True):
    """Tell the memory of the devices, and what a step needs of it; before the first step."""


class TensorMeasure(Struct, frozen=True, array_like=True):
    """A tensor's name, data type and shape; the ``norm`` and the ``largest`` magnitude of its
    finite elements, and the number of the others."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    norm: float
    largest: float
    not_finite: int

    @property
    def kind(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Look(WorkerMessage, frozen=True):
    """Measure the tensors of the trained state whose names match a pattern; nothing changes."""

    wanted: str


class Looked(WorkerMessage, frozen=True):
    """The measures; the names of all tensors if none of them is wanted."""

    tensors: tuple[TensorMeasure, ...]
    names: tuple[str, ...] = ()


class Devices(WorkerMessage, frozen=True):
    """The devices of a worker, of all processes.

    Attributes:
        step_bytes: what a step needs on each of them, as it was compiled: parameters, optimizer's
            state, batch, results and what lies between.
        limit_bytes: how much JAX may use of each; None if the device does not tell.
    """

    kind: str
    count: int
    step_bytes: int
    limit_bytes: int | None = None


class Failed(WorkerMessage, frozen=True):
    """The request failed, because of the task or of the worker; see ``WorkFailed``. ``trace`` is
    the traceback within user code, for display, and ``full`` all of it, for a file; they are not
    written to a tape."""

    kind: FailureKind
    reason: str
    trace: str = ""
    full: str = ""


Request = (
    Prepare
    | Lay
    | Fill
    | Touch
    | CompileAhead
    | CopyOut
    | Install
    | CopyFragments
    | Train
    | ComputeGradient
    | Update
    | Score
    | MeasureDevices
    | Look
    | Dismiss
)
Answer = (
    Prepared
    | Laid
    | Installed
    | Ready
    | Trained
    | Updated
    | Copied
    | Scored
    | Devices
    | Looked
    | Failed
    | Alive
    | Told
)

encode = Encoder().encode
decode_request = Decoder(Request).decode
decode_answer = Decoder(Answer).decode


def framed(message: WorkerMessage) -> bytes:
    body = encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def receive_into(link: socket.socket, room: memoryview) -> bool:
    """Fill ``room`` with bytes from a socket; returns False if it closes before that."""
    while room:
        try:
            found = link.recv_into(room)
        except OSError:
            return False
        if not found:
            return False
        room = room[found:]
    return True


class RequestReader:
    """Reads the actor's requests from a socket. It waits with epoll instead of in ``recv``: the
    kernel moves a process that sleeps in ``recv`` to the core of the sender, which it expects to
    sleep soon; but the actor has reports to write, and the worker would wait for them: 0.4 ms
    before each step, on two cores."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ)
        self._received = bytearray()

    def next(self) -> Request | None:
        """Wait for the next request; returns None once the actor has closed the socket."""
        start = LENGTH_BYTES
        if not self._receive(start):
            return None
        stop = start + int.from_bytes(self._received[:start], "little")
        if not self._receive(stop):
            return None
        request = decode_request(self._received[start:stop])
        del self._received[:stop]
        return request

    def receive_into(self, room: memoryview) -> bool:
        """Fill ``room`` with the bytes that follow a request; False if the socket closes before
        that."""
        known = min(len(self._received), len(room))
        room[:known] = self._received[:known]
        del self._received[:known]
        return receive_into(self._link, room[known:])

    def _receive(self, nbytes: int) -> bool:
        """Wait until so many bytes are there; returns False if the socket closes before that."""
        while len(self._received) < nbytes:
            self._selector.select()
            try:
                piece = self._link.recv(READ_BYTES)
            except ConnectionResetError:  # The actor has left an answer unread.
                return False
            if not piece:
                return False
            self._received += piece
        return True
