"""The happened-before relation of vector clocks: comparison, causal sort, consistent cuts."""

import heapq
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from clocks.vector_clock import VectorClock


class Order(Enum):
    """The causal relation of one event to another."""

    BEFORE = "before"
    AFTER = "after"
    EQUAL = "equal"
    CONCURRENT = "concurrent"


class CausalityError(ValueError):
    """Events whose clocks cannot come from one run: a cycle, or a message from a missing event."""


class Clocked(Protocol):
    @property
    def actor(self) -> str: ...

    @property
    def number(self) -> int:
        """The event's number in that actor's sequence, from 1 without gaps."""
        ...

    @property
    def clock(self) -> "VectorClock":
        """The event's clock, including its own number."""
        ...


C = TypeVar("C", bound=Clocked)


def causal_sort(
    sequences: Mapping[str, Sequence[C]],
    cut_short: Collection[str] = (),
    after: Mapping[str, int] | None = None,
    rank: Callable[[C], float] | None = None,
) -> list[C]:
    """Merge the actors' event sequences into one order in which every cause precedes its effect.

    The result is a linear extension of happened-before and depends only on the input: among events
    that may come next, the one with the smaller number goes first (or the smaller ``rank``, such as
    a time), then the smaller name. Some
    causes are assumed to have happened: those in actors that are not given, those after the last
    event of the actors in ``cut_short``, and those up to ``after[actor]``, where the sequence of
    that actor begins.

    Raises:
        CausalityError: no such order exists; names an event and its missing cause.
    """
    done = {name: (after or {}).get(name, 0) for name in sequences}
    lasts = {name: done[name] + len(sequences[name]) for name in cut_short if name in sequences}
    position = dict.fromkeys(sequences, 0)
    waiting: dict[tuple[str, int], list[str]] = {}
    ready: list[tuple[float, str]] = []
    merged: list[C] = []

    def offer(actor: str) -> None:
        if position[actor] == len(sequences[actor]):
            return
        event = sequences[actor][position[actor]]
        for cause in event.clock:
            count = min(event.clock[cause], lasts.get(cause, event.clock[cause]))
            if cause != actor and cause in done and done[cause] < count:
                waiting.setdefault((cause, count), []).append(actor)
                return
        heapq.heappush(ready, (event.number if rank is None else rank(event), actor))

    for actor in sorted(sequences, key=str.encode):
        offer(actor)
    while ready:
        _, actor = heapq.heappop(ready)
        event = sequences[actor][position[actor]]
        merged.append(event)
        position[actor] += 1
        done[actor] = event.number
        for woken in waiting.pop((actor, event.number), []):
            offer(woken)
        offer(actor)
    if waiting:
        (cause, count), actors = min(waiting.items())
        stuck = sequences[actors[0]][position[actors[0]]]
        raise CausalityError(
            f"{actors[0]}:{stuck.number} follows from {cause}:{count}, which never happened "
            f"({cause} has {len(sequences[cause])} events)"
        )
    return merged


def inconsistencies(cut: Mapping[str, "VectorClock"]) -> list[tuple[str, str]]:
    """Pairs (i, j) where i's recorded clock knows of more events of j than j had recorded."""
    return [
        (i, j)
        for i in sorted(cut, key=str.encode)
        for j in sorted(cut, key=str.encode)
        if cut[i][j] > cut[j][j]
    ]


def is_consistent_cut(cut: Mapping[str, "VectorClock"]) -> bool:
    """Whether no recorded event has a cause outside the cut: for all i, j: VC_i[j] <= VC_j[j]."""
    return not inconsistencies(cut)
