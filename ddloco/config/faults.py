"""The fault language: what goes wrong, to whom, when and for how long.

One definition for the simulator's scenarios and for live chaos. A file of faults is data; whatever
is left to chance in it is drawn from its seed, once, before anything runs: ``schedule`` is a pure
function of the file, the names and the seed, so the same seed means the same faults everywhere.
"""

import random
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from ddloco.config.toml import ConfigError, Section

SYNCER = "syncer"

Kind = Literal["crash", "stall", "slow", "leave", "join", "cut", "reset", "delay", "bandwidth"]
"""What can go wrong.

crash: the actor is gone at once (SIGKILL) and comes back after ``for_s`` as a new incarnation.
stall: it is stopped (SIGSTOP) for ``for_s``; whatever waits for it happens afterwards.
slow: its steps take ``factor`` times longer for ``for_s``.
leave: it finishes its step, says goodbye, and comes back after ``for_s`` as a new incarnation.
join: it was not there before ``at_s``.
cut: its link carries nothing for ``for_s``, one way or both; held back, and delivered afterwards.
reset: its connections break; what is on the way is lost, and both sides shake hands again.
delay: everything on its link takes ``delay_s`` longer for ``for_s``.
bandwidth: its link carries ``mbit`` megabits a second for ``for_s``.

A reset and a join happen at once and have no duration. Faults of one kind that overlap add up:
a stall or a cut lasts until the last one is over, factors multiply, delays add, and of several
bandwidths the lowest counts.
"""

LINK_KINDS: tuple[Kind, ...] = ("cut", "reset", "delay", "bandwidth")
SYNCER_KINDS: tuple[Kind, ...] = ("crash", "stall")
Direction = Literal["both", "to-syncer", "from-syncer"]

Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LARGE = 1e9
"""Infinity is a legal float in TOML, and no duration, factor or rate; thirty years are."""

Seconds = Annotated[float, Meta(ge=0.0, le=LARGE)]
Factor = Annotated[float, Meta(ge=1.0, le=LARGE)]
Above0 = Annotated[float, Meta(gt=0.0, le=LARGE)]
FAULTS_MAX = 1_000_000
"""More faults than this in one schedule is a mistake in a storm's ``every_s``."""


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
    """Every fault of a run of ``until_s`` seconds, in order of time.

    Raises:
        ConfigError: a storm would bring more than ``FAULTS_MAX``.
    """
    drawn = [each for each in faults.fault if each.at_s <= until_s]
    for index, storm in enumerate(faults.storm):
        # A stream of its own for each storm: another storm changes nothing in this one.
        drawn += _rage(storm, learners, random.Random(f"{faults.seed}/{index}"), until_s)
    return tuple(sorted(drawn, key=lambda each: each.at_s))


def _rage(storm: Storm, learners: Sequence[str], rng: random.Random, until_s: float) -> list[Fault]:
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
    faults: Faults, learners: Sequence[str], syncers: Sequence[str] = (SYNCER,)
) -> str | None:
    """The first fault or storm that cannot happen to whom it names, in words."""
    for index, fault in enumerate(faults.fault):
        problem = _cannot(fault.what, fault.who, learners, syncers)
        if problem is not None:
            return f"fault[{index}]: {problem}"
    for index, storm in enumerate(faults.storm):
        for what in storm.what:
            for who in _among(storm, learners):
                problem = _cannot(what, who, learners, syncers)
                if problem is not None:
                    return f"storm[{index}]: {problem}"
    return None


def _cannot(what: Kind, who: str, learners: Sequence[str], syncers: Sequence[str]) -> str | None:
    if who not in syncers and who not in learners:
        known = f"{', '.join(syncers)}, {learners[0]} to {learners[-1]}"
        return f"{what} of {who}: no such actor; this job has {known}"
    if who in syncers and what not in SYNCER_KINDS:
        return f"{what} of {who}: happens to a learner or its link; to the syncer {SYNCER_KINDS}"
    return None


def _among(storm: Storm, learners: Sequence[str]) -> list[str]:
    return [name for each in storm.who for name in (learners if each == "learners" else (each,))]
