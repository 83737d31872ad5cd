"""The messages between learners and syncer. They state absolute values: the newest one counts."""

from collections.abc import Iterable
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from ddloco.job.protocol.compression import Format
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.stage.actors.messages import ActorBody
from transport import Body, Count, Name, Reason

Counts = Annotated[tuple[Count, ...], Meta(max_length=4096)]
COUNTERS_MAX = 256
"""So many whole numbers of a task's state are told to others."""

Counters = Annotated[
    tuple[Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], ...], Meta(max_length=COUNTERS_MAX)
]
Versions = Annotated[tuple[Annotated[int, Meta(ge=-1, le=2**63 - 1)], ...], Meta(max_length=4096)]


Names = Annotated[tuple[Name, ...], Meta(max_length=4096)]

Finite = Annotated[float, Meta(ge=0.0, le=1e38)]
"""A number of messages that is neither negative, nor infinite, nor NaN."""

CURSOR_BYTES_MAX = 4096
"""A cursor is part of every report, so it is no larger than a report of many fragments. A stream
with a larger state is drawn again from its beginning when a learner returns."""

Cursor = Annotated[bytes, Meta(max_length=CURSOR_BYTES_MAX)]


METRICS_MAX = 32

Metrics = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=64)], float], Meta(max_length=METRICS_MAX)
]


CURSORS_BYTES_MAX = 65_536
"""The cursors of one message together; shards whose cursors have no room are drawn again from their
beginning by another learner."""


class DataPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a data shard was drawn by whoever has it: ``batches`` of it were used, up to position
    ``cursor``, empty if unknown. ``term`` is the number of the message that gave it away."""

    shard: Count
    term: Count
    batches: Count
    cursor: Cursor = b""


Places = Annotated[tuple[DataPlace, ...], Meta(max_length=4096)]


def within_budget(places: Iterable[DataPlace]) -> tuple[DataPlace, ...]:
    """The places, those without room for their cursors without."""
    left, found = CURSORS_BYTES_MAX, list[DataPlace]()
    for each in places:
        left -= len(each.cursor)
        found.append(each if left >= 0 else replace(each, cursor=b""))
    return tuple(found)


class Measured(Struct, frozen=True, array_like=True):
    """A finite contribution: the norm of theta - contribution, and its cosine to the sum of the
    others' directions; None if there are no others, or it is not comparable."""

    name: str
    norm: float
    cosine: float | None


TOGETHER_MAX = 256
"""The most steps that a learner's worker is asked for at once."""


SHAPES_CHARS_MAX = 64
VARIOUS = "various"
"""The shapes of batches that are not always the same."""

Shapes = Annotated[str, Meta(max_length=SHAPES_CHARS_MAX)]


class LastStep(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a learner's last finished step brought, for observers: the loss of its batch, and the
    task's own metrics; and the shapes of its batches so far, ``VARIOUS`` if they were not always
    the same, empty if they are not known."""

    loss: float
    metrics: Metrics = {}
    shapes: Shapes = ""

    def after(self, before: "LastStep | None") -> "LastStep":
        """This step, with the shapes of all batches."""
        known = before.shapes if before is not None else ""
        if not known or not self.shapes:
            return replace(self, shapes=known or self.shapes)
        return replace(self, shapes=known if known == self.shapes else VARIOUS)


class Progress(Body, frozen=True, omit_defaults=True):
    """A learner's report after every step, or after several that its worker was asked for at once
    (paper: the metadata tuple).

    Attributes:
        step: the last finished inner step, 0 before the first.
        step_s: duration of a step in seconds, the median of the newest; 0 before the second.
        versions: per fragment the global step of the merge that it holds, -1 for none.
        steps: per fragment the steps trained since it received that version.
        tokens: per fragment the tokens trained on since then.
        batches: batches of its shard that this learner, including earlier incarnations, has used.
        cursor: the positions of its stream and schedules after these batches (``data_stream``);
            empty before the first step.
        follows: with ``job.shards``, the number of the ``DataShards`` that it follows.
        drawing: with ``job.shards``, where it is in the data shards that it draws from.
        returned: with ``job.shards``, how far it came in shards that it has given back.
        corrupt: how many of its steps had two results when they were run twice.
        position: with ``sync.blocking``, the global step that its parameters have come to.
        together: the steps that are done when it reports again.
    """

    step: Count
    step_s: Annotated[float, Meta(ge=0)]
    versions: Versions
    steps: Counts
    tokens: Counts
    # Factories, so that these are encoded as they always were, with or without a value.
    batches: Count = field(default_factory=int)
    cursor: Cursor = field(default_factory=bytes)
    last: LastStep | None = None
    trained: Count = field(default_factory=int)
    spent: TimeSpent = field(default_factory=TimeSpent)
    follows: Count = 0
    drawing: Places = ()
    returned: Places = ()
    corrupt: Count = 0
    position: Count = 0
    together: Annotated[int, Meta(ge=1, le=TOGETHER_MAX)] = 1
    busy: Reason = ""
    counters: Counters = ()

    @property
    def report_s(self) -> float:
        """The expected seconds from this report to the next; 0 if that is unknown."""
        return self.step_s * self.together


class Pull(Body, frozen=True):
    """The syncer requests a fragment for the sync of global step ``t``. With ``whole`` the answer
    must not be compressed, because the syncer lacks the version that the learner trained from. With
    ``relay`` the payload goes to this relay, if the learner is linked to it."""

    t: Count
    fragment: Count
    whole: bool | UnsetType = UNSET
    relay: Name | UnsetType = UNSET


class Contribution(Body, frozen=True):
    """The answer to a pull: the fragment as it was after ``step``, as payload, in wire dtype.

    ``base`` is the version that it was trained from; ``steps`` and ``tokens`` count since then.
    With ``form`` the payload is the compressed difference to that version. With ``relay`` the
    message is sent twice: to this relay, with its payload, and to the syncer without.
    """

    t: Count
    fragment: Count
    base: Count
    step: Count
    steps: Count
    tokens: Count
    form: Format | UnsetType = UNSET
    relay: Name | UnsetType = UNSET


class GlobalFragment(Body, frozen=True):
    """The newest version of a fragment, as payload, in wire dtype.

    With ``instead`` the learner must discard what it trained since the same version, because that
    contribution was rejected. With ``form`` the payload is the compressed difference to version
    ``base``. With error feedback ``spent`` is the base version of the learner's last contribution
    to it that was merged, -1 for none.

    A relay sends it on to the learners in ``to``; ``spents`` are theirs, in the same order.
    """

    fragment: Count
    version: Count
    instead: bool = False
    form: Format | UnsetType = UNSET
    base: Count | UnsetType = UNSET
    spent: Annotated[int, Meta(ge=-1)] | UnsetType = UNSET
    to: Names | UnsetType = UNSET
    spents: Versions | UnsetType = UNSET


class WantedShare(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A contribution that a relay is to sum: whose it is, and what ``work.Share`` says of it."""

    name: Name
    weight: Finite
    base: Count
    steps: Count
    usual: Finite
    moved: Annotated[float, Meta(ge=0.0)]


class SumWanted(Body, frozen=True):
    """The syncer asks a relay for the sum of these contributions to the sync of global step ``t``,
    measured from ``version`` of the fragment. After ``within_s`` seconds the relay leaves out those
    that have not arrived. ``number`` tells this request from an earlier one for the same sync.
    ``band`` and ``cosine`` are those of ``work.MergeFragment``."""

    t: Count
    fragment: Count
    number: Count
    version: Count
    shares: Annotated[tuple[WantedShare, ...], Meta(max_length=4096)]
    within_s: Finite
    band: Finite = 0.0
    cosine: float | None = None


class ContributionSum(Body, frozen=True):
    """A relay's answer to ``SumWanted``: for each tensor the weighted mean of the directions of the
    contributions in ``names``, as payload in ``form`` (see ``outer.sums``), and of their
    ``lengths``. Without names there is no payload. ``refused`` and ``measured`` are as in
    ``work.FragmentMerged``; ``missing`` has likewise what did not reach the relay, or what it could
    not read. ``number`` is that of the request."""

    t: Count
    fragment: Count
    number: Count
    names: Names
    lengths: Annotated[tuple[Finite, ...], Meta(max_length=65_536)] = ()
    refused: Annotated[tuple[tuple[Name, Reason], ...], Meta(max_length=4096)] = ()
    measured: Annotated[tuple[Measured, ...], Meta(max_length=4096)] = ()
    form: Format = "float32"
    missing: Annotated[tuple[tuple[Name, Reason], ...], Meta(max_length=4096)] = ()


class Spread(Body, frozen=True):
    """The syncer asks a relay to send the learner ``to`` fragments that the relay holds: of these
    numbers, in these versions or newer ones. ``spents`` are as in ``GlobalFragment``."""

    to: Name
    fragments: Counts
    versions: Versions
    spents: Versions | UnsetType = UNSET


class RelayReport(Body, frozen=True):
    """A relay's report to a syncer: per fragment the version that it holds, -1 for none, and its
    linked learners, each with a number that is another one after each time that it was lost."""

    versions: Versions
    learners: dict[Name, Count]


class Roster(Body, frozen=True):
    """The syncer's announcement of departed incarnations: those of an actor below
    ``floors[actor]`` will send nothing more. ``epoch`` counts the changes of the set of members."""

    epoch: Count
    floors: dict[Name, Count]


class Resume(Body, frozen=True):
    """The syncer's instruction to a learner before its first step: ``batches`` of its shard have
    been used, up to position ``cursor``, and ``donor`` has state for it. Without a donor it starts
    from the global fragments, which are being sent."""

    batches: Count
    donor: Annotated[str, Meta(max_length=128)]
    cursor: Cursor = b""


class DataShards(Body, frozen=True):
    """The lead's instruction to a learner in a job with ``job.shards``: from the next step boundary
    on it draws from these data shards and from no other, in turn. ``number`` grows; the newest
    counts. What the learner has said of shards that it gave back up to ``settled`` is known."""

    number: Count
    places: Places
    settled: Count = 0


class StateWanted(Body, frozen=True):
    """A request for piece ``piece`` of a state. Sent to a donor, ``who`` is the learner that asks.

    A donor copies its state once for each learner. ``copy`` is the step after which it did so, if
    the learner has pieces of that copy; 0 if it has none.
    """

    who: Name
    copy: Count
    piece: Count


class StatePiece(Body, frozen=True):
    """Piece ``piece`` of ``pieces`` of a learner's parameters and optimizer state after its step
    ``copy``, as payload; ``versions`` are the fragment versions that it held then. ``who`` is the
    receiver, or in the message to that one, the donor. 0 ``pieces`` means that this task's state
    cannot be copied."""

    who: Name
    copy: Count
    piece: Count
    pieces: Count
    versions: Versions


class StateRefused(Body, frozen=True):
    """The state of ``who`` is not usable; requests another donor, or the global fragments."""

    who: Name
    reason: Reason


class Close(Body, frozen=True):
    """The leading shard tells another one to launch no more syncs and to send its fragments. If it
    was asked to ``hurry``, its syncs in flight do not wait for answers until their deadlines."""

    reason: Reason
    hurry: bool = False


class ShardReport(Body, frozen=True):
    """A shard's periodic report to the leading shard: the number of its merges, and per fragment
    its version (-1 for fragments of other shards). Once ``over``, these versions are being sent."""

    merges: Count
    versions: Versions
    over: bool


class Stop(Body, frozen=True):
    """The job has ended at global step ``t``; finish the current step and leave."""

    t: Count
    reason: Reason


JobBody = (
    ActorBody
    | Progress
    | Pull
    | Contribution
    | GlobalFragment
    | Roster
    | Resume
    | DataShards
    | StateWanted
    | StatePiece
    | StateRefused
    | Close
    | ShardReport
    | SumWanted
    | ContributionSum
    | Spread
    | RelayReport
    | Stop
)
"""The union of all messages in a job; the codec is made for it."""
