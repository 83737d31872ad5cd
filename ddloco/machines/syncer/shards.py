"""The shards of a job with several syncers (paper 3.1): each has its own fragments, quorum, pace
and members, and works independently until the end. Then the lead asks the others to end, collects
the last versions of their fragments, and evaluates and saves the model."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from clocks import actor_of, number_of
from ddloco.job.protocol.messages import Close, GlobalFragment, ShardReport, Stop
from ddloco.machines.syncer.accounts import COUNT_MAX
from ddloco.stage.actors.effects import Observe
from transport import CONTROL, Drop, Effect, Hangup, Keep, Retire, Send

SHARDS_S = 60.0
"""Seconds without a message for which the lead waits at the end for a shard's final fragments. A
process that restarts needs part of that time."""

REPORT_S = 5.0
"""Seconds between the reports of a shard. Without them it would not notice that the lead has
restarted, because the side that dials detects a lost peer only when it sends."""


class Shards(Struct, forbid_unknown_fields=True):
    """What the lead knows of the other shards.

    Attributes:
        finals: for each fragment, its last version and the handle of its payload.
        reports: the last report of each shard that has finished.
        closing: what the lead has told the shards to end them; None before that.
        released: peers that were told that the job has ended.
    """

    names: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()
    linked: dict[str, str] = {}
    finals: dict[int, tuple[int, str]] = {}
    newest: dict[str, int] = {}
    reports: dict[str, ShardReport] = {}
    closing: Close | None = None
    patient: bool = True
    released: list[str] = []

    @property
    def complete(self) -> bool:
        if len(self.reports) < len(self.names) or len(self.finals) < len(self.foreign):
            return False
        told = {p: self.reports[self.owner(p)].versions[p] for p in self.foreign}
        return all(self.finals[p][0] >= version for p, version in told.items())

    @property
    def merges(self) -> int:
        return min(sum(each.merges for each in self.reports.values()), COUNT_MAX)

    def owner(self, fragment: int) -> str:
        """Return the shard that a fragment of another one is of; see ``owned_by``."""
        return self.names[fragment % (len(self.names) + 1) - 1]

    def missing(self) -> list[str]:
        return [name for name in self.names if name not in self.reports]

    def away(self) -> int:
        """Return the number of shards that are still connected or were never told to exit."""
        gone = {actor_of(peer) for peer in self.released} - {*self.linked}
        return len([name for name in self.names if name not in gone])

    def knows(self, peer: str) -> bool:
        return actor_of(peer) in self.names

    def join(self, peer: str) -> list[Effect]:
        actor, number = actor_of(peer), number_of(peer)
        if number < self.newest.get(actor, 0):
            reason = f"a newer incarnation, {actor}.{self.newest[actor]}, has the place of {peer}"
            return [Hangup(peer, reason, final=True)]
        effects: list[Effect] = []
        self.reports.pop(actor, None)  # It may merge more.
        if number > self.newest.get(actor, 1):
            effects.append(Retire({actor: number}))
        self.newest[actor] = max(number, self.newest.get(actor, 0))
        former = self.linked.get(actor)
        if former is not None and former != peer:
            effects.append(Hangup(former, f"{peer} has its place", final=True))
        self.linked[actor] = peer
        self.released = [each for each in self.released if actor_of(each) != actor]
        if self.closing is not None:
            effects.append(Send(peer, CONTROL, self.closing, key="close"))
        return [Observe("shard joined", {"shard": peer}), *effects]

    def lose(self, peer: str, reason: str) -> list[Effect]:
        """Handle the loss of a link to a shard, which may keep working or be restarted."""
        if self.linked.get(actor_of(peer)) != peer:
            return []
        del self.linked[actor_of(peer)]
        return [Observe("shard lost", {"shard": peer, "reason": reason})]

    def close(self, said: Close) -> list[Effect]:
        """Ask the other shards to end and to send their final fragments."""
        self.closing = said
        return [Send(peer, CONTROL, said, key="close") for peer in self.linked.values()]

    def final(self, peer: str, said: GlobalFragment, handle: str) -> list[Effect]:
        """Keep a final fragment of a shard, if it is newer than the one already received."""
        if said.fragment not in self.foreign or not handle:
            return []
        if self.linked.get(actor_of(peer)) != peer or self.owner(said.fragment) != actor_of(peer):
            return []
        before = self.finals.get(said.fragment)
        if before is not None and before[0] >= said.version:
            return []
        self.finals[said.fragment] = said.version, handle
        return [Keep(handle), *([Drop(before[1])] if before is not None else [])]

    def report(self, peer: str, said: ShardReport) -> None:
        """Keep the report of a shard that has finished; drop it if the shard merges again."""
        actor = actor_of(peer)
        if self.linked.get(actor) != peer:
            return
        if not said.over:
            self.reports.pop(actor, None)  # It resumed from an earlier snapshot.
        elif len(said.versions) > max(self.foreign):
            self.reports[actor] = said

    def go_on(self) -> None:
        """Continue in a new run, in which no shard has finished yet."""
        self.reports.clear()
        self.closing, self.patient, self.released = None, True, []

    def release(self, t: int, reason: str) -> list[Effect]:
        told = [peer for peer in self.linked.values() if peer not in self.released]
        self.released += told
        return [Send(peer, CONTROL, Stop(t, reason), key="stop") for peer in told]

    def whole(self, thetas: Sequence[str]) -> tuple[str, ...]:
        final = {p: handle for p, (_, handle) in self.finals.items()}
        return tuple(final.get(p, theta) for p, theta in enumerate(thetas))


def owned_by(name: str, names: Sequence[str], fragments: Iterable[int]) -> tuple[int, ...]:
    """Return the fragments of shard ``name``: every S-th of them, so that the shards alternate."""
    index, count = names.index(name), len(names)
    return tuple(p for p in fragments if p % count == index)
