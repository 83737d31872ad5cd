"""A replay without a terminal says now and then how far it is."""

import io

from rich.console import Console

from ddloco.cli.replay import _Lines
from ddloco.monitoring.live_display import PLAIN_LINE_S


def test_a_line_now_and_then():
    """Not for every event, and not beside the bar that a terminal shows."""
    for terminal, said in ((False, "replayed 1,500 of 2,000 events\n"), (True, "")):
        file = io.StringIO()
        lines = _Lines(Console(file=file, force_terminal=terminal))
        lines.total = 2000
        lines.at(1)
        lines._said_at -= PLAIN_LINE_S
        lines.at(1500)
        lines.at(1501)
        assert file.getvalue() == said
