"""A broken record at one place of one shard, for ever. That learner ends, and the others go on."""

import time
from pathlib import Path

from model import Net, Rows

ENDED = Path("run/tracebacks/learner-1.3.txt")
"""Is there once it has failed three times; the others take their time until then."""


class Broken(Rows):
    def next(self):
        if self.n == self.at:
            raise ValueError("record 12 is damaged")
        if self.waits and self.n >= 20 and not ENDED.exists():
            time.sleep(0.25)
        return super().next()


class Task(Net):
    def __init__(self, who, at):
        self.who, self.at = who, at

    def batches(self, *, shard, shards, seed):
        rows = Broken(shard, seed)
        rows.at = self.at if shard in self.who else -1
        rows.waits = self.who == [1] and self.at and shard != 1
        return rows


def task(who=(1,), at=12):
    return Task(list(who), at)
