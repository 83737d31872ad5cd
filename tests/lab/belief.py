"""Checks of the outlier test against the truth: wrong-refused, honest-believed, starts-over.

Whether a contribution is wrong is recorded next to its numbers (``Content.wrong``), which no
machine reads. This check has its own threshold for what must be rejected, based on all accepted
norms rather than a median, so that it demands only rejections that are beyond doubt.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddloco.job.protocol.messages import GlobalFragment
from ddloco.job.protocol.work import FragmentMerged, MergeFragment
from ddloco.machines.syncer.machine import Syncer
from ddloco.machines.syncer.outlier_history import FEW, STRIKES
from ddloco.replayer.invariants.base import InvariantCheck, hold
from ddloco.simulation.node import Node
from ddloco.simulation.world import World
from ddloco.stage.actors.effects import Observe
from tests.lab.merge_oracle import F64, contribution, numbers
from transport import BULK, Effect, Event, Transmit

WRONG = "wrong-refused"
HONEST = "honest-believed"
OVER = "starts-over"

BEYOND = 1.05
"""A contribution beyond this multiple of the band around the longest accepted norm must be
rejected."""

OPPOSED = -0.75
ELEMENTS_MIN = 128
"""Below this cosine to at least two correct contributions of at least this many elements, a sign
was flipped. With fewer elements, correct ones do not always agree better than by chance (seed
1857)."""


@dataclass(frozen=True)
class Evidence:
    """A contribution at the time when its merge was requested."""

    name: str
    wrong: str
    steps: int
    level: bool
    delta: F64
    owed: float = 0.0
    """The norm of the part of it that a corrupted contribution has left as its residual."""

    @property
    def norm(self) -> float:
        """The norm of its change."""
        return float(np.sqrt((self.delta * self.delta).sum()))

    @property
    def honest(self) -> bool:
        """Whether it is neither corrupted, nor mostly the residual of one that was: after such a
        contribution was accepted, error feedback sends the rest of it (seeds 1735, 3751)."""
        return not self.wrong and self.owed <= self.norm / 2


class Belief(InvariantCheck[World, Node]):
    """Checks that clearly wrong contributions are rejected, that correct ones are accepted, and
    that a learner rejected several times in a row is sent all fragments."""

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def _forget(self) -> None:
        self._asked: dict[int, tuple[MergeFragment, list[Evidence]]] = {}
        self._known: dict[int, list[tuple[float, int]]] = {}
        self._fooled: set[int] = set()
        self._row: Counter[str] = Counter()

    def started(self, world: World, node: Node) -> None:
        """Forget the usual values when a syncer starts."""
        if node.actor_name in world.fragment_memories:
            self._forget()

    def see(self, world: World, node: Node, event: Event, effects: Sequence[Effect]) -> None:
        """Check the events of a syncer; only syncers reject contributions."""
        if not isinstance(node.actor.machine, Syncer):
            return
        for effect in effects:
            match effect:
                case MergeFragment():
                    self._asked[effect.work] = effect, _evidence(node, effect)
                case Observe("joined", fields):
                    self._row[fields["learner"]] = 0
                case Observe("refused", {"reason": reason, **fields}) if reason.startswith("more"):
                    hold(False, HONEST, f"{fields['learner']} claims {reason}")
                case _:
                    pass
        if isinstance(event, FragmentMerged):
            merge, shares = self._asked.pop(event.work)
            self._judge(world, merge, shares, event)
            self._healed(world, node, event, effects)

    def _judge(
        self, world: World, merge: MergeFragment, shares: list[Evidence], event: FragmentMerged
    ) -> None:
        p, refused = merge.fragment, dict(event.refused)
        known = self._known.setdefault(p, [])
        honest = [each for each in shares if each.level and not each.wrong]
        for each in shares:
            what = f"{each.name} in merge {merge.t}, norm {each.norm:.4g} after {each.steps} steps"
            if each.name in refused and each.honest and np.isfinite(each.delta).all():
                # After a wrong contribution was accepted for lack of data, correct ones may look
                # wrong.
                said = f"{what}: {refused[each.name]}"
                hold(p in self._fooled, HONEST, said)
            elif each.name in event.accepted and each.wrong and each.level:
                if p not in self._fooled and len(known) >= FEW:
                    others = [*known, *((other.norm, other.steps) for other in honest)]
                    most = max(n * max(1.0, each.steps / max(s, 1)) for n, s in others)
                    most *= world.job.sync.band * BEYOND
                    hold(each.norm <= most, WRONG, f"{what}, {most:.4g} at most: {each.wrong}")
                opposed = len(honest) > 1 and _cosine(each, honest) < OPPOSED
                clear = opposed and each.delta.size >= ELEMENTS_MIN and p not in self._fooled
                hold(not clear, WRONG, f"{what} against {len(honest)} others: {each.wrong}")
        taken = [each for each in shares if each.name in event.accepted]
        known += [(each.norm, each.steps) for each in taken if each.level]
        if any(each.wrong for each in taken):
            self._fooled.add(p)

    def _healed(
        self, world: World, node: Node, event: FragmentMerged, effects: Sequence[Effect]
    ) -> None:
        """After three rejections in a row, every fragment must be sent or queued."""
        machine: Any = node.actor.machine
        links: Any = node.actor.links
        for name in event.accepted:
            self._row[name] = 0
        for name, _ in event.refused:
            if name not in machine.rounds.membership.members:
                continue
            self._row[name] += 1
            if self._row[name] < STRIKES:
                continue
            self._row[name] = 0
            sent = [e.body for e in effects if isinstance(e, Transmit) and e.peer == name]
            sent += [w.body for w in links.links[name].lanes[BULK].outbox.waiting]
            told = {body.fragment for body in sent if isinstance(body, GlobalFragment)}
            lacks = sorted({*machine.rounds.globals.owned} - told)
            hold(not lacks, OVER, f"{name} was refused {STRIKES} times, and is not sent {lacks}")


def _evidence(node: Node, merge: MergeFragment) -> list[Evidence]:
    theta = node.contents[merge.theta]
    found: list[Evidence] = []
    for share in merge.shares:
        if share.handle in merge.sums:
            continue  # Its relay has judged it, among those of its site.
        content = node.contents[share.handle]
        _, base, steps, _ = content.what
        delta = numbers(theta) - contribution(node, merge, share)
        found.append(
            Evidence(share.name, content.wrong, steps, base == theta.what[1], delta, content.owed)
        )
    return found


def _cosine(one: Evidence, others: Sequence[Evidence]) -> float:
    """The cosine to the sum of the others' unit vectors."""
    whole = sum((each.delta / max(each.norm, 1e-30) for each in others), 0.0 * one.delta)
    length = float(np.sqrt((whole * whole).sum()))
    return float((one.delta * whole).sum()) / max(one.norm * length, 1e-30)
