"""Gossip averaging: peers train alone and average with one neighbour at a time, without a server.

    ddloco perform examples.gossip:program --dir runs/gossip --set peers=6
    ddloco replay runs/gossip

Every peer takes gradient steps on data of its own. After each step it sends its parameters to one
linked peer, a different one each time, which averages them with its own. Each peer sees only half
of the features, so no peer could solve the task alone.
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

    def __init__(self, number: int, dials: tuple[str, ...], others: int, steps: int) -> None:
        self.number, self.dials, self.others, self.steps = number, list(dials), others, steps
        self.step, self.busy = 0, False
        self.theta: Array | None = None
        self.arrived: list[Array] = []
        self.done: set[str] = set()

    def begin(self) -> None:
        self.listen()
        for peer in self.dials:
            self.dial(peer)
        self.call(initialize, then=self.initialized)

    def joined(self, peer: str) -> None:
        self.train()

    def received(self, peer: str, message: Done) -> None:
        self.done.add(peer)
        self.end()

    def received_array(self, peer: str, message: Parameters, array: Array) -> None:
        self.arrived.append(array)

    def train(self) -> None:
        if self.theta is None or self.busy or len(self.peers) < (1 if self.step else self.others):
            return
        if self.step < self.steps:
            self.busy, (arrived, self.arrived) = True, (self.arrived, [])
            self.step += 1
            seed, half = [self.number, self.step], self.number % 2
            self.call(train, self.theta, *arrived, then=self.trained, seed=seed, half=half)

    def initialized(self, theta: Array) -> None:
        self.theta = theta
        self.train()

    def trained(self, theta: Array, error: float) -> None:
        self.theta, self.busy = theta, False
        self.log("step", step=self.step, error=error)
        if self.peers:
            self.send(self.peers[self.step % len(self.peers)], Parameters(), theta, key="theta")
        self.train()
        self.end()

    def end(self) -> None:
        if self.step == self.steps and not self.busy:
            for peer in self.peers:
                self.send(peer, Done(), key="done")
            if self.done >= set(self.peers):
                self.finish(f"{self.step} steps in {self.at:.1f} s")

    def lost(self, peer: str, reason: str) -> None:
        self.end()


def program(peers: int = 4, steps: int = 300) -> Program:
    """Return the program for ``ddloco perform``: every peer dials those before it."""
    names = [f"peer-{number}" for number in range(peers)]
    roles: dict[str, Role] = {}
    for number, name in enumerate(names):
        dials = tuple(names[:number])
        roles[name] = Role(partial(Peer, number, dials, peers - 1, steps), dials=dials)
    return Program(roles, said=Parameters | Done)
