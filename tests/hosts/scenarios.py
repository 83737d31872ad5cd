"""Fault scenarios as data: what goes wrong, to whom, when, and what must be seen meanwhile.

To add one, add a `Scenario` to `SCENARIOS`; `test_scenarios.py` plays it on a real job whose actors
have a host each. A fault lasts ``for_s`` and until what is expected of it was seen, whichever is
later, so a busy machine makes a scenario long and not red.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Literal

What = Literal["kill", "stop", "leave", "join", "kill-worker", "line", "wall"]
EVERYONE = "everyone"

LONGER_THAN_ANY_TIMEOUT_S = 35.0
"""`transport.session.STALL_S` is the longest time-out of all, 30 s; a test holds this to it."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    kill, kill-worker, leave: SIGKILL to all of an actor, or to its JAX process as the kernel does
    when memory runs out; or it is asked to end. It is started again at the end of ``for_s``.
    stop: SIGSTOP, then SIGCONT. join: it was not there before.
    line: its host's link is as ``line`` says, see `tests.hosts.switch.Line`, in one way or both.
    wall: every actor's wall clock is ``shift_s`` off.
    """

    what: What
    who: str = "learner-1"
    at_s: float = 0.0
    for_s: float | None = 2.0
    way: Literal["both", "out", "back"] = "both"
    line: dict[str, Any] = field(default_factory=dict)
    shift_s: float = 0.0


def bad_line(who: str = "learner-1", way: Any = "both", at_s: float = 0.0, **more: Any) -> Fault:
    """A link that is bad for a while: ``bad_line(loss=0.1)``."""
    return Fault("line", who, at_s, more.pop("for_s", 3.0), way, more)


def cut(who: str = "learner-1", way: Any = "both", at_s: float = 0.0, for_s: float = 3.0) -> Fault:
    """A link that carries nothing in one way or both."""
    return bad_line(who, way, at_s, for_s=for_s, cut=True)


def kills(seed: int, learners: int, every_s: float, until_s: float) -> tuple[Fault, ...]:
    """Kills at random times (a Poisson process), none of an actor that may not be back yet."""
    rng, at_s, faults = random.Random(seed), 0.0, []
    away = {f"learner-{n}": 0.0 for n in range(learners)} | {"syncer": 0.0}
    while (at_s := at_s + rng.expovariate(1 / every_s)) < until_s:
        who = rng.choice([name for name, back_s in away.items() if back_s <= at_s] or [""])
        if who:
            faults.append(Fault("kill", who, at_s, 1.0))
            away[who] = at_s + 10.0
    return tuple(faults)


@dataclass(frozen=True)
class Scenario:
    """What happens to a job, and what is expected.

    Attributes:
        name: a few words, one of a kind.
        covers: numbers of the fault catalogue.
        faults: what goes wrong; times count from when all learners take part in merges.
        goes_on: what must be seen while the faults last, before the first of them ends: "merges" of
            those that are left, "steps" of every learner that runs, or "nothing".
        without: learners without whom merges must continue meanwhile.
        happened: what the switch must have done to packets, as proof that the line was bad.
        links_hold: whether no learner may be lost, not even for a moment.
        refused: whether the syncer must have refused a message; otherwise it must not.
        learners: how many there are.
        absent: which of them are not there from the beginning.
        settings: of the job, as after ``--set``.
        replay: whether the hosts' tapes are replayed at the end.
    """

    name: str
    covers: tuple[str, ...]
    faults: tuple[Fault, ...]
    goes_on: Literal["merges", "steps", "nothing"] = "merges"
    without: tuple[str, ...] = ()
    happened: tuple[str, ...] = ()
    links_hold: bool = False
    refused: bool = False
    learners: int = 2
    absent: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    replay: bool = False


ONE = ("learner-1",)

SCENARIOS = (
    Scenario("learner killed", ("F1",), (Fault("kill"),), without=ONE, replay=True),
    Scenario("learner stopped", ("F2",), (Fault("stop", for_s=4.0),), without=ONE, replay=True),
    Scenario(
        "learner five times slower",
        ("F3",),
        (),
        settings=("learner.learner-1.factor=5",),
        links_hold=True,
    ),
    Scenario(
        "learner thirty times slower",  # Its steps are four intervals long, and so is its lag.
        ("F3",),
        (),
        settings=("learner.learner-1.factor=30", "sync.staleness=9"),
        links_hold=True,
    ),
    Scenario("syncer killed", ("F4",), (Fault("kill", "syncer"),), "steps", replay=True),
    Scenario(
        "syncer stopped",
        ("F5",),
        (Fault("stop", "syncer", for_s=LONGER_THAN_ANY_TIMEOUT_S),),
        "steps",
    ),
    Scenario("whole job killed", ("F6",), (Fault("kill", EVERYONE),), "nothing", replay=True),
    Scenario("partition", ("F7",), (cut(),), without=ONE, happened=("cut",), replay=True),
    Scenario(
        "partition longer than any time-out",
        ("F7",),
        (cut(for_s=LONGER_THAN_ANY_TIMEOUT_S),),
        without=ONE,
    ),
    Scenario(
        "one-way partition towards the syncer",
        ("F8",),
        (cut(way="out"),),
        without=ONE,
        happened=("cut",),
        replay=True,
    ),
    Scenario(
        "one-way partition towards a learner",
        ("F9",),
        (cut(way="back"),),
        without=ONE,
        happened=("cut",),
        replay=True,
    ),
    Scenario("storm of resets", ("F10",), (bad_line(reset=0.1),), happened=("reset",), replay=True),
    Scenario(
        "delay of 300 ms and jitter",
        ("F11",),
        (bad_line(delay_s=0.3, jitter_s=0.2, for_s=6.0),),
        links_hold=True,
    ),
    Scenario(
        "rate of a third of a megabit",
        ("F12",),
        (bad_line("syncer", mbit=0.3, for_s=6.0),),
        happened=("queued",),
        links_hold=True,
    ),
    Scenario(
        "a fifth of the packets lost",
        ("F13",),
        (bad_line(loss=0.2, for_s=6.0),),
        happened=("lost",),
        links_hold=True,
    ),
    Scenario(
        "packets doubled and late",
        ("F14", "F15"),
        (bad_line("syncer", double=0.2, reorder=0.2, for_s=6.0),),
        happened=("doubled", "late"),
        links_hold=True,
    ),
    Scenario(
        "links cut one after the other and healed in another order",
        ("F16",),
        (
            cut("learner-0", at_s=0.0, for_s=5.0),
            cut("syncer", at_s=1.0, for_s=5.0),
            cut("learner-1", at_s=2.0, for_s=2.0),
        ),
        "steps",
        happened=("cut",),
    ),
    Scenario(
        "bits flipped that TCP believes",
        ("F17",),
        (bad_line(way="out", corrupt=0.3, for_s=6.0),),
        happened=("corrupted",),
        refused=True,
        replay=True,
    ),
    Scenario(
        "wall clocks jump",
        ("F26",),
        (
            Fault("wall", EVERYONE, at_s=0.0, for_s=1.5, shift_s=86400.0),
            Fault("wall", EVERYONE, at_s=2.0, for_s=1.5, shift_s=-3600.0),
        ),
        links_hold=True,
        replay=True,
    ),
    Scenario(
        "the machine is suspended",
        ("F27",),
        (Fault("stop", EVERYONE, for_s=LONGER_THAN_ANY_TIMEOUT_S),),
        "nothing",
        replay=True,
    ),
    Scenario("memory runs out", ("F30",), (Fault("kill-worker"),), without=ONE, replay=True),
    Scenario(
        "twice as many, then half",
        ("F33",),
        (
            Fault("join", "learner-2", at_s=0.0, for_s=None),
            Fault("join", "learner-3", at_s=0.0, for_s=None),
            Fault("leave", "learner-0", at_s=8.0, for_s=2.0),
            Fault("leave", "learner-2", at_s=8.0, for_s=2.0),
        ),
        learners=4,
        absent=("learner-2", "learner-3"),
    ),
    Scenario(
        "storm of kills",
        ("F34",),
        kills(seed=3, learners=3, every_s=5.0, until_s=30.0),
        "steps",
        learners=3,
        replay=True,
    ),
    Scenario(
        "storm of kills while data shards move",
        ("F34",),
        kills(seed=4, learners=3, every_s=5.0, until_s=30.0),
        "steps",
        learners=3,
        settings=("job.shards=7", "elastic.gone_s=0.7"),
        replay=True,
    ),
    Scenario(
        "data shards taken over in a partition",  # Two draw from them until it ends.
        ("F7",),
        (cut(for_s=6.0),),
        without=ONE,
        happened=("cut",),
        settings=("job.shards=5", "elastic.gone_s=1.5"),
        replay=True,
    ),
)

BAD_DAY = (
    "one-way partition towards the syncer",
    "storm of resets",
    "syncer killed",
    "learner killed",
)
"""What the default run does to one job, one after the other."""


def scenario(name: str) -> Scenario:
    """The scenario of that name."""
    return next(each for each in SCENARIOS if each.name == name)
