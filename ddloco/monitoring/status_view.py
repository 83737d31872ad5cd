"""The display of a status: of a syncer, or of any other actor, which shows its state."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ddloco.job.protocol.status import MemberStatus, Numbers, Status, SyncInFlight, WaitingSync
from ddloco.stage.actors.status import ActorStatus


def picture(status: Status) -> Group:
    lines: list[str | Text] = [
        header(status),
        counts(status),
        f"learners' time: {time_in_words(status)}",
    ]
    if interval := interval_in_words(status, status.interval):
        lines.append(interval)
    if status.standstill:
        lines.append(Text(status.standstill, "red"))
    if status.problem:
        lines.append(Text(status.problem, "red"))
    shown = first_to_look_at(status.members)
    lines += [Text(each, "red") for each in apart(status)]
    table: list[Table | str] = [members(shown)] if shown else []
    if len(shown) < len(status.members):
        table.append(f"and {len(status.members) - len(shown)} more learners; --json shows all")
    relays = [
        f"{relay}: reaches {_names(learners) if learners else 'no learner'}"
        for relay, learners in status.relays.items()
    ]
    return Group(*lines, *table, *under_way(status), *relays, *doubts(status))


def apart(status: Status) -> list[str]:
    """Whose work is of no use to the job, or who differs from others, of those that are linked."""
    linked = [each.learner for each in status.members]
    differ = [f"{who}: {said}" for who, said in status.differs.items() if who in linked]
    return [*(f"{who} {said}" for who, said in status.disregarded.items()), *differ]


def under_way(status: Status) -> list[str]:
    """The syncs that have begun, what the next one waits for, and who takes over a state."""
    syncs = [sync_in_words(sync) for sync in status.in_flight]
    waits = waits_in_words(status.waiting) if status.waiting else []
    returns = [
        f"{each.learner}: waits for the state of {each.donor}, since "
        f"{seconds(each.since_s)}, {_until(each.until_s)}"
        for each in status.recovering
    ]
    return [*syncs, *waits, *returns]


def doubts(status: Status) -> list[str]:
    """Who was stopped in its steps, and what was refused of whom."""
    turned = [
        f"{each.learner}: {each.refused} refused, the last: {each.refused_for}"
        for each in status.members
        if each.refused_for
    ]
    stops = [
        f"{each.learner}: was stopped for {seconds(each.stopped_s)} in its steps"
        for each in status.members
        if each.stopped_s
    ]
    refused = [f"{who}: {count} messages refused" for who, count in status.refused_frames.items()]
    return [*stops, *turned, *refused]


def header(status: Status) -> str:
    said = [f"{status.name or status.job} at {status.address}"]
    if status.t is not None:
        ends = f"/{status.steps}" if status.tokens is None else ""
        said.append(f"global step {min(status.t, status.steps or status.t)}{ends}")
    if status.tokens is not None:
        said.append(f"{status.merged_tokens or 0:,}/{status.tokens:,} tokens merged")
    if status.merges is not None:
        said.append(f"{status.merges:,} merges")
    if status.quorum is not None:
        said.append(f"quorum {status.quorum}")
    said += [f"goodput {goodput_in_words(status)}", f"up {seconds(status.uptime_s)}"]
    return "  ".join(said)


def counts(status: Status) -> str:
    numbers = (status.live, status.taking_part, status.averaged)
    live, part, averaged = ("-" if number is None else number for number in numbers)
    said = f"learners: {live} live / {part} taking part / {averaged} averaged"
    tape = f"{status.tape_bytes / 2**20:.1f} MiB" if status.tape_bytes is not None else "no"
    lines = f"{said}  {status.incarnation}: {status.events:,} events, {tape} tape"
    if status.sent_bytes is None or status.received_bytes is None:
        return lines
    sent, received = (f"{n / 2**20:.1f} MiB" for n in (status.sent_bytes, status.received_bytes))
    return f"{lines}, {sent} sent, {received} received"


INTERVAL_MOST = 2.0
"""How many times the inner steps that are asked for an interval may have before it is a warning."""


def interval_in_words(numbers: Numbers, asked: int | None) -> str:
    """How many inner steps an interval really had, beside how many were ``asked``; empty if it is
    not known."""
    had = numbers.interval_steps
    if had is None or not asked:
        return ""
    said = f"an interval of {asked} inner steps had {had:.1f}"
    if had <= INTERVAL_MOST * asked:
        return said
    return f"warning: {said}: the syncer does not keep up with such short steps"


def goodput_in_words(numbers: Numbers) -> str:
    """The goodput in percent, and since when it is counted if not since the job's start."""
    goodput = f"{numbers.goodput:.1%}" if numbers.goodput is not None else "-"
    return goodput + " since the syncer's restart" * numbers.restarted


def time_in_words(numbers: Numbers) -> str:
    """How the learners' time was spent, in percent."""
    seconds_of = {
        "computing": numbers.computing_s,
        "compiling": numbers.compiling_s,
        "waiting for data": numbers.data_s,
        "waiting for parameters": numbers.parameters_s,
        "stopped": numbers.stopped_s,
        "waiting for versions": numbers.versions_s,
        "away or between reports": numbers.away_s,
    }
    whole = sum(seconds_of.values())
    said = [f"{each / whole:.1%} {what}" for what, each in seconds_of.items() if each and whole]
    return ", ".join(said) or "unknown"


COLUMNS_MAX = 4
"""Metrics of the task that a table has columns for; ``--json`` shows all."""


ROWS_MAX = 64
"""Learners in a table. A table of a thousand takes a second to draw, and is too long to read."""


def first_to_look_at(members: Sequence[MemberStatus]) -> Sequence[MemberStatus]:
    """The learners of a table, in their order: of many, those that are silent, were refused, lack
    the most versions, or were not heard for longest."""
    if len(members) <= ROWS_MAX:
        return members
    most = sorted(
        members,
        key=lambda m: (not m.silent, not m.refused, -m.versions_behind, -(m.heard_s or 0.0)),
    )
    chosen = {each.learner for each in most[:ROWS_MAX]}
    return [each for each in members if each.learner in chosen]


def members(shown: Sequence[MemberStatus]) -> Table:
    names = list(dict.fromkeys(name for each in shown for name in each.metrics))
    numbers = ("loss", *names[:COLUMNS_MAX], "tokens/s")
    columns = ("learner", "step", "step time", *numbers, "last contact", "state")
    has_data = any(each.data_shards for each in shown)
    table = Table(*columns, "refused", *(("data shards",) if has_data else ()))
    for each in shown:
        heard = f"{seconds(each.heard_s)} ago" if each.heard_s is not None else "-"
        step_s = seconds(each.step_s) if each.step_s is not None else "-"
        values = (each.loss, *(each.metrics.get(name) for name in names[:COLUMNS_MAX]))
        found = [f"{value:.4g}" if value is not None else "-" for value in values]
        rate = f"{each.tokens_per_s:,.0f}" if each.tokens_per_s is not None else "-"
        row = (each.learner, str(each.step), step_s, *found, rate, heard, each.state)
        row = (*row, str(each.refused), *((ranges(each.data_shards),) if has_data else ()))
        table.add_row(*row, style="yellow" if each.silent else None)
    return table


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow each other as a range: 0-3, 7."""
    found: list[tuple[int, int]] = []
    for n in numbers:
        follows = bool(found) and found[-1][1] == n - 1
        found[-1:] = [(found[-1][0], n)] if follows else [*found[-1:], (n, n)]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found) or "-"


def sync_in_words(sync: SyncInFlight) -> str:
    what = f"global step {sync.t}, fragment {sync.fragment}"
    since = f"since {seconds(sync.since_s)}"
    if sync.sums_of:
        return f"{what}: waits for sums of {_names(sync.sums_of)}, {since}"
    if sync.merging:
        return f"{what}: merging {len(sync.arrived)} contributions, {since}"
    late = [name for name in sync.pulled if name not in sync.arrived]
    answered = f"{len(sync.arrived)} of {len(sync.pulled)} have answered"
    return f"{what}: {answered}, waits for {_names(late)}, {since}, {_until(sync.until_s)}"


def waits_in_words(waiting: WaitingSync) -> list[str]:
    named = [f"  {who} does not count: {why}" for who, why in waiting.absent.items()]
    more = [f"  and {len(named) - NAMES_MAX} more"] if len(named) > NAMES_MAX else []
    return [waiting_in_words(waiting), *named[:NAMES_MAX], *more]


def waiting_in_words(waiting: WaitingSync) -> str:
    what = f"global step {waiting.t}, fragment {waiting.fragment}: waits for {waiting.reason}"
    missing = f" ({_names(waiting.missing)} missing)" if waiting.missing else ""
    return f"{what}{missing}, since {seconds(waiting.since_s)}, {_until(waiting.until_s)}"


NAMES_MAX = 8
"""Names on one line; in a large job a full list is of no use."""


def _names(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more if names else "none"


def _until(until_s: float | None) -> str:
    return "however long it takes" if until_s is None else f"for {seconds(until_s)} more"


def seconds(duration_s: float) -> str:
    """A duration in readable form: 12 ms, 3.4 s, 5 min 2 s, 2 h 3 min."""
    if duration_s < 1:
        return f"{max(duration_s, 0.0) * 1000:.0f} ms"
    if duration_s < 60:
        return f"{duration_s:.1f} s"
    minutes, rest = divmod(int(duration_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def actor_picture(status: ActorStatus) -> Group:
    """The whole display of one actor: where it is, its links, what it does, and its state."""
    lines: list[str | Text] = [_place_of(status)]
    if status.problem:
        lines.append(Text(status.problem, "red"))
    if status.error:
        lines.append(Text(f"last error: {status.error}", "red"))
    lines += [f"{who}: {count} messages refused" for who, count in status.refused_frames.items()]
    work = ", ".join(status.work) or "none"
    timers = ", ".join(f"{name} in {seconds(due_s)}" for name, due_s in status.timers.items())
    lines.append(f"work under way: {work}; timers: {timers or 'none'}")
    state = Table("field", "value")
    for name, text in status.state.items():
        state.add_row(name, text)
    return Group(*lines, *_links(status), state)


def _place_of(status: ActorStatus) -> str:
    said = status.incarnation
    said += f" of {status.name}" if status.name else ""
    said += f" at {status.address}: {status.events:,} events, {status.arrays} arrays"
    said += f", up {seconds(status.uptime_s)}"
    said += f", {status.queue} events waiting" if status.queue is not None else ""
    if status.sent_bytes is None or status.received_bytes is None:
        return said
    sent, received = (f"{n / 2**20:.1f} MiB" for n in (status.sent_bytes, status.received_bytes))
    return f"{said}, {sent} sent, {received} received"


def _links(status: ActorStatus) -> Sequence[Table | str]:
    if not status.linked:
        return ["no links"]
    table = Table("linked with", "its newest event heard of", "messages waiting")
    for each in status.linked:
        table.add_row(each.peer, str(each.heard), str(each.waiting))
    return [table]
