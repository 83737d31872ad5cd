"""A parameter server and its trainers: two actors of one's own on ddloco's stage.

    ddloco perform examples.parameter_server:program --dir runs/ps --set trainers=4
    ddloco replay runs/ps

Trainers compute gradients of a linear regression at the newest parameters that they have heard of;
the server applies what has come, waits for nobody, and has a snapshot taken every so often. What
the two decide and compute is here; transport, clocks, tapes, replays and snapshots are ddloco's.
examples/own_actors.md goes through it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ddloco.actors.effects import Calculation, Finish, Observe, TakeSnapshot
from ddloco.actors.events import Begun, Computed, StopRequested
from ddloco.programs.program import Program, Role, Tensors
from transport import (
    BULK,
    CONTROL,
    Body,
    Dial,
    Drop,
    Effect,
    Event,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Send,
)  # fmt: skip

FEATURES, BATCH, RATE = 1000, 64, 0.1
AGREED = {"features": str(FEATURES)}
"""What both ends of a link must share; a link to somebody else is refused, and says why."""

TRUTH = np.random.default_rng(0).standard_normal(FEATURES)


class Parameters(Body, frozen=True):
    """The server's newest parameters, as payload."""

    version: int


class Gradient(Body, frozen=True):
    """A trainer's answer, as payload."""

    version: int


class Done(Body, frozen=True):
    """That was the last version."""


class Differentiate(Calculation, frozen=True):
    """The gradient of a batch, drawn with ``seed``, at the parameters."""

    seed: tuple[int, int]


class Apply(Calculation, frozen=True):
    """A step against each gradient behind the parameters; from nothing come the first ones."""


class Differentiated(Computed, frozen=True):
    """The gradient is there; ``loss`` is the batch's."""

    loss: float = 0.0


class Applied(Computed, frozen=True):
    """New parameters are there."""


class Server:
    """Versions count up; whoever's gradient is in one is told of it."""

    def __init__(self, versions: int, snapshot_every: int) -> None:
        self.versions, self.snapshot_every = versions, snapshot_every
        self.version, self.theta, self.busy = 0, "", False
        self.waiting: dict[str, str] = {}  # The handle of a gradient, by peer.
        self.applying: dict[str, str] = {}
        self.peers: list[str] = []

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event."""
        match event:
            case Begun():
                return [Listen(AGREED), *self.apply()]
            case PeerJoined(peer):
                self.peers.append(peer)
                return self.tell(peer) if self.theta else []
            case PeerLost(peer):
                self.peers.remove(peer)
                return self.end(at)
            case MessageArrived(body=Gradient()) if event.peer not in self.waiting:
                self.waiting[event.peer] = event.handle
                return [Keep(event.handle), *self.apply()]
            case Applied():
                return self.applied(at)
            case StopRequested():
                self.versions = self.version
                return self.end(at)
            case _:
                return []

    def apply(self) -> list[Effect]:
        """All gradients that wait, at once; at the beginning there are none."""
        if self.busy or (self.theta and not self.waiting) or self.version >= self.versions:
            return []
        self.busy, self.version = True, self.version + 1
        self.applying, self.waiting = self.waiting, {}
        source = (self.theta, *self.applying.values()) if self.theta else ()
        made = f"theta/{self.version}"
        return [Keep(made), Apply(self.version, source, (made,))]

    def applied(self, at: float) -> list[Effect]:
        """A version is there."""
        former, self.theta, self.busy = self.theta, f"theta/{self.version}", False
        effects: list[Effect] = [Drop(each) for each in (former, *self.applying.values()) if each]
        effects.append(Observe("step", {"version": self.version, "of": list(self.applying)}))
        if self.version % self.snapshot_every == 0:
            effects.append(TakeSnapshot())
        if self.version >= self.versions:
            return [*effects, *self.end(at)]
        told = [peer for peer in self.peers if peer in self.applying or not former]
        return [*effects, *(each for peer in told for each in self.tell(peer)), *self.apply()]

    def tell(self, peer: str) -> list[Effect]:
        """The newest parameters; what still waits to be sent is replaced by them."""
        return [Send(peer, BULK, Parameters(self.version), self.theta, key="parameters")]

    def end(self, at: float) -> list[Effect]:
        """Behind the last version: everybody is sent home; the last one to leave ends it."""
        if self.version < self.versions or self.busy:
            return []
        if not self.peers:
            return [Finish("done", f"{self.version} versions in {at:.1f} s")]
        return [Send(peer, CONTROL, Done(), key="done") for peer in self.peers]


class Trainer:
    """Computes one gradient after the other, each at the newest parameters."""

    def __init__(self, shard: int) -> None:
        self.shard, self.step = shard, 0
        self.newest: tuple[int, str] | None = None  # Heard of, and not yet begun with.
        self.busy: tuple[int, str] | None = None

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Take one event."""
        match event:
            case Begun():
                return [Dial("server", AGREED)]
            case MessageArrived(body=Parameters(version)):
                former, self.newest = self.newest, (version, event.handle)
                return [Keep(event.handle), *([Drop(former[1])] if former else []), *self.begin()]
            case Differentiated(work, _, loss) if self.busy is not None:
                (version, theta), self.busy = self.busy, None
                made = f"gradient/{work}"
                observed = Observe("step", {"step": work, "loss": loss})
                said = Send("server", BULK, Gradient(version), made, key="gradient")
                return [observed, said, Drop(made), Drop(theta), *self.begin()]
            case MessageArrived(body=Done()) | StopRequested():
                return [
                    Hangup("server", "done"),
                    Finish("done", f"{self.step} gradients in {at:.1f} s"),
                ]
            case _:
                return []

    def begin(self) -> list[Effect]:
        """The next gradient, if there is something new to compute it at."""
        if self.busy or self.newest is None:
            return []
        self.busy, self.newest = self.newest, None
        self.step += 1
        made, theta = f"gradient/{self.step}", self.busy[1]
        return [Keep(made), Differentiate(self.step, (theta,), (made,), (self.shard, self.step))]


def compute(work: Any, given: Sequence[Tensors]) -> tuple[Computed, Sequence[Tensors]]:
    """The same arrays come out of the same arrays, here and in every replay."""
    if isinstance(work, Apply):
        theta, *gradients = [next(iter(each.values())) for each in given] or [np.zeros(FEATURES)]
        return Applied(work.work), [{"theta": theta - RATE * sum(gradients, np.zeros(FEATURES))}]
    batch = np.random.default_rng(work.seed).standard_normal((BATCH, FEATURES))
    error = batch @ (given[0]["theta"] - TRUTH)
    loss = float(error @ error / BATCH)
    return Differentiated(work.work, loss=loss), [{"gradient": batch.T @ error / BATCH / 20}]


def program(trainers: int = 3, versions: int = 200, snapshot_every: int = 50) -> Program:
    """What ``ddloco perform`` calls; ``--set trainers=4`` is an argument."""
    cast = {"server": Role(partial(Server, versions, snapshot_every), compute=compute)}
    for shard in range(trainers):
        role = Role(partial(Trainer, shard), dials=("server",), compute=compute)
        cast[f"trainer-{shard}"] = role
    return Program(cast, said=Parameters | Gradient | Done, happened=Differentiated | Applied)
