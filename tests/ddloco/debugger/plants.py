"""Faults planted in the second of two executions of the same simulated run."""

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
from msgspec import structs

from ddloco.simulation.node import Pace
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.effects import Observe
from ddloco.workers.simulated.work import SimulatedWork

KINDS = ("payload", "weight", "batch", "pace", "effect")
"""What is planted: a bit of a contribution, a weight off by one ulp, another batch, a step that
takes four times longer, an effect that is not done."""

SLOWER = 4.0


@dataclass
class Plant:
    """One fault, at the ``turn``-th opportunity.

    Attributes:
        where: what it hit, once it has: whatever identifies it for its kind.
    """

    kind: str
    turn: int
    where: tuple | None = None
    _count: int = field(default=0)

    def _now(self):
        self._count += 1
        return self._count == self.turn

    def hook(self, monkeypatch):
        """Let the fault happen in worlds from now on."""
        getattr(self, f"_{self.kind}")(monkeypatch)

    def _payload(self, monkeypatch):
        encode = SimulatedWork._encode

        def planted(worker, work, contents):
            done = encode(worker, work, contents)
            if not self._now():
                return done
            made = contents[work.out]
            bits = made.array.copy()
            bits.view(np.uint32)[0] ^= 1
            contents[work.out] = made = replace(made, array=bits)
            self.where = worker._name, made.digest.hex()
            return structs.replace(done, digest=made.digest)

        monkeypatch.setattr(SimulatedWork, "_encode", planted)

    def _weight(self, monkeypatch):
        merge = SimulatedWork._merge_numbers

        def planted(worker, work, contents, what):
            event, made = merge(worker, work, contents, what)
            if not self._now():
                return event, made
            self.where = (work.t,)
            first, *others = event.weights
            weights = (float(np.nextafter(first, 2.0)), *others)
            return structs.replace(event, weights=weights), made

        monkeypatch.setattr(SimulatedWork, "_merge_numbers", planted)

    def _batch(self, monkeypatch):
        run_step = SimulatedWork._run_step

        def planted(worker, work, contents):
            done = run_step(worker, work, contents)
            if not self._now():
                return done
            self.where = worker._name, work.step
            return structs.replace(done, batch=bytes(15) + b"\xff")

        monkeypatch.setattr(SimulatedWork, "_run_step", planted)

    def _pace(self, monkeypatch):
        step = Pace.step

        def planted(pace, now, slow, count):
            took_s = step(pace, now, slow, count)
            if not self._now():
                return took_s
            self.where = (now,)
            return took_s * SLOWER

        monkeypatch.setattr(Pace, "step", planted)

    def _effect(self, monkeypatch):
        handle = Actor.handle

        def planted(actor, at, event):
            effects = handle(actor, at, event)
            seen = [each for each in effects if type(each) is Observe]
            if not seen or not self._now():
                return effects
            self.where = actor.incarnation, actor.number
            return [each for each in effects if each is not seen[0]]

        monkeypatch.setattr(Actor, "handle", planted)


def draw(seed):
    """A fault of a kind and at an opportunity that the seed decides."""
    rng = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    most = {"payload": 60, "weight": 20, "batch": 200, "pace": 150, "effect": 200}[kind]
    return Plant(kind, rng.randrange(1, most + 1))
