"""How often something may be done: so many times at once, and then so many a second."""

from dataclasses import dataclass


@dataclass(slots=True)
class Allowance:
    """What is left of it; grows with time.

    Args:
        at_once: the most that can be left.
        per_s: by how much that grows in a second.
        left: what is left at the beginning.
        at: when that is.
    """

    at_once: float
    per_s: float
    left: float
    at: float

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Whether so much may be taken now; then less is left."""
        passed_s = max(now - self.at, 0.0)  # A run that goes on from a snapshot counts from 0.
        self.left = min(self.left + passed_s * self.per_s, self.at_once)
        self.at = now
        if amount > self.left:
            return False
        self.left -= amount
        return True
