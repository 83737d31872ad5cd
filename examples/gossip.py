"""Gossip averaging: peers train alone and average with one neighbour at a time, without a server.

    ddloco perform examples.gossip:program --dir runs/gossip --set peers=6
    ddloco replay runs/gossip

After each step on its own data a peer sends its parameters to another one, which averages them with
its own. Each peer sees only half of the features, so no peer could solve the task alone.
"""

from functools import partial

import numpy as np

from ddloco.stage import Array, Body, Program, UserActor, computation, mesh

FEATURES, BATCH, RATE = 200, 32, 0.02
TRUTH = np.random.default_rng(0).standard_normal(FEATURES)


class Parameters(Body, frozen=True):
    """A peer's parameters after one of its steps."""

    theta: Array


@computation
def train(*copies: np.ndarray, seed: list[int], half: int) -> tuple[np.ndarray, float]:
    """Average the copies of the parameters, then take one step; returns the error on all
    features."""
    theta = np.mean(copies, axis=0) if copies else np.zeros(FEATURES)
    batch = np.random.default_rng(seed).standard_normal((BATCH, FEATURES))
    batch[:, half::2] = 0.0
    step = batch.T @ (batch @ (theta - TRUTH)) / BATCH
    return theta - RATE * step, float(np.mean((theta - TRUTH) ** 2))


class Peer(UserActor):
    """Trains once all peers are there, and averages with linked ones."""

    number: int
    others: int
    steps: int
    step: int = 0
    copies: list[Array] = []

    def on_parameters(self, peer: str, message: Parameters) -> None:
        self.copies.append(message.theta)

    def when_idle(self) -> None:
        if self.step == self.steps:
            self.done(f"{self.step} steps in {self.at:.1f} s")
        elif len(self.peers) >= (1 if self.step else self.others):
            copies, self.copies, self.step = self.copies, [], self.step + 1
            seed, half = [self.number, self.step], self.number % 2
            self.call(train, *copies, then=self.trained, seed=seed, half=half)

    def trained(self, theta: Array, error: float) -> None:
        self.log("step", step=self.step, error=error)
        self.copies.append(theta)
        if self.peers:
            self.send(self.peers[self.step % len(self.peers)], Parameters(theta), key="theta")


def program(peers: int = 4, steps: int = 300) -> Program:
    """All peers are linked."""
    makers = [partial(Peer, number=n, others=peers - 1, steps=steps) for n in range(peers)]
    return mesh(peer=makers)
