"""Gossip averaging: peers train alone and average with one neighbour at a time, without a server.

    ddloco perform examples.gossip:program --dir runs/gossip --set peers=6
    ddloco replay runs/gossip

After each step on its own data a peer sends its parameters to another one, which averages them with
its own. Each peer sees only half of the features, so no peer could solve the task alone.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from ddloco.stage import Array, Body, Program, Role, UserActor, computation

Vector = NDArray[np.float64]
FEATURES, BATCH, RATE = 200, 32, 0.02
TRUTH = np.random.default_rng(0).standard_normal(FEATURES)


class Parameters(Body, frozen=True):
    """A peer's parameters after one of its steps."""

    theta: Array


class Done(Body, frozen=True):
    """A peer has taken its last step."""


@computation
def initialize() -> Vector:
    """Make the initial parameters."""
    return np.zeros(FEATURES)


@computation
def train(theta: Vector, *arrived: Vector, seed: list[int], half: int) -> tuple[Vector, float]:
    """Average with received parameters, then take one step; returns the error on all features."""
    theta = np.mean([theta, *arrived], axis=0)
    batch = np.random.default_rng(seed).standard_normal((BATCH, FEATURES))
    batch[:, half::2] = 0.0
    step = batch.T @ (batch @ (theta - TRUTH)) / BATCH
    return theta - RATE * step, float(np.mean((theta - TRUTH) ** 2))


class Peer(UserActor):
    """Trains once all peers are there, and averages with linked ones."""

    number: int
    dialled: list[str]
    others: int
    steps: int
    step: int = 0
    theta: Array | None = None
    arrived: list[Array] = []
    done: list[str] = []

    def begin(self) -> None:
        self.listen()
        for peer in self.dialled:
            self.dial(peer)
        self.call(initialize, then=self.train)

    def joined(self, peer: str) -> None:
        if self.theta is not None:
            self.train(self.theta)

    def on_parameters(self, peer: str, message: Parameters) -> None:
        self.arrived.append(message.theta)

    def on_done(self, peer: str, message: Done) -> None:
        self.done.append(peer)
        self.stop_when_all_are_done()

    def train(self, theta: Array) -> None:
        self.theta = theta
        wanted = 1 if self.step else self.others
        if self.idle and self.step < self.steps and len(self.peers) >= wanted:
            arrived, self.arrived, self.step = self.arrived, [], self.step + 1
            seed, half = [self.number, self.step], self.number % 2
            self.call(train, theta, *arrived, then=self.trained, seed=seed, half=half)

    def trained(self, theta: Array, error: float) -> None:
        self.log("step", step=self.step, error=error)
        if self.peers:
            self.send(self.peers[self.step % len(self.peers)], Parameters(theta), key="theta")
        self.train(theta)
        self.stop_when_all_are_done()

    def stop_when_all_are_done(self) -> None:
        if self.step == self.steps and self.idle:
            for peer in self.peers:
                self.send(peer, Done(), key="done")
            if set(self.done) >= set(self.peers):
                self.finish(f"{self.step} steps in {self.at:.1f} s")

    def lost(self, peer: str, reason: str) -> None:
        self.stop_when_all_are_done()


def program(peers: int = 4, steps: int = 300) -> Program:
    """Every peer dials those before it."""
    names = [f"peer-{number}" for number in range(peers)]
    roles: dict[str, Role] = {}
    for number, name in enumerate(names):
        dials = tuple(names[:number])
        peer = partial(Peer, number=number, dialled=list(dials), others=peers - 1, steps=steps)
        roles[name] = Role(peer, dials=dials)
    return Program(roles)
