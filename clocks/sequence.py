"""The sequence check of one lane, which detects missing messages by their numbers.

ZeroMQ can lose messages silently when it reconnects or a queue is full. After a gap the link is
given up and both sides shake hands again; there is no attempt to repair it.
"""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """The result of checking a sequence number."""

    NEXT = "next"
    DUPLICATE = "duplicate"
    GAP = "gap"


@dataclass(slots=True)
class LaneSequence:
    """Counts one direction of one lane since its handshake. ``expected`` is the next number."""

    expected: int = 0

    def check(self, seq: int) -> Verdict:
        """Check an arrival's number; only the expected number advances the count."""
        if seq == self.expected:
            self.expected += 1
            return Verdict.NEXT
        return Verdict.DUPLICATE if seq < self.expected else Verdict.GAP

    def take(self) -> int:
        """The number for the next message to be sent."""
        self.expected += 1
        return self.expected - 1
