"""The status of a job's actors, as machines report it and as people and programs read it.

A machine reports what it knows (``SyncerStatus``, ``LearnerStatus``). Its driver and its host add
the rest, and observers receive all of it as plain data (``Status``). Machines have no wall clock,
so every time is a duration in seconds: ``since_s`` in the past, ``until_s`` in the future.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct


class WaitingSync(Struct, frozen=True):
    """Why the next sync has not been launched, and which reports are missing."""

    t: int
    fragment: int
    reason: str = msgspec.field(name="for")
    missing: tuple[str, ...] = ()
    since_s: float = 0.0
    until_s: float | None = None
    """None if it is not known when the wait ends."""
    absent: dict[str, str] = {}
    """Learners that do not count for its quorum, with the reason."""


class SyncInFlight(Struct, frozen=True):
    """A sync in progress: which learners were asked for the fragment, which have answered, and
    which relays' sums it waits for."""

    t: int
    fragment: int
    pulled: tuple[str, ...] = ()
    arrived: tuple[str, ...] = ()
    since_s: float = 0.0
    until_s: float | None = None
    merging: bool = False
    sums_of: tuple[str, ...] = ()


class MemberStatus(Struct, frozen=True):
    """One learner as its syncer sees it; its last message arrived ``heard_s`` ago."""

    learner: str
    step: int = 0
    step_s: float | None = None
    heard_s: float | None = None
    silent: bool = False
    fresh: bool = False
    versions_behind: int = 0
    refused: int = 0
    refused_for: str = ""
    """Why its last refused contribution was refused."""
    loss: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    metrics: Mapping[str, float | None] = {}
    """The task's own metrics of its last step."""
    computing_s: float = 0.0
    data_s: float = 0.0
    stopped_s: float = 0.0
    """Seconds of this incarnation: in which it computed steps, waited for batches, was stopped."""
    data_shards: tuple[int, ...] = ()
    """With ``job.shards``, the data shards that it draws from."""
    corrupt: int = 0
    """How many of its steps had two results when they were run twice."""
    busy: str = ""
    """The call in which its worker has been for long, and for how long."""

    @property
    def state(self) -> str:
        """The state in words: silent, or whether its newest report is unused; how many newer
        versions of fragments it lacks, which is normal for a step or two; in which call its worker
        has been for long; and whether its machine computes wrongly."""
        said = "silent" if self.silent else "fresh" if self.fresh else "reported"
        said += f", {self.versions_behind} behind" if self.versions_behind else ""
        said += f", in {self.busy}" if self.busy else ""
        return f"{said}, {self.corrupt} steps corrupt" if self.corrupt else said


class RecoveringMember(Struct, frozen=True):
    """A learner that has returned and receives a peer's state."""

    learner: str
    donor: str
    since_s: float
    until_s: float


class ObserverStatus(Struct, frozen=True):
    """An observer of the actor.

    Attributes:
        lost: notices that it missed because it was too slow.
        away: notices that it has not acknowledged.
    """

    observer: str
    follows: bool = False
    lost: int = 0
    away: int = 0


class LearnerStatus(Struct, frozen=True, kw_only=True):
    """What a learner's machine reports.

    Attributes:
        step_s: the duration of a step, the median of the newest.
        running_s: how long the current step has run; None between steps.
        incoming: newer versions that it takes after the current step, by fragment.
        stopping: why it stops; empty while it trains.
    """

    step: int = 0
    step_s: float | None = None
    running_s: float | None = None
    versions: tuple[int, ...] = ()
    incoming: dict[str, int] = {}
    linked: tuple[str, ...] = ()
    stopping: str = ""


class Numbers(Struct, frozen=True, kw_only=True):
    """The numbers of a job, as ``machines.syncer.accounts`` counts them: of a status, and in the
    log with each merge and with the result.

    Attributes:
        goodput: the share of the learners' time, from when each first joined, that was spent
            computing finished steps; None before the first merge, 0 below the quorum.
        live: the connected learners.
        inner_steps: inner steps of all learners.
        trained_tokens: tokens that these were of.
        merged_tokens: tokens in merges, on average over the syncer's fragments.
        refusals: contributions that were refused; late ones are not among them.
        late: contributions that were not there when their sync was closed and merged.
        computing_s: seconds in which learners computed steps; summed over learners, as all below.
        compiling_s: compiled their first step, or a later one again.
        data_s: waited for batches.
        parameters_s: waited for parameters: learners for their first, replicas for those of each
            step.
        stopped_s: were stopped in a step: suspended, swapped out, or without a processor.
        versions_s: waited between two steps for a version, with ``sync.blocking``.
        away_s: the rest: they were gone, or starting, or in a step that is not finished.
        restarted: whether all this is since the syncer's restart only: an earlier incarnation of it
            has counted, too.
        interval_steps: the inner steps of the median learner between two syncs of a fragment, on
            average; ``sync.interval`` asks for them. None before the second sync of one.
    """

    goodput: float | None = None
    live: int | None = None
    inner_steps: int = 0
    trained_tokens: int = 0
    merged_tokens: int | None = None
    refusals: int = 0
    late: int = 0
    computing_s: float = 0.0
    compiling_s: float = 0.0
    data_s: float = 0.0
    parameters_s: float = 0.0
    stopped_s: float = 0.0
    versions_s: float = 0.0
    away_s: float = 0.0
    restarted: bool = False
    interval_steps: float | None = None


class SyncerStatus(Numbers, frozen=True, kw_only=True):
    """What a syncer's machine reports. What is not known stays None or empty.

    Attributes:
        merges: the merges of this incarnation.
        taking_part: the learners that were pulled for the newest merge.
        averaged: the learners whose contributions are in the newest merge.
        disregarded: learners whose work is of no use to the job, in words.
        recovering: the learners that receive a peer's state.
        standstill: why nothing has been merged for a long time; empty otherwise.
    """

    t: int | None = None
    merges: int | None = None
    taking_part: int | None = None
    averaged: int | None = None
    versions: tuple[int, ...] = ()
    waiting: WaitingSync | None = None
    in_flight: tuple[SyncInFlight, ...] = ()
    members: tuple[MemberStatus, ...] = ()
    refused: dict[str, int] = {}
    disregarded: dict[str, str] = {}
    recovering: tuple[RecoveringMember, ...] = ()
    standstill: str = ""
    relays: dict[str, tuple[str, ...]] = {}


class Status(SyncerStatus, frozen=True, kw_only=True):
    """A whole status, as observers of a syncer receive it.

    Attributes:
        address: the address that was asked.
        steps: the job's steps.
        tokens: the tokens after which the job ends, if it ends by tokens and not by steps.
        interval: the inner steps between two syncs of a fragment that the job asks for.
        tape_bytes: the size of the actor's tapes.
        differs: of incarnations that have come, in which flags, packages and sources they differ.
        problem: why there is no status.
    """

    address: str = ""
    name: str = ""
    steps: int = 0
    tokens: int | None = None
    lead: str = ""
    quorum: int | None = None
    interval: int | None = None
    tape_bytes: int | None = None
    differs: dict[str, str] = {}
    job: str = ""
    incarnation: str = ""
    uptime_s: float = 0.0
    events: int = 0
    refused_frames: dict[str, int] = {}
    sent_bytes: int | None = None
    received_bytes: int | None = None
    observers: tuple[ObserverStatus, ...] = ()
    problem: str = ""


class StatusError(ValueError):
    """Plain data is not a status; one line names the address and the field."""


S = TypeVar("S", bound=Struct)


def status_from(plain: dict[str, Any], kind: type[S] = Status) -> S:
    """Convert plain data to a status, by default a syncer's; unknown fields are ignored."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        address = plain.get("address", "")
        raise StatusError(f"{address}: not a status: {error}".removeprefix(": ")) from None
