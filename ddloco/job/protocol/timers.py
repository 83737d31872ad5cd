"""The timers of learners, syncers and data-parallel training, besides those of every actor."""

from transport import Timer


class ReportDue(Timer, frozen=True):
    """A learner that still has no parameters reports again."""


class CopyUnused(Timer, frozen=True):
    """A learner releases the copy of its state, for which no peer has asked lately."""


STOP_S_MAX = 5.0
"""Seconds that a learner waits for the running step when its job is over: whatever its step waits
for, the job ends."""


class LeaveDeadline(Timer, frozen=True):
    """A learner that leaves waits no longer for its running step."""


class RelayLook(Timer, frozen=True):
    """A learner sends its relay a sign of life, by which it notices a restart of the relay."""


LearnerTimer = ReportDue | CopyUnused | LeaveDeadline | RelayLook


class LaunchDue(Timer, frozen=True):
    """Look again whether the sync that waits can be launched."""


class PullDeadline(Timer, frozen=True):
    """Wait no longer for the contributions to the sync of global step ``t``."""

    t: int


class DonorDeadline(Timer, frozen=True):
    """A learner that recovers its state waits no longer for its donor."""

    peer: str


class DataLook(Timer, frozen=True):
    """Look whether a learner is gone for good, whose data shards others then get."""


class StandstillDue(Timer, frozen=True):
    """Look whether anything was merged lately."""


class SnapshotDue(Timer, frozen=True):
    """Take the next periodic snapshot."""


class LastSnapshotDeadline(Timer, frozen=True):
    """The shutdown waits no longer for the last snapshot."""


class ShardReportDue(Timer, frozen=True):
    """A shard reports to the lead again."""


class SumsDeadline(Timer, frozen=True):
    """Wait no longer for the relays' sums for the sync of global step ``t``."""

    t: int


class ShardsDeadline(Timer, frozen=True):
    """The lead waits no longer for the other shards."""


class ShutdownDeadline(Timer, frozen=True):
    """The shutdown waits no longer for learners."""


SyncerTimer = (
    LaunchDue
    | PullDeadline
    | SumsDeadline
    | DonorDeadline
    | DataLook
    | StandstillDue
    | SnapshotDue
    | LastSnapshotDeadline
    | ShardReportDue
    | ShardsDeadline
    | ShutdownDeadline
)


class ProbeDue(Timer, frozen=True):
    """The coordinator of data-parallel training asks the replicas that it waits for."""


class PauseOver(Timer, frozen=True):
    """The pause after a change of the replicas is over."""


CoordinatorTimer = ProbeDue | PauseOver | ShutdownDeadline


class RelayReportDue(Timer, frozen=True):
    """A relay reports to the syncers again."""


class SumDeadline(Timer, frozen=True):
    """A relay waits no longer for the contributions to its next sum of a fragment."""

    fragment: int


RelayTimer = RelayReportDue | SumDeadline

JobTimer = LearnerTimer | SyncerTimer | CoordinatorTimer | RelayTimer
