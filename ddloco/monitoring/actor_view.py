"""The display of any actor's status: its links, its work, and its state field by field."""

from collections.abc import Sequence

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from ddloco.monitoring.status_view import seconds
from ddloco.stage.actors.status import ActorStatus


def actor_picture(status: ActorStatus) -> Group:
    """The whole display of one actor: where it is, its links, what it does, and its state."""
    lines = [_header(status)]
    if status.problem:
        lines.append(f"[red]{escape(status.problem)}[/red]")
    if status.error:
        lines.append(f"[red]last error: {escape(status.error)}[/red]")
    lines += [
        f"{escape(who)}: {count} messages refused" for who, count in status.refused_frames.items()
    ]
    work = ", ".join(status.work) or "none"
    timers = ", ".join(f"{name} in {seconds(due_s)}" for name, due_s in status.timers.items())
    lines.append(escape(f"work under way: {work}; timers: {timers or 'none'}"))
    state = Table("field", "value")
    for name, text in status.state.items():
        state.add_row(escape(name), escape(text))
    return Group(*lines, *_links(status), state)


def _header(status: ActorStatus) -> str:
    said = f"[bold]{escape(status.incarnation)}[/bold]"
    said += f" of {escape(status.name)}" if status.name else ""
    said += f" at {escape(status.address)}: {status.events:,} events, {status.arrays} arrays"
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
        table.add_row(escape(each.peer), str(each.heard), str(each.waiting))
    return [table]
