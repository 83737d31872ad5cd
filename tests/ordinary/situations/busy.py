"""One of its calls takes 65 s, which is long but well."""

import time

from model import Net, Rows

SLEEP_S = 65.0


class Sleeping(Rows):
    """Its fifth batch is long in coming."""

    def next(self):
        if self.n == 4:
            time.sleep(SLEEP_S)
        return super().next()


class Busy(Net):
    def __init__(self, call):
        self.call = call

    def batches(self, *, shard, shards, seed):
        return (Sleeping if self.call == "next" and shard == 1 else Rows)(shard, seed)

    def evaluate(self, params):
        if self.call == "evaluate":
            time.sleep(SLEEP_S)
        return super().evaluate(params)


def task(call):
    """Which call takes so long: ``next`` of one shard, or ``evaluate``."""
    return Busy(call)
