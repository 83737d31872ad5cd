"""What many learners cost the machine of a syncer: CPU of one event with 8 to 1,024 learners.

A whole job is played in the heap world, with the real machines, links and clocks, without checks
and without tapes; each ``handle`` of the syncer is timed with ``time.thread_time``. What is below
the door is not in it: no codec, no sockets, no threads. Learners need about a second for a step,
each its own pace, so that they do not march in step; half of them make a quorum; a snapshot is
begun in the middle.

Divided: the mean CPU of an event with M learners, by that with the fewest, in the same run; 1 says
that an event costs the same however many there are. Aims: 30 us with 8, at most 60 us with 1,024.
Beside it, in a second run under a profiler, which parts of ``handle`` the time goes to; the largest
single event, which is a merge; and the largest of the snapshot, against an aim of 20 ms with 1,024.

A merge is sent to all learners, so its one event grows with M, and so does the clock of each
message: it has an entry for each learner that was heard since. Both are shared by all events of a
step, so what should stay the same is the mean.

The garbage collector is off while a job is played: in the world it would walk the learners, too,
which in a real job are in other processes.
"""

import cProfile
import gc
import pstats
import random
import re
import time
from collections import Counter
from typing import Any

from tools import say

from ddloco.job.config import job_from
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.world import World
from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.events import SnapshotRequested
from ddloco.workers.simulated.work import leaves_of
from transport import Event

BEYOND = """\
A merge is sent to all learners in one event, 45 us for each. Of the snapshot's largest event 12 \
ms write the syncer's state, and the rest sends a marker to each learner (by cProfile)."""

SIZES = (8, 64, 256, 1024)
EVENTS = 60_000
STEPS_MIN, STEPS_MAX = 12, 600
SYNCER = "syncer.1"
FRAGMENTS = 6
PARTS = {
    "clocks": ("/clocks/",),
    "links": ("/transport/",),
    "snapshots": ("/snapshot/", "/ddloco/stage/actors/snapshot_adapter.py"),
    "rounds": tuple(
        f"/ddloco/machines/syncer/{name}.py"
        for name in (
            "rounds",
            "syncs",
            "pacing",
            "schedule",
            "global_fragments",
            "members",
            "membership",
        )
    ),
}
"""Where in the source the time of a part is spent; the rest is the actor and the syncer."""

OF_SNAPSHOT = re.compile("Snapshot|Marker")
"""In the kind of an event that belongs to a snapshot."""


def measure(quick: bool) -> dict[str, Any]:
    """Figures by number of learners."""
    figures: dict[str, Any] = {}
    for size in SIZES[:2] if quick else SIZES:
        steps = STEPS_MIN if quick else steps_of(size)
        timed = Timed()
        play(size, steps, timed)
        profiled = Profiled()
        play(size, max(steps // 4, STEPS_MIN), profiled)
        figures[f"{size}"] = {**timed.figures(), "steps": steps, "shares": profiled.shares()}
        say(f"{size}: {figures[f'{size}']}")
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    least = next(iter(figures))
    said = []
    for size, each in figures.items():
        shares = ", ".join(f"{name} {share:.0%}" for name, share in each["shares"].items())
        said.append(
            f"{each['mean_us']:.1f} us an event with {size} learners, "
            f"{each['mean_us'] / figures[least]['mean_us']:.2f} times that with {least} "
            f"({each['events']} events: {shares}); "
            f"the largest {each['largest_ms']:.1f} ms, a {each['largest']}; of the snapshot "
            f"{each['snapshot_ms']:.1f} ms{' (aim 20)' * (size == '1024')}"
        )
    return said


def steps_of(size: int) -> int:
    """Steps of a job that has about ``EVENTS`` at its syncer."""
    return min(max(EVENTS // (4 * size), STEPS_MIN), STEPS_MAX)


class Timed:
    """Times each event.

    Attributes:
        took_s: CPU seconds of each event, with its kind.
    """

    def __init__(self) -> None:
        self.took_s: list[tuple[float, str]] = []

    def handle(self, actor: Actor, at: float, event: Event) -> list[Any]:
        """Let the syncer take an event."""
        begun = time.thread_time()
        effects = HANDLE(actor, at, event)
        self.took_s.append((time.thread_time() - begun, kind_of(event)))
        return effects

    def figures(self) -> dict[str, Any]:
        """Microseconds and milliseconds."""
        by_kind: Counter[str] = Counter()
        for seconds, kind in self.took_s:
            by_kind[kind] += seconds
        largest_s, largest = max(self.took_s)
        snapshot_s = max(seconds for seconds, kind in self.took_s if OF_SNAPSHOT.search(kind))
        total_s = sum(by_kind.values())
        return {
            "events": len(self.took_s),
            "mean_us": 1e6 * total_s / len(self.took_s),
            "largest_ms": 1e3 * largest_s,
            "largest": largest,
            "snapshot_ms": 1e3 * snapshot_s,
            "kinds": {kind: seconds / total_s for kind, seconds in by_kind.most_common(6)},
        }


class Profiled:
    """Looks where the time goes; what the interpreter does itself counts for who asks it."""

    def __init__(self) -> None:
        self.profile = cProfile.Profile(time.thread_time, builtins=False)

    def handle(self, actor: Actor, at: float, event: Event) -> list[Any]:
        """Let the syncer take an event."""
        self.profile.enable()
        try:
            return HANDLE(actor, at, event)
        finally:
            self.profile.disable()

    def shares(self) -> dict[str, float]:
        """Of the whole, by part."""
        shares = dict.fromkeys([*PARTS, "rest"], 0.0)
        stats: dict[Any, Any] = vars(pstats.Stats(self.profile))["stats"]
        for (file, _, _), (_, _, own_s, _, _) in stats.items():
            part = (name for name, parts in PARTS.items() if any(each in file for each in parts))
            shares[next(part, "rest")] += own_s
        total_s = sum(shares.values())
        unseen = [name for name, own_s in shares.items() if not own_s]
        assert not unseen, f"no time in {unseen}: were their files moved?"
        return {name: own_s / total_s for name, own_s in shares.items()}


HANDLE = Actor.handle


def kind_of(event: Event) -> str:
    """What an event is, and of a message what is said."""
    body = getattr(event, "body", None)
    return type(event).__name__ + (f" {type(body).__name__}" if body is not None else "")


def play(size: int, steps: int, looker: Timed | Profiled) -> None:
    """A whole job of so many learners; ``looker`` lets the syncer take its events."""
    plain = {
        "job": {"task": "simulated:tensors", "steps": steps, "learners": size},
        "task": {TENSORS: FRAGMENTS},
        "sync": {
            "fragments": FRAGMENTS,
            "interval": FRAGMENTS,
            "fragmentation": "tensor",
            "quorum": max(size // 2, 1),
        },
    }

    def pace(_: str, rng: random.Random) -> Pace:
        return Pace(rng.uniform(0.9, 1.1), 0.05, rng)

    wire = Wire(delay_s=0.01, jitter_s=0.01)
    world = World(job_from(plain, "bench"), Physics(leaves_of(FRAGMENTS), wire=wire, pace=pace))

    def handle(actor: Actor, at: float, event: Event) -> list[Any]:
        watched = actor.incarnation == SYNCER
        return looker.handle(actor, at, event) if watched else HANDLE(actor, at, event)

    Actor.handle = handle
    gc.disable()
    try:
        world.begin()
        world.run(steps / 2)
        world.tell(world.nodes["syncer"], SnapshotRequested())
        world.run()
    finally:
        gc.enable()
        Actor.handle = HANDLE
    assert world.over, "the job did not come to its end"
    assert world.snapshots.committed, "no snapshot was taken"
