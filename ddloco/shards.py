"""The shards of a syncer, as they see each other: the lead collects what the others own.

Each shard is a syncer of its own fragments, with its own quorum, pace and members, and needs no
other. They meet at the end only: when the lead is through it asks them to end, each sends its
fragments' last versions, and the lead scores and keeps the whole model (paper 3.1, sharded syncer).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from clocks import actor_of, number_of
from ddloco.effects import Observe
from ddloco.messages import Close, Closed, GlobalFragment, Stop
from transport import CONTROL, Drop, Effect, Hangup, Keep, Retire, Send

SHARDS = "shards"
SHARDS_S = 60.0
"""How long the lead waits at the end for shards that have not sent all that they own: a process
that starts again needs some of it."""


@dataclass(slots=True)
class Shards:
    """What the lead knows of the other shards.

    Attributes:
        names: the other shards, as actors.
        foreign: the fragments that they own.
        linked: per linked shard its peer.
        finals: per fragment its last version and the handle of its payload.
        merges: how many each has done, once it is through.
        closing: why the lead waits for them, None before it does.
        patient: whether it waits still.
        released: peers that were told that all is over.
    """

    names: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()
    linked: dict[str, str] = field(default_factory=dict[str, str])
    finals: dict[int, tuple[int, str]] = field(default_factory=dict[int, tuple[int, str]])
    newest: dict[str, int] = field(default_factory=dict[str, int])
    merges: dict[str, int] = field(default_factory=dict[str, int])
    closing: str | None = None
    patient: bool = True
    released: list[str] = field(default_factory=list[str])

    @property
    def complete(self) -> bool:
        """Whether every fragment's last version is there."""
        return len(self.finals) == len(self.foreign) and len(self.merges) == len(self.names)

    def missing(self) -> list[int]:
        """Fragments whose last version nobody has sent."""
        return [p for p in self.foreign if p not in self.finals]

    def knows(self, peer: str) -> bool:
        """Whether a peer is a shard, and no learner."""
        return actor_of(peer) in self.names

    def join(self, peer: str) -> list[Effect]:
        """A shard is there, for the first time or again."""
        actor, number = actor_of(peer), number_of(peer)
        effects: list[Effect] = []
        if number > self.newest.get(actor, 1):
            effects.append(Retire({actor: number}))
        self.newest[actor] = max(number, self.newest.get(actor, 0))
        former = self.linked.get(actor)
        if former is not None and former != peer:
            effects.append(Hangup(former, f"{peer} has its place", final=True))
        self.linked[actor] = peer
        if self.closing is not None:
            effects.append(Send(peer, CONTROL, Close(self.closing), key="close"))
        return [Observe("shard joined", {"shard": peer}), *effects]

    def lose(self, peer: str, reason: str) -> list[Effect]:
        """A shard's link is gone; it goes on with what it owns, or comes back."""
        if self.linked.get(actor_of(peer)) != peer:
            return []
        del self.linked[actor_of(peer)]
        self.released = [each for each in self.released if each != peer]
        return [Observe("shard lost", {"shard": peer, "reason": reason})]

    def close(self, reason: str) -> list[Effect]:
        """The lead is through: whoever owns the rest is to end, and to say how it stands."""
        self.closing = reason
        return [Send(peer, CONTROL, Close(reason), key="close") for peer in self.linked.values()]

    def final(self, peer: str, said: GlobalFragment, handle: str) -> list[Effect]:
        """A shard sends a fragment as it stands at its end."""
        if said.fragment not in self.foreign or not handle or not self.knows(peer):
            return []
        before = self.finals.get(said.fragment)
        if before is not None and before[0] >= said.version:
            return []
        self.finals[said.fragment] = said.version, handle
        return [Keep(handle), *([Drop(before[1])] if before is not None else [])]

    def closed(self, peer: str, said: Closed) -> list[Effect]:
        """A shard is through."""
        if self.knows(peer):
            self.merges[actor_of(peer)] = said.merges
        return []

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
