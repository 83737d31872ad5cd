"""A data store that is away for half a second, once. The stream is asked again."""

import time

from model import Net, Rows


class Away(Rows):
    since = None

    def next(self):
        if self.n == 12 and (self.since is None or time.monotonic() < self.since + 0.4):
            self.since = self.since or time.monotonic()
            raise ConnectionError("Server Disconnected")
        return super().next()


class Task(Net):
    def __init__(self, who):
        self.who = who

    def batches(self, *, shard, shards, seed):
        return Away(shard, seed) if shard in self.who else Rows(shard, seed)


def task(who=(1,)):
    return Task(who)
