"""A parameter server and its trainers, as two actors of one program.

    ddloco perform examples.parameter_server:program --dir runs/ps --set trainers=4
    ddloco replay runs/ps

Each trainer computes gradients of a linear regression at the newest parameters that it has. The
server applies the gradients that have arrived, without waiting for slow trainers. At intervals it
initiates a snapshot of all actors. `ddloco docs own-actors` says how actors are written.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ddloco.stage import Array, Body, Program, Role, UserActor, computation

Vector = NDArray[np.float64]
FEATURES, BATCH, RATE = 1000, 64, 0.1
TRUTH = np.random.default_rng(0).standard_normal(FEATURES)


class Parameters(Body, frozen=True):
    """The server's newest parameters."""

    version: int


class Gradient(Body, frozen=True):
    """A trainer's gradient at the parameters that it had."""


class Done(Body, frozen=True):
    """The server has made the last version."""


@computation
def apply(theta: Vector, *gradients: Vector) -> Vector:
    """Take one step against each gradient."""
    return theta - RATE * sum(gradients, np.zeros(FEATURES))


@computation
def initialize() -> Vector:
    """Make the initial parameters."""
    return np.zeros(FEATURES)


@computation
def differentiate(theta: Vector, *, seed: list[int]) -> tuple[Vector, float]:
    """Compute the gradient and the loss of one batch."""
    batch = np.random.default_rng(seed).standard_normal((BATCH, FEATURES))
    error = batch @ (theta - TRUTH)
    return batch.T @ error / BATCH / 20, float(error @ error / BATCH)


class Server(UserActor):
    """Applies the gradients that have arrived, one version after the other."""

    def __init__(self, versions: int, snapshot_every: int) -> None:
        self.versions, self.snapshot_every = versions, snapshot_every
        self.version, self.busy = 0, False
        self.theta: Array | None = None
        self.gradients: dict[str, Array] = {}

    def begin(self) -> None:
        self.listen()
        self.call(initialize, then=self.applied)

    def joined(self, peer: str) -> None:
        self.tell(peer)

    def received_array(self, peer: str, message: Gradient, array: Array) -> None:
        self.gradients[peer] = array
        self.apply()

    def apply(self) -> None:
        if self.theta is None or self.busy or not self.gradients:
            return
        if self.version < self.versions:
            self.busy, (waiting, self.gradients) = True, (self.gradients, {})
            self.call(apply, self.theta, *waiting.values(), then=self.applied)

    def applied(self, theta: Array) -> None:
        if self.version == self.versions:
            return  # The server was stopped in the meantime.
        self.theta, self.version, self.busy = theta, self.version + 1, False
        self.log("step", version=self.version)
        if self.version % self.snapshot_every == 0:
            self.take_snapshot()
        for peer in self.peers:
            self.tell(peer)
        self.apply()

    def tell(self, peer: str) -> None:
        if self.version == self.versions:
            self.send(peer, Done(), key="done")
        elif self.theta is not None:
            self.send(peer, Parameters(self.version), self.theta, key="parameters")

    def lost(self, peer: str, reason: str) -> None:
        if self.version == self.versions and not self.peers:
            self.finish(f"{self.version} versions in {self.at:.1f} s")

    def stop(self, reason: str) -> None:
        self.versions = self.version
        for peer in self.peers:
            self.tell(peer)
        self.lost("", reason)


class Trainer(UserActor):
    """Computes gradients one after the other, each at the newest parameters."""

    def __init__(self, shard: int) -> None:
        self.shard, self.step, self.busy = shard, 0, False
        self.newest: Array | None = None

    def begin(self) -> None:
        self.dial("server")

    def received_array(self, peer: str, message: Parameters, array: Array) -> None:
        self.newest = array
        self.differentiate()

    def received(self, peer: str, message: Done) -> None:
        self.finish(f"{self.step} gradients in {self.at:.1f} s")

    def differentiate(self) -> None:
        if not self.busy and self.newest is not None:
            theta, self.newest, self.busy = self.newest, None, True
            self.step += 1
            seed = [self.shard, self.step]
            self.call(differentiate, theta, then=self.differentiated, seed=seed)

    def differentiated(self, gradient: Array, loss: float) -> None:
        self.busy = False
        self.log("step", step=self.step, loss=loss)
        self.send("server", Gradient(), gradient, key="gradient")
        self.differentiate()


def program(trainers: int = 3, versions: int = 200, snapshot_every: int = 50) -> Program:
    """Return the program for ``ddloco perform``; ``--set trainers=4`` sets an argument."""
    roles = {"server": Role(partial(Server, versions, snapshot_every))}
    for shard in range(trainers):
        roles[f"trainer-{shard}"] = Role(partial(Trainer, shard), dials=("server",))
    return Program(roles, said=Parameters | Gradient | Done)
