"""The fault language: which fault, of which actor, when, and for how long.

The simulator's scenarios and live fault injection use the same definition. A file of faults is
data. Random faults are drawn from its seed before anything runs: ``schedule`` is a pure function of
the file, the names and the seed, so the same seed means the same faults everywhere.
"""

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from ddloco.stage.files.toml import ConfigError, Section

SYNCER = "syncer"

Kind = Literal["crash", "stall", "slow", "leave", "join", "cut", "reset", "delay", "bandwidth"]
"""The kinds of faults.

crash: the actor is killed (SIGKILL) and returns after ``for_s`` as a new incarnation.
stall: it is stopped (SIGSTOP) for ``for_s``; its pending events are handled afterwards.
slow: its steps take ``factor`` times longer for ``for_s``.
leave: it finishes its step, says goodbye, and returns after ``for_s`` as a new incarnation.
join: it does not exist before ``at_s``.
cut: its link carries nothing for ``for_s``, in one or both directions; messages are held and
delivered afterwards.
reset: its connections break; messages in flight are lost, and both sides shake hands again.
delay: messages on its link take ``delay_s`` longer for ``for_s``.
bandwidth: its link carries ``mbit`` megabits per second for ``for_s``.

A reset and a join are instantaneous and have no duration. Overlapping faults of one kind combine:
a stall or a cut lasts until the last one ends, factors multiply, delays add, and of several
bandwidths the lowest applies.
"""

LINK_KINDS: tuple[Kind, ...] = ("cut", "reset", "delay", "bandwidth")
SYNCER_KINDS: tuple[Kind, ...] = ("crash", "stall")
Direction = Literal["both", "to-syncer", "from-syncer"]

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LARGE = 1e9
"""TOML allows infinity, which is not a valid duration, factor or rate; thirty years are."""

Seconds = Annotated[float, Meta(ge=0.0, le=LARGE)]
Factor = Annotated[float, Meta(ge=1.0, le=LARGE)]
Above0 = Annotated[float, Meta(gt=0.0, le=LARGE)]
FAULTS_MAX = 1_000_000
"""More faults than this in one schedule indicate a mistake in a storm's ``every_s``."""


class Fault(Section, frozen=True):
    """``[[fault]]``: one fault.

    Attributes:
        what: its kind; the guide about faults explains each.
        who: the actor, ``learner-1`` or ``syncer``; for a link, whose link to the syncer.
        at_s: when it begins, in seconds after all learners are ready.
        for_s: how long, in seconds; without it forever, so a crashed actor does not return.
        factor: of "slow", how many times slower.
        delay_s: of "delay", in seconds.
        mbit: of "bandwidth", megabits per second.
        direction: of link faults, which way.
    """

    what: Kind
    who: str
    at_s: Seconds = 0.0
    for_s: Seconds | None = None
    factor: Factor = 2.0
    delay_s: Seconds = 0.1
    mbit: Above0 = 10.0
    direction: Direction = "both"


class Storm(Section, frozen=True):
    """``[[storm]]``: faults at random times, a Poisson process.

    Attributes:
        what: kinds to choose from, all equally likely.
        who: actors to choose from; ``learners`` stands for all of them.
        every_s: mean time between two faults of this storm.
        for_s: mean duration of one, exponentially distributed.
        from_s: when it begins.
        until_s: when it is over; without it, at the end of the run.
        factor: of "slow", how many times slower.
        delay_s: of "delay", in seconds.
        mbit: of "bandwidth", megabits per second.
        direction: of link faults, which way.
    """

    what: Annotated[tuple[Kind, ...], Meta(min_length=1)]
    every_s: Above0
    who: Annotated[tuple[str, ...], Meta(min_length=1)] = ("learners",)
    for_s: Seconds = 5.0
    from_s: Seconds = 0.0
    until_s: Seconds | None = None
    factor: Factor = 4.0
    delay_s: Seconds = 0.1
    mbit: Above0 = 10.0
    direction: Direction = "both"


class Faults(Section, frozen=True):
    """``[chaos]``: faults on purpose; see the guide about them.

    Attributes:
        seed: of the storms; the same seed draws the same faults.
        fault: single faults.
        storm: faults at random times.
    """

    seed: Whole = 0
    fault: tuple[Fault, ...] = ()
    storm: tuple[Storm, ...] = ()


def schedule(faults: Faults, learners: Sequence[str], *, until_s: float) -> tuple[Fault, ...]:
    """Return all faults of a run of ``until_s`` seconds, sorted by time; ``ConfigError`` if a storm
    would produce more than ``FAULTS_MAX``."""
    drawn = [each for each in faults.fault if each.at_s <= until_s]
    for index, storm in enumerate(faults.storm):
        # Each storm has its own random stream, so storms do not affect each other.
        drawn += _draw(storm, learners, random.Random(f"{faults.seed}/{index}"), until_s)
    return tuple(sorted(drawn, key=lambda each: each.at_s))


def _draw(storm: Storm, learners: Sequence[str], rng: random.Random, until_s: float) -> list[Fault]:
    drawn: list[Fault] = []
    end = until_s if storm.until_s is None else min(storm.until_s, until_s)
    who = _among(storm, learners)
    at = storm.from_s + rng.expovariate(1 / storm.every_s)
    while at < end:
        if len(drawn) >= FAULTS_MAX:
            raise ConfigError(f"storm.every_s: {storm.every_s} gives over {FAULTS_MAX} faults")
        drawn.append(
            Fault(
                what=rng.choice(storm.what),
                who=rng.choice(who),
                at_s=at,
                for_s=rng.expovariate(1 / storm.for_s) if storm.for_s else 0.0,
                factor=storm.factor,
                delay_s=storm.delay_s,
                mbit=storm.mbit,
                direction=storm.direction,
            )
        )
        at += rng.expovariate(1 / storm.every_s)
    return drawn


def impossible(
    faults: Faults, learners: Sequence[str], listeners: Sequence[str] = (SYNCER,)
) -> str | None:
    """The first fault or storm that does not apply to the actor it names, as text; None if none."""
    for index, fault in enumerate(faults.fault):
        problem = _cannot(fault.what, fault.who, learners, listeners)
        if problem is not None:
            return f"fault[{index}]: {problem}"
    for index, storm in enumerate(faults.storm):
        for what in storm.what:
            for who in _among(storm, learners):
                problem = _cannot(what, who, learners, listeners)
                if problem is not None:
                    return f"storm[{index}]: {problem}"
    return None


def _cannot(what: Kind, who: str, learners: Sequence[str], listeners: Sequence[str]) -> str | None:
    if who not in listeners and who not in learners:
        some = [f"{learners[0]} to {learners[-1]}"] if len(learners) > 1 else learners
        known = ", ".join([*listeners, *some])
        return f"{what} of {who}: no such actor; this job has {known}"
    if who in listeners and what not in SYNCER_KINDS:
        kind = who.partition("-")[0]
        return (
            f"{what} of {who}: applies to a learner or its link; a {kind} supports {SYNCER_KINDS}"
        )
    return None


def _among(storm: Storm, learners: Sequence[str]) -> list[str]:
    return [name for each in storm.who for name in (learners if each == "learners" else (each,))]
