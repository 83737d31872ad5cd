"""The status of a syncer. This module reads the machine and changes nothing."""

from collections.abc import Sequence

from msgspec.structs import asdict

from ddloco.job.config import Job
from ddloco.job.protocol.status import (
    MemberStatus,
    Numbers,
    RecoveringMember,
    SyncerStatus,
    SyncInFlight,
    WaitingSync,
)
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.machines.syncer.accounts import plausible
from ddloco.machines.syncer.members import Member
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.pacing import NextSync
from ddloco.machines.syncer.rounds import Rounds
from ddloco.machines.syncer.syncs import Sync


def status_of(
    at: float,
    rounds: Rounds | None,
    job: Job,
    *,
    recovering: tuple[RecoveringMember, ...],
    standstill: str,
    numbers: Numbers,
) -> SyncerStatus:
    if rounds is None:
        return SyncerStatus(**asdict(numbers), t=0, merges=0, taking_part=0, averaged=0)
    waiting, syncs, last = rounds.waiting, rounds.syncs, rounds.seen
    membership, parts = rounds.membership, rounds.globals
    drawers = membership.data.drawers()
    return SyncerStatus(
        **asdict(numbers),
        t=rounds.schedule.t,
        merges=rounds.merges,
        taking_part=last.get("taking_part", 0),
        averaged=last.get("averaged", 0),
        versions=tuple(parts.versions),
        waiting=_waiting(at, waiting, rounds, job) if waiting is not None else None,
        in_flight=tuple(_in_flight(at, each) for _, each in sorted(syncs.items())),
        members=tuple(
            member_status(at, each, membership, parts.versions, drawers.get(each.incarnation, ()))
            for each in membership.members.values()
        ),
        refused=dict(sorted(membership.refused.items())),
        disregarded=membership.accounts.disregarded(rounds.merges),
        recovering=recovering,
        standstill=standstill,
        relays={peer: tuple(each.learners) for peer, each in rounds.sites.relays.items()},
    )


def _waiting(at: float, waiting: NextSync, rounds: Rounds, job: Job) -> WaitingSync:
    """What the next sync waits for, since when and until when; None if the end is unknown."""
    membership, parts = rounds.membership, rounds.globals
    members = membership.members.values()
    absent = {
        each.incarnation: said
        for each in members
        if (said := rounds.absence(job, each, waiting.t, waiting.fragment)) is not None
    }
    able = membership.able(waiting.fragment, parts.oldest(waiting.fragment))
    missing = [each for each in members if each not in able]
    if job.sync.blocking:
        missing = [each for each in members if each.incarnation in absent]
        reason = f"a quorum of its round: {len(members) - len(missing)} of {job.sync.quorum} there"
        until = None
    elif waiting.quorum_at is None:
        reason, until = f"a quorum: {len(able)} there", None
    elif waiting.floor_at is None:
        # Steps are counted: how long the next ones take is not known.
        reason, until = f"the launch floor: {waiting.steps} steps of the median learner", None
        missing = [each for each in missing if each.ahead < waiting.steps]
    else:
        graced = waiting.quorum_at + waiting.grace_s
        missing = [each for each in missing if membership.worth_waiting(each, at, graced)]
        reason, until = "the grace window", graced - at
    return WaitingSync(
        t=waiting.t,
        fragment=waiting.fragment,
        reason=reason,
        missing=tuple(each.incarnation for each in missing),
        since_s=at - waiting.since,
        until_s=until,
        absent=absent,
    )


def _in_flight(at: float, sync: Sync) -> SyncInFlight:
    return SyncInFlight(
        t=sync.t,
        fragment=sync.fragment,
        pulled=tuple(sync.pulled),
        arrived=tuple(sorted(sync.parts, key=str.encode)),
        since_s=at - sync.launched_at,
        until_s=max(sync.deadline - at, 0.0),
        merging=sync.work > 0,
        sums_of=tuple(sync.sums_awaited),
    )


def member_status(
    at: float,
    each: Member,
    membership: Membership,
    versions: Sequence[int],
    data_shards: Sequence[int] = (),
) -> MemberStatus:
    progress = each.progress
    held = progress.versions if progress is not None else (-1,) * len(versions)
    last = progress.last if progress is not None else None
    spent = plausible(progress.spent) if progress is not None else TimeSpent()
    return MemberStatus(
        learner=each.incarnation,
        step=progress.step if progress is not None else 0,
        step_s=progress.step_s if progress is not None else 0.0,
        heard_s=at - each.heard_at,
        silent=membership.silent(at, each),
        fresh=each.fresh,
        versions_behind=sum(a < b for a, b in zip(held, versions, strict=True)),
        refused=membership.refused.get(each.incarnation, 0),
        refused_for=membership.reasons.get(each.incarnation, ""),
        loss=last.loss if last is not None else None,
        tokens=progress.trained if progress is not None else None,
        tokens_per_s=each.tokens_per_s,
        metrics=last.metrics if last is not None else {},
        computing_s=spent.computing,
        data_s=spent.data,
        stopped_s=spent.stopped,
        data_shards=tuple(data_shards),
        corrupt=progress.corrupt if progress is not None else 0,
        busy=progress.busy if progress is not None else "",
    )
