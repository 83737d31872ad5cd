"""A parameter server that waits for no trainer: asynchronous SGD on a linear regression.

ddloco perform examples.parameter_server:program --dir runs/ps --set trainers=4
ddloco replay runs/ps
"""

from functools import partial

import numpy as np

from ddloco.stage import Array, Body, Program, UserActor, computation, star

FEATURES, BATCH, RATE = 1000, 64, 0.1
START, TRUTH = np.zeros(FEATURES), np.random.default_rng(0).standard_normal(FEATURES)


class Parameters(Body, frozen=True):
    """The server's newest parameters."""

    theta: Array


class Gradient(Body, frozen=True):
    """A trainer's gradient at the parameters that it had."""

    values: Array


@computation
def apply(theta: np.ndarray = START, *gradients: np.ndarray) -> np.ndarray:
    """Take one step against each gradient."""
    return theta - RATE * sum(gradients)


@computation
def differentiate(theta: np.ndarray, *, seed: list[int]) -> tuple[np.ndarray, float]:
    """Compute the gradient and the loss of one batch."""
    batch = np.random.default_rng(seed).standard_normal((BATCH, FEATURES))
    error = batch @ (theta - TRUTH)
    return batch.T @ error / BATCH / 20, float(error @ error / BATCH)


class Server(UserActor):
    """Applies the gradients that have arrived, one version after the other."""

    versions: int
    snapshot_every: int
    version: int = 0
    theta: Array | None = None
    gradients: dict[str, Array] = {}

    def joined(self, peer: str) -> None:
        if self.theta is not None:
            self.send(peer, Parameters(self.theta), key="parameters")

    def on_gradient(self, peer: str, message: Gradient) -> None:
        self.gradients[peer] = message.values

    def when_idle(self) -> None:
        if self.theta is None:
            self.call(apply, then=self.applied)
        elif self.gradients:
            waiting, self.gradients = self.gradients, {}
            self.call(apply, self.theta, *waiting.values(), then=self.applied)

    def applied(self, theta: Array) -> None:
        self.theta, self.version = theta, self.version + 1
        self.log("step", version=self.version)
        for peer in self.peers:
            self.joined(peer)
        if self.version == self.versions:
            self.end(f"{self.version} versions in {self.at:.1f} s")
        elif self.version % self.snapshot_every == 0:
            self.take_snapshot()


class Trainer(UserActor):
    """Computes gradients one after the other, each at the newest parameters."""

    shard: int
    step: int = 0
    newest: Array | None = None

    def on_parameters(self, peer: str, message: Parameters) -> None:
        self.newest = message.theta

    def when_idle(self) -> None:
        if self.newest is not None:
            theta, self.newest, self.step = self.newest, None, self.step + 1
            self.call(differentiate, theta, then=self.trained, seed=[self.shard, self.step])

    def trained(self, gradient: Array, loss: float) -> None:
        self.log("step", step=self.step, loss=loss)
        self.send("server", Gradient(gradient), key="gradient")


def program(trainers: int = 3, versions: int = 200, snapshot_every: int = 50) -> Program:
    """``--set trainers=4`` sets an argument."""
    server = partial(Server, versions=versions, snapshot_every=snapshot_every)
    return star("server", server, trainer=[partial(Trainer, shard=n) for n in range(trainers)])
