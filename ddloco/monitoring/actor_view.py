"""The display of any actor's status: its links, its work, and its state field by field."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ddloco.monitoring.status_view import seconds
from ddloco.stage.actors.status import ActorStatus


def actor_picture(status: ActorStatus) -> Group:
    lines: list[str | Text] = [_header(status)]
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


def _header(status: ActorStatus) -> str:
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
