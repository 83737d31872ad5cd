"""What a syncer says of itself, as typed data and as people read it.

Times are seconds: ``since_s`` ago, ``until_s`` from now.
"""

from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Group
from rich.markup import escape
from rich.table import Table


class Waiting(Struct, frozen=True):
    """Why the next sync has not been launched, and whose report is missing."""

    t: int
    fragment: int
    reason: str = msgspec.field(name="for")
    missing: tuple[str, ...] = ()
    since_s: float = 0.0
    until_s: float | None = None
    absent: dict[str, str] = {}
    """Learners that do not count for its quorum, with the reason."""


class InFlight(Struct, frozen=True):
    """A sync under way: who was asked for the fragment, who has answered."""

    t: int
    fragment: int
    pulled: tuple[str, ...] = ()
    arrived: tuple[str, ...] = ()
    since_s: float = 0.0
    until_s: float | None = None
    merging: bool = False


class MemberStatus(Struct, frozen=True):
    """One learner as its syncer sees it; ``heard_s`` ago it was heard last."""

    learner: str
    step: int = 0
    step_s: float | None = None
    heard_s: float | None = None
    silent: bool = False
    fresh: bool = False
    versions_behind: int = 0
    refused: int = 0
    refused_for: str = ""
    """Why its last refused contribution was."""

    @property
    def state(self) -> str:
        """In words: silent, or whether its newest report is unused; how many newest versions of
        fragments it does not show yet, which for a step or two is one or more."""
        said = "silent" if self.silent else "fresh" if self.fresh else "reported"
        return f"{said}, {self.versions_behind} behind" if self.versions_behind else said


class Recovering(Struct, frozen=True):
    """A learner that has come back and takes a peer's state."""

    learner: str
    donor: str
    since_s: float
    until_s: float


class Status(Struct, frozen=True):
    """A whole status. What a machine does not say (an averager says little) is left empty."""

    address: str = ""
    name: str = ""
    job: str = ""
    incarnation: str = ""
    uptime_s: float = 0.0
    steps: int = 0
    t: int | None = None
    merges: int | None = None
    quorum: int | None = None
    goodput: float | None = None
    live: int | None = None
    taking_part: int | None = None
    averaged: int | None = None
    waiting: Waiting | None = None
    standstill: str = ""
    in_flight: tuple[InFlight, ...] = ()
    members: tuple[MemberStatus, ...] = ()
    recovering: tuple[Recovering, ...] = ()
    refused_frames: dict[str, int] = {}
    tape_bytes: int | None = None
    events: int = 0
    problem: str = ""


def status_from(plain: dict[str, Any]) -> Status:
    """Plain data as a status; fields that this version does not know are let be.

    Raises:
        msgspec.ValidationError: a field is of a wrong type.
    """
    return msgspec.convert(plain, Status)


def picture(status: Status) -> Group:
    """Everything: a line on the job, a table of members, syncs under way, who waits for whom."""
    lines = [header(status), counts(status)]
    if status.standstill:
        lines.append(f"[red]{escape(status.standstill)}[/red]")
    if status.problem:
        lines.append(f"[red]{escape(status.problem)}[/red]")
    table = [members(status)] if status.members else []
    syncs = [escape(in_words(sync)) for sync in status.in_flight]
    waits = [escape(line) for line in waits_in_words(status.waiting)] if status.waiting else []
    doubts = [
        escape(f"{each.learner}: {each.refused} refused, the last: {each.refused_for}")
        for each in status.members
        if each.refused_for
    ]
    refused = [
        f"{escape(who)}: {count} messages refused" for who, count in status.refused_frames.items()
    ]
    returns = [
        f"{escape(each.learner)}: waits for the state of {escape(each.donor)}, since "
        f"{seconds(each.since_s)}, {_until(each.until_s)}"
        for each in status.recovering
    ]
    return Group(*lines, *table, *syncs, *waits, *returns, *doubts, *refused)


def header(status: Status) -> str:
    """Job, progress and the tape, on one line."""
    said = [f"[bold]{escape(status.name or status.job)}[/bold] at {escape(status.address)}"]
    if status.t is not None:
        said.append(f"global step {status.t}/{status.steps}")
    if status.merges is not None:
        said.append(f"{status.merges} merges")
    if status.quorum is not None:
        said.append(f"quorum {status.quorum}")
    goodput = f"{status.goodput:.1%}" if status.goodput is not None else "-"
    said += [f"goodput {goodput}", f"up {seconds(status.uptime_s)}"]
    return "  ".join(said)


def counts(status: Status) -> str:
    """Learners live, taking part, averaged into the newest merge; what is on the tape."""
    numbers = (status.live, status.taking_part, status.averaged)
    live, part, averaged = ("-" if number is None else number for number in numbers)
    said = f"learners: {live} live / {part} taking part / {averaged} averaged"
    tape = f"{status.tape_bytes / 2**20:.1f} MiB" if status.tape_bytes is not None else "no"
    return f"{said}  {escape(status.incarnation)}: {status.events} events, {tape} tape"


def members(status: Status) -> Table:
    """A row for each learner."""
    table = Table("learner", "step", "step time", "last contact", "state", "refused")
    for each in status.members:
        heard = f"{seconds(each.heard_s)} ago" if each.heard_s is not None else "-"
        step_s = seconds(each.step_s) if each.step_s is not None else "-"
        row = (each.learner, str(each.step), step_s, heard, each.state, str(each.refused))
        table.add_row(*map(escape, row), style="yellow" if each.silent else None)
    return table


def in_words(sync: InFlight) -> str:
    """What a sync under way waits for."""
    what = f"global step {sync.t}, fragment {sync.fragment}"
    since = f"since {seconds(sync.since_s)}"
    if sync.merging:
        return f"{what}: merging {len(sync.arrived)} contributions, {since}"
    late = [name for name in sync.pulled if name not in sync.arrived]
    answered = f"{len(sync.arrived)} of {len(sync.pulled)} have answered"
    return f"{what}: {answered}, waits for {_names(late)}, {since}, {_until(sync.until_s)}"


def waits_in_words(waiting: Waiting) -> list[str]:
    """The next sync on one line, and a line for each learner that does not count for it."""
    named = [f"  {who} does not count: {why}" for who, why in waiting.absent.items()]
    more = [f"  and {len(named) - NAMES_MAX} more"] if len(named) > NAMES_MAX else []
    return [waiting_in_words(waiting), *named[:NAMES_MAX], *more]


def waiting_in_words(waiting: Waiting) -> str:
    """What the next sync waits for before it is launched, since when, until when."""
    what = f"global step {waiting.t}, fragment {waiting.fragment}: waits for {waiting.reason}"
    missing = f" ({_names(waiting.missing)} missing)" if waiting.missing else ""
    return f"{what}{missing}, since {seconds(waiting.since_s)}, {_until(waiting.until_s)}"


NAMES_MAX = 8
"""Names on one line; of a large job nobody reads them all."""


def _names(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more if names else "nobody"


def _until(until_s: float | None) -> str:
    return "however long it takes" if until_s is None else f"for {seconds(until_s)} more"


def seconds(duration_s: float) -> str:
    """A duration as people say it: 12 ms, 3.4 s, 5 min 2 s, 2 h 3 min."""
    if duration_s < 1:
        return f"{max(duration_s, 0.0) * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, rest = divmod(int(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
