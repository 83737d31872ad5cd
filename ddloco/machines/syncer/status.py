"""The status of a syncer as plain data. This module reads the machine and changes nothing.

Machines have no wall clock, so every time is an age or a remaining wait, in seconds (``_s``).
"""

from collections.abc import Sequence
from typing import Any

from ddloco.machines.syncer.global_fragments import Globals, Sync
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.pacing import Waiting
from ddloco.machines.syncer.rounds import Rounds

NOT_FRESH = "has finished no step since the last launch"
"""Why a learner that may contribute does not count for a quorum (paper 3.3 b)."""


def tell(
    at: float,
    membership: Membership,
    parts: Globals,
    rounds: Rounds | None,
) -> dict[str, Any]:
    """Return the status of a syncer: its members, and its waiting and in-flight syncs."""
    waiting = rounds.waiting if rounds is not None else None
    syncs = rounds.syncs if rounds is not None else {}
    last = rounds.seen if rounds is not None else {}
    return {
        "t": rounds.schedule.t if rounds is not None else 0,
        "merges": rounds.merges if rounds is not None else 0,
        "taking_part": last.get("taking_part", 0),
        "averaged": last.get("averaged", 0),
        "versions": list(parts.versions),
        "waiting": _waits(at, waiting, parts, membership) if waiting is not None else None,
        "in_flight": [_under_way(at, each) for _, each in sorted(syncs.items())],
        "members": _members(at, membership, parts.versions),
        "live": len(membership.members),
        "goodput": _goodput(at, membership, rounds),
        "refused": dict(sorted(membership.refused.items())),
    }


def _waits(at: float, waiting: Waiting, parts: Globals, membership: Membership) -> dict[str, Any]:
    """What the next sync waits for, since when and until when; None if the end is unknown."""
    able = membership.able(waiting.fragment, parts.oldest(waiting.fragment))
    missing = [each for each in membership.members.values() if each not in able]
    if waiting.quorum_at is None:
        reason, until = f"a quorum: {len(able)} there", None
    else:
        # The sync waits for the longer of the two.
        until = waiting.quorum_at + waiting.grace_s
        late = [m for m in missing if m.due_at <= until and not membership.silent(at, m)]
        graced = until if late else waiting.quorum_at
        floored = waiting.floor_at >= graced
        reason = "the launch floor" if floored else "the grace window"
        until, missing = max(waiting.floor_at, graced) - at, [] if floored else late
    return {
        "t": waiting.t,
        "fragment": waiting.fragment,
        "for": reason,
        "missing": [each.incarnation for each in missing],
        "absent": _absent(waiting, parts, membership),
        "since_s": at - waiting.since,
        "until_s": until,
    }


def _absent(waiting: Waiting, parts: Globals, membership: Membership) -> dict[str, str]:
    """Who does not count for the quorum of the next sync, with the reason."""
    p, oldest = waiting.fragment, parts.oldest(waiting.fragment)
    reasons = {m.incarnation: membership.absence(m, p, oldest) for m in membership.members.values()}
    late = {m.incarnation: NOT_FRESH for m in membership.members.values() if not m.fresh}
    return {who: said for who, reason in reasons.items() if (said := reason or late.get(who))}


def _under_way(at: float, sync: Sync) -> dict[str, Any]:
    """A sync in flight: the learners pulled and answered, and the seconds until its deadline."""
    return {
        "t": sync.t,
        "fragment": sync.fragment,
        "pulled": list(sync.pulled),
        "arrived": sorted(sync.parts, key=str.encode),
        "since_s": at - sync.launched_at,
        "until_s": max(sync.deadline - at, 0.0),
        "merging": sync.work > 0,
    }


def _members(at: float, membership: Membership, versions: Sequence[int]) -> list[dict[str, Any]]:
    """The connected learners, sorted by name as bytes."""
    told: list[dict[str, Any]] = []
    for each in membership.members.values():
        held = each.progress.versions if each.progress is not None else (-1,) * len(versions)
        last = each.progress.last if each.progress is not None else None
        told.append(
            {
                "learner": each.incarnation,
                "step": each.progress.step if each.progress is not None else 0,
                "step_s": each.step_s,
                "heard_s": at - each.heard_at,
                "silent": membership.silent(at, each),
                "fresh": each.fresh,
                "versions_behind": sum(a < b for a, b in zip(held, versions, strict=True)),
                "refused": membership.refused.get(each.incarnation, 0),
                "refused_for": membership.reasons.get(each.incarnation, ""),
                "loss": last.loss if last is not None else None,
                "tokens": last.tokens if last is not None else None,
                "tokens_per_s": each.tokens_per_s,
                "metrics": last.metrics if last is not None else {},
            }
        )
    return told


def _goodput(at: float, membership: Membership, rounds: Rounds | None) -> float | None:
    """The share of the members' connected time spent in finished steps; None before any.

    A step counts with the learner's smoothed step time. Only merged steps are useful: before the
    first merge the share is unknown (None), and with fewer learners than the quorum it is 0.
    """
    if rounds is None or not rounds.merges:
        return None
    if len(membership.members) < rounds.quorum:
        return 0.0
    alive = sum(at - each.joined_at for each in membership.members.values())
    useful = sum(each.stepped * each.step_s for each in membership.members.values())
    return min(useful / alive, 1.0) if useful and alive else None
