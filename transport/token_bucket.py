"""A rate limit: a token bucket with a burst size and a refill rate."""

from msgspec import Struct


class TokenBucket(Struct, forbid_unknown_fields=True):
    """A token bucket.

    Args:
        at_once: capacity of the bucket, the largest burst.
        per_s: tokens added per second.
        left: tokens in the bucket at time ``at``.
        at: time of the last update, in seconds.
    """

    at_once: float
    per_s: float
    left: float
    at: float

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take ``amount`` tokens if the bucket holds that many; returns whether it did."""
        passed_s = max(now - self.at, 0.0)  # A resumed run restarts its clock, so now may be less.
        self.left = min(self.left + passed_s * self.per_s, self.at_once)
        self.at = now
        if amount > self.left:
            return False
        self.left -= amount
        return True


class Allowances(Struct, forbid_unknown_fields=True):
    """A token bucket for each actor, full at first.

    Args:
        at_once: capacity of each bucket.
        per_s: tokens added to each per second.
    """

    at_once: float
    per_s: float
    buckets: dict[str, TokenBucket] = {}

    def take(self, who: str, now: float, amount: float = 1.0) -> bool:
        """Take tokens from an actor's bucket if it holds that many; returns whether it did."""
        bucket = self.buckets.get(who)
        if bucket is None:
            bucket = TokenBucket(self.at_once, self.per_s, self.at_once, now)
            self.buckets[who] = bucket
        return bucket.take(now, amount)
