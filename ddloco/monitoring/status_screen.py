"""Draws statuses on a terminal, or writes them to a file or a pipe."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Group
from rich.live import Live

from ddloco.job.protocol.status import StatusError, status_from
from ddloco.monitoring.status_view import actor_picture, picture
from ddloco.stage.actors.status import ActorStatus
from ddloco.stage.process.console import SafeConsole

Draw = Callable[[Mapping[int, dict[str, Any]]], dict[int, str]]
"""Draws a block for each status, in the order of their numbers; returns the problems of those that
cannot be drawn."""


@contextmanager
def open_screen(*, again: bool) -> Iterator[Draw]:
    console = SafeConsole()
    if again and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda told: _drawn(told, lambda blocks: live.update(blocks, refresh=True))
        return
    yield lambda told: _drawn(told, console.print)


def _picture_of(plain: dict[str, Any]) -> Group:
    if "state" not in plain:
        return picture(status_from(plain))
    return actor_picture(status_from(plain, ActorStatus))


def _drawn(told: Mapping[int, dict[str, Any]], write: Callable[[Group], None]) -> dict[int, str]:
    blocks: list[Any] = []
    problems: dict[int, str] = {}
    for index, plain in sorted(told.items()):
        try:
            blocks.append(_picture_of(plain))
        except StatusError as error:
            problems[index] = str(error)
    write(Group(*blocks))
    return problems
