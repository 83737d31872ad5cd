"""The work that a learner or a syncer may request, in addition to that of every actor; each kind
with its result.

To add a kind, declare it and its result here, add it to ``KINDS``, and write a method that ``does``
it in ``workers/executor.py``, and one in ``workers/simulated/work.py``.

Arrays are named by handles: ``host/STEP/P`` for a fragment of a learner's parameters after a step
(``host/STEP`` for all of them, see ``RunStep``), ``theta/P/T`` for a global fragment in float32 and
``outer/P/T`` for all arrays of its outer optimizer, ``wire/P/T`` for the same fragment in the form
in which it is sent.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Union

from msgspec import Struct

from ddloco.job.protocol.compression import Format
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.messages import Measured
from ddloco.stage.actors.effects import Work
from ddloco.stage.actors.events import WorkResult
from ddloco.stage.actors.work_handles import Made, Read


class Overwrite(Struct, frozen=True, array_like=True):
    """Before the step, replace the fragment by the global version under the handle.

    ``mixing`` of the learner's own parameters stay; or, with ``since``, the difference of its own
    to that copy, of what it contributed to the version, is added (see ``sync.late``).
    """

    fragment: int
    version: int
    handle: Read
    mixing: float = 0.0
    since: Read = ""


class HostFragment(Struct, frozen=True, array_like=True):
    """Before the step, copy the fragment from the device to the host, under the handle."""

    fragment: int
    handle: str


class Share(Struct, frozen=True, array_like=True):
    """One learner's contribution to a merge: its payload; its weight (tokens x tokens / steps); the
    version that it was trained from, and for how many steps. ``usual`` is the usual norm after that
    many steps, 0 if unknown; ``moved`` is how far the fragment has moved since that version."""

    name: str
    handle: Read
    weight: float
    base: int
    steps: int = 1
    usual: float = 0.0
    moved: float = 0.0


class Differences(Struct, frozen=True, array_like=True):
    """What a merge needs besides where fragments are sent as compressed differences.

    ``anchors`` gives, for each share that is a difference, the handle of the parameters that it is
    a difference to. ``held`` is the previous version as learners hold it, empty if that is unknown;
    then the result is sent whole. Otherwise ``out`` names the result as learners will hold it, and
    the difference between these two as it is sent.
    """

    anchors: dict[str, Read]
    held: Read = ""
    out: tuple[Made, ...] = ()


class ShareSum(Struct, frozen=True, array_like=True):
    """A relay's sum of the shares with one handle: for each tensor of the fragment the weighted
    mean of their lengths. The payload has that of their directions, in ``form``; ``measured`` is
    what the relay has measured."""

    lengths: tuple[float, ...]
    form: Format = "float32"
    measured: tuple[Measured, ...] = ()


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


class Recover(Work, frozen=True):
    """Find the merges that an earlier incarnation of this syncer stored."""

    result = Recovered


class ParametersMade(WorkResult, frozen=True):
    """The task's initial parameters are stored under the requested handles."""

    digest: bytes


class MakeParameters(Work, frozen=True):
    """Initialise the task's parameters; store those of ``fragments`` under ``theta/p/0`` and
    ``wire/p/0``."""

    result = ParametersMade

    fragments: tuple[int, ...]

    @property
    def makes(self) -> tuple[str, ...]:
        return tuple(f"{kind}/{p}/0" for p in self.fragments for kind in ("theta", "wire"))


class OneStep(Struct, frozen=True, array_like=True):
    """What one inner step brought: the ``loss`` of its batch before the update, and the batch's
    token count and digest."""

    loss: float
    tokens: int
    batch: bytes


class StepFinished(WorkResult, frozen=True):
    """An inner step is done, and with it those of the same ``RunStep`` ``before`` it. ``loss`` is
    that of its batch before the update, ``tokens`` and ``batch`` are the batch's token count and
    digest, ``cursor`` gives the positions of stream and schedules (see ``Progress.cursor``),
    ``metrics`` are the task's own numbers, ``data_s`` and ``compiling_s`` are how long the worker
    waited for the batches and compiled the step again, in all of these steps: measured times, which
    no replay repeats. ``tensors`` are ``TENSOR_DIGEST_BYTES`` of each tensor after the update, in
    the order of the plan. ``corrupt`` says what had another value when the first of these steps was
    run twice, and where; no replay repeats that either. ``counters`` are those of the task's state
    after the update (see ``workers.task_state``). ``reads`` are entries of the run's identity: the
    variables and files that the task has read since the step before. ``nan`` names tensors of the
    optimizer's and the task's state with a NaN; they are looked at after each ``STATE_STEPS``
    steps, since a step may go on without a trace of it in its loss. As often ``shapes`` are those
    of the arrays of the batch, in words."""

    step: int
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

    @property
    def count(self) -> int:
        return len(self.before) + 1

    def steps(self) -> Iterator[tuple[int, OneStep]]:
        own = OneStep(self.loss, self.tokens, self.batch)
        yield from enumerate((*self.before, own), self.step - len(self.before))


STATE_STEPS, NAN_NAMES_MAX = 16, 4
"""A state is looked at for NaN after each so many inner steps, and so many tensors are named."""

TENSOR_DIGEST_BYTES = 4
"""Bytes of a tensor's digest on a tape: enough to tell which tensor differs first."""


def tensors_apart(
    names: Sequence[str], one: bytes, other: bytes
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the tensors whose digests differ, and those that are equal; both empty if the digests
    of some are not on the tapes."""
    n = TENSOR_DIGEST_BYTES
    if not names or not len(one) == len(other) == n * len(names):
        return (), ()
    places = [slice(at * n, (at + 1) * n) for at in range(len(names))]
    same = [one[place] == other[place] for place in places]
    differ = tuple(name for name, equal in zip(names, same, strict=True) if not equal)
    return differ, tuple(name for name, equal in zip(names, same, strict=True) if equal)


def first_tensor(leaves: Sequence[Leaf], one: bytes, other: bytes) -> str:
    """The first tensor whose digest differs; empty if that is unknown. The digests are as in
    ``FragmentEncoded.tensors``; those in old tapes are empty."""
    n = TENSOR_DIGEST_BYTES
    for at, leaf in enumerate(leaves):
        mine, theirs = one[at * n : (at + 1) * n], other[at * n : (at + 1) * n]
        if mine and theirs and mine != theirs:
            return leaf.name
    return ""


class FromShard(Struct, frozen=True, array_like=True):
    """Where a step's batch comes from in a job with ``job.shards``: from the first of the data
    shards that the learner holds, which are in the order of their turns. If the shard ``opens``,
    its stream begins where ``skip`` and ``cursor`` of the step say."""

    held: tuple[int, ...]
    opens: bool = False


class RunStep(Work, frozen=True):
    """Copy fragments to the host as the last step left them, overwrite fragments that have newer
    versions, and run inner step ``step`` and those after it, ``count`` in all. Before them,
    ``skip`` batches that an earlier incarnation used are skipped, by going to ``cursor`` if that is
    known. ``t`` is the newest global step of its fragments, for schedules. ``data`` is where the
    batch comes from, if not from the learner's own data shard.

    A learner that does not copy fragments (see ``Started``) has all parameters copied to ``out``.
    The copies are not among the results (``makes``): they exist before the step begins.
    """

    result = StepFinished
    worker_state = "changes"

    step: int
    overwrites: tuple[Overwrite, ...]
    out: str
    skip: int = 0
    cursor: bytes = b""
    t: int = 0
    copies: tuple[HostFragment, ...] = ()
    data: FromShard | None = None
    count: int = 1

    @property
    def last(self) -> int:
        return self.step + self.count - 1

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.out,) if self.out else ()


class StateCopied(WorkResult, frozen=True):
    """The state is stored under the requested handle, to be split into ``pieces``; 0 if the task's
    optimizer state cannot be copied. ``digest`` is xxh3-128 of the whole state."""

    pieces: int
    digest: bytes


class CopyState(Work, frozen=True):
    """Copy parameters and optimizer state as they are between two steps."""

    result = StateCopied
    worker_state = "reads"

    out: Made


class PieceEncoded(WorkResult, frozen=True):
    """A piece of a state is ready to be sent; ``digest`` is its payload's."""

    digest: bytes


class EncodePiece(Work, frozen=True):
    """Make a payload of one piece of a copy of the state, or of a whole received piece."""

    result = PieceEncoded

    piece: int
    source: Read
    out: Made


class StateInstalled(WorkResult, frozen=True):
    """The state was installed; or, if it is not ``sound`` (it has NaN or Inf), ignored."""

    sound: bool


class InstallState(Work, frozen=True):
    """Replace parameters and optimizer state by these pieces."""

    result = StateInstalled
    worker_state = "replaces"

    pieces: tuple[Read, ...]


class FragmentEncoded(WorkResult, frozen=True):
    """A fragment of a host copy is ready to be sent; ``digest`` is its payload's, ``error`` that of
    what the compression lost, if that is kept. ``tensors`` are the first ``TENSOR_DIGEST_BYTES`` of
    the digests of its tensors, in the order of the plan."""

    digest: bytes
    error: bytes = b""
    tensors: bytes = b""


class EncodeFragment(Work, frozen=True):
    """Make a payload of one fragment's host copy.

    With ``base``, the version that it was trained from, the payload is the compressed difference to
    that. With ``error_out``, what earlier compressions lost (``error``, empty for zeros) is added
    to the difference first, and what this one loses is stored there (error feedback).
    """

    result = FragmentEncoded

    fragment: int
    source: Read
    out: Made
    base: Read = ""
    error: Read = ""
    error_out: Made = ""


class FragmentDecoded(WorkResult, frozen=True):
    """A compressed version of a fragment is ready to be installed; ``digest`` is its payload's."""

    digest: bytes


class DecodeFragment(Work, frozen=True):
    """Make a version of a fragment from the version ``base`` and the compressed difference under
    ``source``, in wire dtype."""

    result = FragmentDecoded

    fragment: int
    base: Read
    source: Read
    out: Made


class MergeTokens(Struct, frozen=True, array_like=True):
    """The tokens of a merge's shares, by name, and those merged into the fragment ``before``."""

    shares: dict[str, int]
    before: int

    def after(self, accepted: Iterable[str]) -> int:
        return self.before + sum(self.shares[name] for name in accepted)


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


class MergeFragment(Work, frozen=True):
    """Merge contributions into a fragment, take the outer step, and store the result on disk for
    the next incarnation; only then is the merge done. The result gets new handles.

    ``state`` is that of the outer optimizer; empty means zeros. ``spent`` gives per incarnation the
    base version of the last contribution merged into this fragment, ``batches`` gives per actor the
    batches of its shard that it has used. Both are stored with the result, so that after a crash no
    token is merged twice and no batch is trained on twice.

    ``band`` is the largest accepted multiple of a share's usual norm, 0 for no limit; ``cosine`` is
    the usual cosine, None if unknown. See ``outlier_test``. With ``adopt`` the shares were trained
    from a version that this syncer has lost: their weighted average replaces ``theta``, and the
    state restarts at zero.

    ``tokens`` are counted where a job ends by them. ``sums`` says, by handle, which shares' payload
    is a relay's sum.
    """

    result = FragmentMerged

    t: int
    fragment: int
    theta: Read
    state: Read
    shares: tuple[Share, ...]
    spent: dict[str, int]
    batches: dict[str, int]
    out: tuple[Made, Made, Made]
    band: float = 0.0
    cosine: float | None = None
    adopt: bool = False
    differences: Differences | None = None
    tokens: MergeTokens | None = None
    sums: dict[str, ShareSum] = {}

    def kept(self, merged: FragmentMerged) -> Kept:
        """What the next incarnation needs to know of the merge, sorted as when read from a file."""
        bases = {share.name: share.base for share in self.shares}
        spent = {**self.spent, **{name: bases[name] for name in merged.accepted}}
        told = dict(sorted(spent.items())), dict(sorted(self.batches.items()))
        tokens = self.tokens.after(merged.accepted) if self.tokens is not None else 0
        return Kept(self.fragment, self.t, *told, merged.theta + merged.state, tokens)


class ContributionsSummed(WorkResult, frozen=True):
    """A relay's sum is ready to be sent. ``accepted``, ``refused`` and ``measured`` are as in
    ``FragmentMerged``, ``lengths`` as in ``ShareSum``; ``digest`` is the payload's. Nothing was
    stored if nothing is accepted."""

    accepted: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    lengths: tuple[float, ...]
    digest: bytes
    measured: tuple[Measured, ...] = ()


class SumContributions(Work, frozen=True):
    """Sum the contributions of a relay's learners for a merge; see ``outer.sums``.

    ``anchor`` is the version of the fragment from which changes are measured; the contributions of
    learners in ``differences`` are compressed differences to it. ``band`` and ``cosine`` are those
    of ``MergeFragment``.
    """

    result = ContributionsSummed

    t: int
    fragment: int
    anchor: Read
    shares: tuple[Share, ...]
    out: Made
    differences: tuple[str, ...] = ()
    band: float = 0.0
    cosine: float | None = None


class Differentiate(Work, frozen=True):
    """Compute the gradient of batch number ``batch`` at the parameters under ``source``, as a
    payload in wire dtype."""

    result = StepFinished

    step: int
    source: Read
    out: Made
    batch: int


class AverageGradients(Work, frozen=True):
    """Average gradients by weight and take one step of the inner optimizer on the parameters under
    ``theta``. ``out`` names the new parameters and their payload. The result is a
    ``FragmentMerged``."""

    result = FragmentMerged

    t: int
    theta: Read
    shares: tuple[Share, ...]
    out: tuple[Made, Made]


class Evaluated(WorkResult, frozen=True):
    """The held-out loss of the global parameters, None if the task has no ``evaluate``, and its
    other metrics."""

    loss: float | None
    metrics: dict[str, float] = {}


class Evaluate(Work, frozen=True):
    """Compute the held-out loss of the global parameters, given by fragment, with the counters of
    the learner that has drawn the most batches; without any they are those of ``init_state``."""

    result = Evaluated

    fragments: tuple[Read, ...]
    counters: tuple[int, ...] = ()


class ModelSaved(WorkResult, frozen=True):
    """The global parameters are in the run folder; ``digest`` is xxh3-128 of the file."""

    digest: bytes


class SaveModel(Work, frozen=True):
    """Write the global parameters, given by fragment, to the run folder; ``done`` if with this the
    job has ended well, which the next incarnation is to know."""

    result = ModelSaved

    fragments: tuple[Read, ...]
    done: bool


KINDS: tuple[type[Work], ...] = (
    Recover,
    MakeParameters,
    RunStep,
    CopyState,
    EncodePiece,
    InstallState,
    EncodeFragment,
    DecodeFragment,
    MergeFragment,
    SumContributions,
    Differentiate,
    AverageGradients,
    Evaluate,
    SaveModel,
)

Asked = Union[KINDS]  # noqa: UP007, of a tuple

RESULTS = tuple(dict.fromkeys(kind.result for kind in KINDS))
"""Their results, each once."""
