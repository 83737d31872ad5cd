"""An optimizer whose first state has the parameters themselves: optax.contrib.prodigy."""

import optax.contrib
from model import Net


class Task(Net):
    def optimizer(self):
        return optax.contrib.prodigy()


def task():
    return Task()
