"""Sequences that become 64 times as long while training: a curriculum. All learners go on."""

from model import Net, Rows


class Growing(Rows):
    def next(self):
        self.rows = 512 if self.n >= 24 else 8
        return super().next()


class Task(Net):
    def batches(self, *, shard, shards, seed):
        return Growing(shard, seed)


def task():
    return Task()
