"""What learners and syncer say to each other. Statements are absolute: the newest one wins."""

from typing import Annotated

from msgspec import Meta

from ddloco.actors.messages import SaidByAll
from transport import Body, Count, Name, Reason

Counts = Annotated[tuple[Count, ...], Meta(max_length=4096)]
Versions = Annotated[
    tuple[Annotated[int, Meta(ge=-1, le=2**63 - 1)], ...],
    Meta(max_length=4096),
]


CURSOR_BYTES_MAX = 4096
"""A cursor travels with every report, so it is no larger than a report of many fragments. A
stream with a larger state is drawn again from its beginning when a learner comes back."""

Cursor = Annotated[bytes, Meta(max_length=CURSOR_BYTES_MAX)]


class Progress(Body, frozen=True):
    """A learner's whole state of affairs, after every step (paper: the metadata tuple).

    Attributes:
        step: last finished inner step, 0 before the first.
        step_s: seconds that a step takes, smoothed; 0 before the first.
        versions: per fragment the global step whose merge it holds, -1 for none.
        steps: per fragment the steps trained since it received that version.
        tokens: per fragment the tokens trained on since then.
        batches: batches of its shard that this learner and its former selves have used up.
        cursor: where its stream and its schedules stand after these, as its worker says it
            (``data_stream``); empty before the first step.
    """

    step: Count
    step_s: Annotated[float, Meta(ge=0)]
    versions: Versions
    steps: Counts
    tokens: Counts
    batches: Count = 0
    cursor: Cursor = b""


class Pull(Body, frozen=True):
    """The syncer asks for a fragment for the sync of global step ``t``."""

    t: Count
    fragment: Count


class Contribution(Body, frozen=True):
    """The answer to a pull: the fragment as it was after ``step``, as payload, in wire dtype.

    ``base`` is the version that it was trained from; ``steps`` and ``tokens`` count since then.
    """

    t: Count
    fragment: Count
    base: Count
    step: Count
    steps: Count
    tokens: Count


class GlobalFragment(Body, frozen=True):
    """The newest version of a fragment, as payload, in wire dtype.

    With ``instead`` it replaces what was trained since the same version: that was refused.
    """

    fragment: Count
    version: Count
    instead: bool = False


class Roster(Body, frozen=True):
    """The syncer's word on who has gone for good: below ``floors[actor]`` no incarnation of an
    actor will be heard of again. ``epoch`` counts the changes of the set of members."""

    epoch: Count
    floors: dict[Name, Count]


class Resume(Body, frozen=True):
    """The syncer's word to a learner that has not begun: ``batches`` of its shard are used up,
    ``cursor`` is where that was, and ``donor`` has state for it; with none it begins from the
    globals, which are on their way."""

    batches: Count
    donor: Annotated[str, Meta(max_length=128)]
    cursor: Cursor = b""


class StateWanted(Body, frozen=True):
    """Piece ``piece`` of the state of ``who``, please; said to a donor, ``who`` is who asks.

    ``copy`` is the donor's step of the copy that the asker has pieces of, 0 for none.
    """

    who: Name
    copy: Count
    piece: Count


class StatePiece(Body, frozen=True):
    """Piece ``piece`` of ``pieces`` of a learner's parameters and optimizer state after its step
    ``copy``, as payload; ``versions`` are those that it held then. ``who`` is to have it, or, said
    to that one, whose it is. Without any pieces: this task's state cannot be copied."""

    who: Name
    copy: Count
    piece: Count
    pieces: Count
    versions: Versions


class StateRefused(Body, frozen=True):
    """The state of ``who`` cannot be trained from; another donor, please, or the globals."""

    who: Name
    reason: Reason


class Close(Body, frozen=True):
    """The lead's word to another shard: launch nothing more, and send what you own."""

    reason: Reason


class ShardReport(Body, frozen=True):
    """A shard's word to the lead, now and then: how many merges it has done, and per fragment its
    version (-1 for those of others). Once it is ``over``, these versions are on their way."""

    merges: Count
    versions: Versions
    over: bool


class Stop(Body, frozen=True):
    """The job is over at global step ``t``; finish the step at hand and leave."""

    t: Count
    reason: Reason


Said = (
    SaidByAll
    | Progress
    | Pull
    | Contribution
    | GlobalFragment
    | Roster
    | Resume
    | StateWanted
    | StatePiece
    | StateRefused
    | Close
    | ShardReport
    | Stop
)
"""Everything that may travel in a job; the codec is made for this union."""
