"""What a run would have come to without some learners, or with other outer settings from a step on.
A learner that is left out keeps its place in the merges, with weight zero, so that the decisions of
all machines stay those of the schedule. The change is a fact in the headers of the new run's tapes,
so that the new run replays as well."""

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from clocks import actor_of
from ddloco.job.config import Job, Outer
from ddloco.job.protocol.work import MergeFragment, SumContributions
from ddloco.stage.actors.effects import Work
from ddloco.stage.files.toml import ConfigError

WHAT_IF = "what if"
"""The fact in the headers of a run whose merges were changed."""


class WhatIf(Struct, frozen=True):
    """A change of merges from global step ``since`` on; before that the outer settings are
    ``before``."""

    since: int
    without: tuple[str, ...]
    before: Outer

    @property
    def said(self) -> str:
        left_out = f", without {', '.join(self.without)}" if self.without else ""
        return f"from global step {self.since} on{left_out}"

    def outer_at(self, t: int, now: Outer) -> Outer:
        return self.before if t < self.since else now

    def changed(self, work: Work) -> Work:
        if not isinstance(work, MergeFragment | SumContributions):
            return work
        if work.t < self.since or not self.without:
            return work
        shares = tuple(
            replace(share, weight=0.0) if actor_of(share.name) in self.without else share
            for share in work.shares
        )
        merges = isinstance(work, MergeFragment)
        if merges and not any(share.weight for share in shares):
            names = ", ".join(dict.fromkeys(actor_of(share.name) for share in work.shares))
            raise ConfigError(
                f"--without: the merge of global step {work.t} has only contributions of {names}; "
                "leave out others, or begin later with --since"
            )
        return replace(work, shares=shares)


def what_if(job: Job, schedule: Job, without: Collection[str], since: int | None) -> WhatIf | None:
    """Check what a user wants to change of a schedule's merges, from ``since`` on or all; None if
    nothing. ``ConfigError`` if there is no such learner or step."""
    names = schedule.learner_names()
    for name in without:
        if name not in names:
            raise ConfigError(
                f"--without {name}: no such learner; the schedule has {names[0]} to {names[-1]}"
            )
    if since is not None and not 1 <= since <= schedule.job.steps:
        raise ConfigError(f"--since {since}: want a global step from 1 to {schedule.job.steps}")
    if not without and since is None:
        return None
    then, now = schedule.outer.optimizer, job.outer.optimizer
    if since is not None and then != now:
        raise ConfigError(
            f'--since {since}: the schedule has outer.optimizer = "{then}" before that step, this '
            f'job has "{now}", which keeps another state; leave out --since, or set it as it was'
        )
    before = schedule.outer if since is not None else job.outer
    return WhatIf(since or 0, tuple(sorted(set(without))), before)


def fact_of(change: WhatIf) -> str:
    return msgspec.json.encode(change).decode()


def change_of(facts: Mapping[str, str]) -> WhatIf | None:
    """Return the change that a tape's facts tell of; None if they tell of none."""
    said = facts.get(WHAT_IF)
    if said is None:
        return None
    try:
        return msgspec.json.decode(said, type=WhatIf)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"the tape's fact {WHAT_IF!r}: {error}") from None
