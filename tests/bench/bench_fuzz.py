"""A live job under 100,000 messages that nobody should say: `tests/hosts/fuzz.py`, measured.

Divided: the syncer's resident memory at the end, by that after the first fifth; 1 is what it should
be. The job has keys; two learners train meanwhile, and their merges are counted. The fuzzer shares
the machine with them, so the messages a second say what the two of them do together. Aim: 1.1.
"""

import tempfile
from pathlib import Path
from typing import Any

from tests.hosts.cluster import SYNCER
from tests.hosts.fuzz import fuzz, start

MESSAGES, SECONDS_MAX = 100_000, 160.0
"""A slow machine throws fewer, and the line says how many."""


def measure(quick: bool) -> dict[str, Any]:
    """The fuzzer's own figures."""
    with tempfile.TemporaryDirectory() as folder:
        hosts, cluster = start(Path(folder))
        with hosts:
            cluster.start(SYNCER, "learner-0", "learner-1")
            cluster.wait_for(["learner-0", "learner-1"])
            figures = fuzz(cluster, 2_000 if quick else MESSAGES, 0, SECONDS_MAX)
            cluster.wait_for(["learner-0", "learner-1"], len(cluster.merges()))
            figures["exits"] = cluster.stop()
    figures["refused"] = sum(figures.pop("refused_frames").values())
    figures["ratio"] = figures["resident_mib"] / (figures["resident_mib"] - figures["grown_mib"])
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    return [
        "{ratio:.3f} times the memory after a fifth (aim 1.1): {resident_mib:.1f} MiB resident, "
        "{grown_mib:+.1f}; {messages} messages at {messages_per_s}/s, {refused} refused, "
        "{merges} merges meanwhile".format(**figures)
    ]
