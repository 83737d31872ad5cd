"""The sequence check of one lane: messages are numbered, and a hole is noticed.

ZeroMQ loses messages silently, in order and with gaps, at a reconnect or a full queue. A gap is
never papered over: the link is given up and both sides shake hands again.
"""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What a sequence number says about a lane."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"


@dataclass(slots=True)
class LaneSequence:
    """Counts one lane, in one direction, since its handshake. ``expected`` is the next number."""

    expected: int = 0

    def check(self, seq: int) -> Verdict:
        """Judge an arrival; only the next one advances the count."""
        if seq == self.expected:
            self.expected += 1
            return Verdict.NEXT
        return Verdict.DUPLICATE if seq < self.expected else Verdict.GAP

    def take(self) -> int:
        """The number of the next message to be sent."""
        self.expected += 1
        return self.expected - 1
