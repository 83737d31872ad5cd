"""A live job under up to 100,000 messages that no peer may send: `tests/hosts/fuzz.py`, measured.

Divided: how many times larger the syncer is at the end than after the first fifth, by the same of a
syncer whose job runs beside it and that is not fuzzed, since a job grows a little by itself; 1 is
what it should be, and above 1.1 the line says that memory is not flat; after too few messages it
judges nothing. What is resident now and then was larger in between, so the peak is told as well.
The job has keys; two learners train meanwhile, and their merges are counted. The fuzzer shares the
machine with both jobs, so the messages a second say what all of them do together.
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.hosts.cluster import SYNCER
from tests.hosts.fuzz import fuzz, start

MESSAGES, SECONDS_MAX = 100_000, 100.0
"""A slow machine throws fewer, and the line says how many; after a fifth of them, or of the time,
sizes are looked at first."""

MESSAGES_JUDGED = 10_000
"""With fewer after that nothing is judged: what grows by a kilobyte each would not be noticed."""

RATIO_MAX = 1.1
"""Of memory that is flat. A queue that is read in a burst, and pages between what is in use, come
to a few MiB of some 65; a kilobyte kept of each of 10,000 messages would make it 1.15."""

LEARNERS = ("learner-0", "learner-1")


def measure(quick: bool) -> dict[str, Any]:
    """The fuzzer's own figures, and the two syncers' growth."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        (hosts, cluster), (others, alone) = (
            start(_made(there / each)) for each in ("fuzzed", "alone")
        )
        with hosts, others:
            for each in (cluster, alone):
                each.start(SYNCER, *LEARNERS)
            for each in (cluster, alone):
                each.wait_for([*LEARNERS])
            figures = fuzz(cluster, 2_000 if quick else MESSAGES, 0, SECONDS_MAX, alone)
            cluster.wait_for([*LEARNERS], len(cluster.merges()))
            figures["exits"] = cluster.stop()
            alone.stop()
    figures["refused"] = sum(figures.pop("refused_frames").values())
    figures["ratio"] = _times(figures, "") / _times(figures, "alone_")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words, and whether memory is flat."""
    times = "{:.3f} and {:.3f} times".format(_times(figures, ""), _times(figures, "alone_"))
    flat = "flat" if figures["ratio"] <= RATIO_MAX else "NOT flat"
    if flat == "flat" and figures["messages_later"] < MESSAGES_JUDGED:
        flat = f"too few messages to call it flat, below {MESSAGES_JUDGED}"
    return [
        "{ratio:.3f} times the growth of a syncer left alone: {flat}, the limit is {limit}; "
        "{times} the memory after a fifth, {resident_mib:.1f} MiB ({grown_mib:+.1f}, peak "
        "{peak_mib:.1f}) and {alone_resident_mib:.1f} ({alone_grown_mib:+.1f}); {messages} "
        "messages at {messages_per_s}/s, {refused} refused, {merges} merges meanwhile, {sockets} "
        "sockets at the end".format(**figures, flat=flat, limit=RATIO_MAX, times=times)
    ]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _times(figures: dict[str, Any], whose: str) -> float:
    """How many times larger a syncer is than after the first fifth."""
    resident = figures[f"{whose}resident_mib"]
    return resident / (resident - figures[f"{whose}grown_mib"])
