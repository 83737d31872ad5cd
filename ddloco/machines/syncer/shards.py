"""The shards of a syncer, as they see each other: the lead collects what the others own.

Each shard is a syncer of its own fragments, with its own quorum, pace and members, and needs no
other. They meet at the end only: when the lead is through it asks them to end, each sends its
fragments' last versions, and the lead scores and keeps the whole model (paper 3.1, sharded syncer).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clocks import actor_of, number_of
from ddloco.actors.effects import Observe
from ddloco.protocol.messages import Close, GlobalFragment, ShardReport, Stop
from transport import CONTROL, Drop, Effect, Hangup, Keep, Retire, Send

SHARDS = "shards"
SHARDS_S = 60.0
"""How long the lead waits at the end, with nothing coming, for shards that have not sent all that
they own: a process that starts again needs some of it."""

REPORT = "report"
REPORT_S = 5.0
"""A shard says so often how it stands: it would not learn otherwise that the lead has started
again, since nobody tells a dialling side."""


@dataclass(slots=True)
class Shards:
    """What the lead knows of the other shards.

    Attributes:
        names: the other shards, as actors.
        foreign: the fragments that they own.
        linked: per linked shard its peer.
        finals: per fragment its last version and the handle of its payload.
        reports: what each has said that is through.
        closing: why the lead waits for them, None before it does.
        patient: whether it waits still.
        released: peers that were told that all is over.
    """

    names: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()
    linked: dict[str, str] = field(default_factory=dict[str, str])
    finals: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    newest: dict[str, int] = field(default_factory=dict[str, int])
    reports: dict[str, ShardReport] = field(default_factory=dict[str, ShardReport])
    closing: str | None = None
    patient: bool = True
    released: list[str] = field(default_factory=list[str])

    @property
    def complete(self) -> bool:
        """Whether every fragment's last version is there."""
        if len(self.reports) < len(self.names) or len(self.finals) < len(self.foreign):
            return False
        told = [each.versions for each in self.reports.values()]
        return all(self.finals[p][0] >= max(said[p] for said in told) for p in self.foreign)

    @property
    def merges(self) -> int:
        """How many merges the others have done."""
        return sum(each.merges for each in self.reports.values())

    def missing(self) -> list[str]:
        """The shards that have not said how they end."""
        return [name for name in self.names if name not in self.reports]

    def away(self) -> int:
        """Shards that are not through with their goodbye: linked still, or never told to go."""
        gone = {actor_of(peer) for peer in self.released} - {*self.linked}
        return len([name for name in self.names if name not in gone])

    def knows(self, peer: str) -> bool:
        """Whether a peer is a shard, and no learner."""
        return actor_of(peer) in self.names

    def join(self, peer: str) -> list[Effect]:
        """A shard is there, for the first time or again."""
        actor, number = actor_of(peer), number_of(peer)
        if number < self.newest.get(actor, 0):
            reason = f"a newer incarnation, {actor}.{self.newest[actor]}, has the place of {peer}"
            return [Hangup(peer, reason, final=True)]
        effects: list[Effect] = []
        self.reports.pop(actor, None)  # It may do more.
        if number > self.newest.get(actor, 1):
            effects.append(Retire({actor: number}))
        self.newest[actor] = max(number, self.newest.get(actor, 0))
        former = self.linked.get(actor)
        if former is not None and former != peer:
            effects.append(Hangup(former, f"{peer} has its place", final=True))
        self.linked[actor] = peer
        self.released = [each for each in self.released if actor_of(each) != actor]
        if self.closing is not None:
            effects.append(Send(peer, CONTROL, Close(self.closing), key="close"))
        return [Observe("shard joined", {"shard": peer}), *effects]

    def lose(self, peer: str, reason: str) -> list[Effect]:
        """A shard's link is gone; it goes on with what it owns, or comes back."""
        if self.linked.get(actor_of(peer)) != peer:
            return []
        del self.linked[actor_of(peer)]
        return [Observe("shard lost", {"shard": peer, "reason": reason})]

    def close(self, reason: str) -> list[Effect]:
        """The lead is through: whoever owns the rest is to end, and to say how it stands."""
        self.closing = reason
        return [Send(peer, CONTROL, Close(reason), key="close") for peer in self.linked.values()]

    def final(self, peer: str, said: GlobalFragment, handle: str) -> list[Effect]:
        """A shard sends a fragment as it stands at its end."""
        if said.fragment not in self.foreign or not handle:
            return []
        if self.linked.get(actor_of(peer)) != peer:
            return []
        before = self.finals.get(said.fragment)
        if before is not None and before[0] >= said.version:
            return []
        self.finals[said.fragment] = said.version, handle
        return [Keep(handle), *([Drop(before[1])] if before is not None else [])]

    def report(self, peer: str, said: ShardReport) -> None:
        """A shard says how it stands; what counts is that it is through."""
        actor = actor_of(peer)
        if self.linked.get(actor) != peer:
            return
        if not said.over:
            self.reports.pop(actor, None)  # It went on from a snapshot in which it was.
        elif len(said.versions) > max(self.foreign):
            self.reports[actor] = said

    def go_on(self) -> None:
        """In another run, of which nobody has said that it is through."""
        self.reports.clear()
        self.closing, self.patient, self.released = None, True, []

    def release(self, t: int, reason: str) -> list[Effect]:
        """It is over, for the shards, too: each is told once over each link."""
        told = [peer for peer in self.linked.values() if peer not in self.released]
        self.released += told
        return [Send(peer, CONTROL, Stop(t, reason), key="stop") for peer in told]

    def whole(self, thetas: Sequence[str]) -> tuple[str, ...]:
        """The model, fragment by fragment: one's own parameters, and what the others sent."""
        final = {p: handle for p, (_, handle) in self.finals.items()}
        return tuple(final.get(p, theta) for p, theta in enumerate(thetas))


def owned_by(name: str, names: Sequence[str], fragments: Iterable[int]) -> tuple[int, ...]:
    """The fragments of a shard: every S-th, so that their turns alternate."""
    index, count = names.index(name), len(names)
    return tuple(p for p in fragments if p % count == index)
