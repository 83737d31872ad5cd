"""Batches without a token now and then, as where all labels are masked. They have no weight."""

from model import Net, Rows


class Masked(Rows):
    def next(self):
        x, y = super().next()
        return (x[:0], y[:0]) if self.n % 9 == 5 else (x, y)


class Task(Net):
    def batches(self, *, shard, shards, seed):
        return Masked(shard, seed)

    def loss(self, params, batch):
        return super().loss(params, batch) if len(batch[0]) else 0.0 * params["out"].sum()


def task():
    return Task()
