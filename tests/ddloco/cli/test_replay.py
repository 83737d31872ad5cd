"""What a replay prints before and while it runs."""

import io
from itertools import product

from rich.console import Console

from ddloco.cli.replay import _Differences, _Lines
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


def test_what_differs_for_several_actors_is_printed_once():
    """The others name the actor whose differences they share; what only they have is printed."""
    out, jax, code = io.StringIO(), "jax was 1, is 2", "code was 3, is 4"
    shown = _Differences(Console(file=out, width=100))
    for actor, said in product(["learner-0.1", "syncer.1"], [jax, code]):
        shown.add(f"{actor}: {said}")
    shown.add("syncer.1: optax was 5, is 6")
    assert out.getvalue().splitlines() == [
        "differs from the recording: learner-0.1: jax was 1, is 2",
        "differs from the recording: learner-0.1: code was 3, is 4",
        "differs from the recording: syncer.1: as learner-0.1",
        "differs from the recording: syncer.1: optax was 5, is 6",
    ]
