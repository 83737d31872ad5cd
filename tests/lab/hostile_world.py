"""Small hostile worlds, each drawn from one seed and as varied as possible.

Swarm testing: each seed draws its own sizes, speeds, links and kinds of faults, so that some worlds
have only crashes and others everything at once. There are two phases: until ``heal_at`` anything
may fail; after that nothing fails, and the job must end with all learners taking part.
"""

import dataclasses
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from msgspec.structs import replace

from ddloco.job.config import Job, job_from
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import Close
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.job.protocol.work import ModelSaved, SaveModel
from ddloco.replayer.invariants.base import InvariantCheck, PerSyncer, Violation, hold
from ddloco.replayer.invariants.training import Causal, Durable, Learning, Merging
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Node, Pace
from ddloco.simulation.physics import Check, Physics
from ddloco.simulation.tapes import log_maker, recorder_maker
from ddloco.simulation.trail import Trail
from ddloco.simulation.world import EndlessError, World
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.files.faults import Fault, Faults, Kind, schedule
from ddloco.stage.files.toml import convert
from ddloco.workers.simulated.objective import Wrong
from ddloco.workers.simulated.work import leaves_of
from tests.lab.belief import Belief
from tests.lab.data_order import DataOrder
from tests.lab.fencing import Fences
from tests.lab.launches import Launches
from tests.lab.lies import Liars, OfItselfOnly, Unless
from tests.lab.merge_oracle import Oracle
from tests.lab.resource_bounds import Bounds, Holders
from tests.lab.snapshot_checks import SnapshotContents, SnapshotEndings
from tests.lab.snapshot_requests import Asked, ask, not_too_narrow, requests
from tests.lab.standing import Standing
from tests.lab.truth import Clocks, Contents, Optimizer
from transport import Effect, Event, Transmit

EVENTS_MAX = 60_000
"""A small world with more events is considered endless: the largest ones take a third of it."""

LEARNER_KINDS: tuple[Kind, ...] = (
    "crash", "stall", "slow", "leave", "cut", "reset", "delay", "bandwidth",
)  # fmt: skip
WRONG_STEPS = 16
"""Half as many steps as it takes until an outlier history is forgotten: see ``outlier_history``."""

SLOW_MAX = 40.0
"""Limits the slowest learner's step to two minutes."""

LATEST_S = 600.0
"""After the last fault a job must end within this time in addition to the slowest learner's
steps."""


@dataclass(frozen=True)
class Hostile:
    """One world as drawn. Learners in ``poisoned`` produce NaN between two times; contributions of
    those in ``wrong`` are finite but corrupted. Syncers in ``frozen`` are stopped at a time for so
    many seconds, and may be succeeded. Learners in ``dismissed`` are asked at a time to leave for
    good, and are started again all the same after so many seconds. Actors in ``asked`` initiate
    snapshots, in addition to the job's schedule. Those in ``lying`` change a field of their
    messages between two times, each with a chance (see ``lies``)."""

    seed: int
    job: Job
    physics: Physics
    faults: tuple[Fault, ...] = ()
    poisoned: tuple[tuple[str, float, float], ...] = ()
    wrong: tuple[tuple[str, float, float, Wrong], ...] = ()
    heal_at: float = 0.0
    end_at: float = LATEST_S
    asked: Asked = ()
    frozen: tuple[tuple[str, float, float], ...] = ()
    dismissed: tuple[tuple[str, float, float], ...] = ()
    lying: tuple[tuple[str, float, float, float], ...] = ()


OPTIMIZERS_EVERY = 5
"""Of so many seeds one is a world with "sgd", and one with "adam"."""

COMBINED_EVERY = 7
"""Of so many seeds one is a world that combines what others draw apart; see ``_combined``."""


RESTARTS_EVERY = 4
"""Of so many worlds with a liar one has syncers that are lost, too."""

SHARD_EVERY = 3
"""Of so many worlds with a liar and several syncers it is one of these, but for the lead."""

DATA_EVERY = 17
"""Of so many seeds the last two are worlds whose data shards move between learners."""


FROZEN_EVERY = 23
"""Of so many seeds two are worlds whose syncers are stopped, succeeded, and wake up."""


RULES_EVERY = 37
METHODS, BLOCKING, LATE, FINAL = 28, 29, 32, 34
"""Of so many seeds those are worlds of other methods, of learners that wait, of late steps that are
kept, and of merges after the last global step."""


SITES_EVERY = 11
"""One of so many seeds is a world whose learners have relays, some of them."""


TOGETHER_EVERY, TOGETHER = 13, 8
"""Of so many seeds that is a world whose learners take several steps together."""


def is_combined(seed: int) -> bool:
    """Whether a world has compression with feedback, shards, snapshots, and syncers and learners
    that die and come back, all at once. Each is rare, and all are nearly never drawn together."""
    return seed % COMBINED_EVERY == COMBINED_EVERY - 1


def _job(rng: random.Random, seed: int) -> Job:
    """A job with widely varied sizes and settings; a quarter of the worlds have shards."""
    learners = rng.randint(1, 5)
    interval = rng.randint(2, 8)
    parts = rng.randint(1, interval)
    steps = interval * rng.randint(4, 8)
    plain = {
        "task": {TENSORS: max(parts, rng.randint(2, 8))},
        "job": {
            "task": "simulated:tensors",
            "steps": steps,
            "learners": learners,
            "seed": seed,
            "syncers": min(parts, random.Random(f"shards {seed}").choice([1, 1, 1, 2, 3])),
        },
        "sync": {
            "fragments": parts,
            "interval": interval,
            "overlap": rng.randint(1, min(3, interval - 1)),
            "quorum": rng.randint(1, learners),
            "grace": rng.choice([0.0, 0.5, 0.9]),
            "grace_steps_max": rng.choice([0.5, 1.0]),
            "staleness": rng.randint(1, 3),
            "fragmentation": rng.choice(["balanced", "tensor"]),
        },
        "outer": _outer(rng, seed),
        "compress": {} if seed % 3 else _compress(random.Random(f"compress {seed}")),
    }
    if is_combined(seed):
        more = random.Random(f"combined {seed}")
        plain["compress"] = {
            **_compress(more), "up": more.choice(["int8", "int4", "e3m0"]), "feedback": True
        }  # fmt: skip
        plain["job"]["syncers"] = min(parts, more.choice([1, 2, 3]))
    if seed % DATA_EVERY >= DATA_EVERY - 2:
        more = random.Random(f"data {seed}")
        plain["job"]["shards"] = learners + more.choice([0, 1, 2, 5, 11])
        plain["elastic"] = {"gone_s": more.choice([0.5, 3.0, 10.0, 60.0])}
    _other_rules(seed, plain)
    if seed % SITES_EVERY == SITES_EVERY - 1:
        _sites(seed, plain)
    if seed % TOGETHER_EVERY == TOGETHER:
        _together(seed, plain)
    return job_from(plain, f"hostile world {seed}")


def _other_rules(seed: int, plain: dict[str, Any]) -> None:
    """Worlds whose learners wait, or keep their late steps, or have last merges."""
    kind, more, sync = seed % RULES_EVERY, random.Random(f"rules {seed}"), plain["sync"]
    if "shards" in plain["job"]:
        pass  # They move between learners, which then must not wait for each other.
    elif kind == BLOCKING:
        everyone = {"quorum": plain["job"]["learners"]}
        sync |= {"blocking": True, "overlap": more.randint(0, sync["overlap"]), **everyone}
    elif kind == METHODS:
        method = more.choice(["diloco", "streaming-diloco", "fedavg"])
        plain["job"] |= {"method": method, "syncers": 1}
        if method == "fedavg":
            sync["clients"] = more.choice([0.3, 0.7, 1.0])
        if method != "streaming-diloco":
            local = random.Random(f"local steps {seed}")
            most, count = sync["interval"], local.randint(0, plain["job"]["learners"])
            plain["learner"] = {
                f"learner-{n}": {"local_steps": local.randint(1, most)} for n in range(count)
            }
    if kind == FINAL:
        sync["final_merges"] = True
    if kind in {FINAL, LATE}:
        # What a learner keeps by "blend" may turn its contributions away from those of others.
        sync |= more.choice([{"late": "blend", "band": 0.0}, {"late": "carry"}])


def _together(seed: int, plain: dict[str, Any]) -> None:
    """Worlds whose learners take several steps together: an eighth of an interval, so those are
    longer."""
    plain["worker"] = {"together_s": random.Random(f"together {seed}").choice([2.5, 4.0, 9.0])}
    plain["sync"]["interval"] *= 4
    plain["job"]["steps"] *= 4


def _sites(seed: int, plain: dict[str, Any]) -> None:
    """Worlds with relays, if their learners do not wait for each other."""
    if "method" in plain["job"] or plain["sync"].get("blocking"):
        return
    rng, sites = random.Random(f"sites {seed}"), dict[str, list[str]]()
    for n in range(plain["job"]["learners"]):
        sites.setdefault(f"relay-{rng.randint(0, 2)}", []).append(f"learner-{n}")
    directly = rng.choice([None, None, "relay-2"])
    plain["relay"] = {name: {"learners": each} for name, each in sites.items() if name != directly}


def _outer(rng: random.Random, seed: int) -> dict[str, Any]:
    """Worlds with other optimizers than Nesterov's; the rest are as they were before there were."""
    nesterov = {"lr": rng.choice([0.4, 0.7, 1.0]), "momentum": rng.choice([0.0, 0.6, 0.9])}
    if seed % OPTIMIZERS_EVERY == 3:
        return {"optimizer": "sgd", "lr": nesterov["lr"]}
    if seed % OPTIMIZERS_EVERY == 4:
        more = random.Random(f"adam {seed}")
        decays = {"b1": more.choice([0.0, 0.9]), "b2": more.choice([0.9, 0.99])}
        return {"optimizer": "adam", "lr": more.choice([0.01, 0.1]), **decays}
    return nesterov


def _compress(rng: random.Random) -> dict[str, Any]:
    """Compression in every third world; the others are as they were before there was any. None has
    fewer than four bits: with those a learner may look corrupted, and be right."""
    up = rng.choice(["float32", "bfloat16", "int8", "int4", "e3m0"])
    return {
        "up": up,
        "down": rng.choice(["float32", "bfloat16", "int8", "int4"]),
        "rounding": rng.choice(["nearest", "stochastic"]),
        "feedback": up != "float32" and rng.random() < 0.5,
    }


def draw(seed: int, tapes: Path | None = None) -> Hostile:
    """The hostile world of a seed; its actors write tapes to ``tapes``, if given."""
    rng = random.Random(f"hostile {seed}")
    job = _job(rng, seed)
    steps, interval = job.job.steps, job.sync.interval
    speeds = {name: rng.choice([0.5, 1.0, 1.0, 1.2, 3.0]) for name in job.learner_names()}
    variance = rng.choice([0.0, 0.1, 0.3])
    heal_at = steps * rng.uniform(0.4, 1.0)
    chaos = _chaos(rng, job, heal_at)
    table, asked = requests(seed, job, heal_at, always=is_combined(seed))
    job = replace(job, chaos=chaos, snapshot=table)
    physics = Physics(
        leaves=leaves_of(job.task[TENSORS]),
        seed=seed,
        wire=Wire(
            delay_s=rng.choice([0.001, 0.02, 0.3]),
            jitter_s=rng.choice([0.0, 0.05, 0.5]),
            bytes_per_s=rng.choice([float("inf"), 1e5, 3e3]),
        ),
        costs=Costs(encode_s=rng.choice([0.0, 0.01, 0.2]), merge_s=rng.choice([0.0, 0.05, 0.5])),
        arithmetic=True,
        pace=lambda name, stream: Pace(speeds.get(name, 1.0), variance, stream),
        recorder=recorder_maker(job, tapes, arithmetic=True),
        log=log_maker(tapes),
    )
    poisoned = ()
    if rng.random() < 0.2:
        begin = rng.uniform(0, heal_at)
        poisoned = ((rng.choice(job.learner_names()), begin, rng.uniform(begin, heal_at)),)
    wrong = ()
    if rng.random() < 0.4:
        name, begin = rng.choice(job.learner_names()), rng.uniform(0, heal_at)
        end = min(begin + rng.uniform(2, WRONG_STEPS) * speeds[name], heal_at)
        wrong = ((name, begin, end, rng.choice(get_args(Wrong))),)
    if not job.sync.band:
        wrong = ()  # Then nothing that is finite is refused.
    slowest = max(speeds.values())
    end_at = heal_at + (steps + 3 * interval) * slowest * 2 + LATEST_S
    faults = [_healed(each, heal_at) for each in schedule(
        chaos, job.learner_names(), until_s=heal_at
    )]  # fmt: skip
    faults = not_too_narrow(faults) if table.wanted else faults
    faults, frozen = _bearable(faults), _frozen(seed, job, heal_at)
    befallen = frozen, _dismissed(seed, job, heal_at)
    return Hostile(
        seed, job, physics, faults, poisoned, wrong, heal_at, end_at, asked, *befallen
    )  # fmt: skip


def draw_lying(seed: int, tapes: Path | None = None) -> Hostile:
    """The world of a seed with a liar in place of corrupted numbers, so that whatever befalls an
    honest learner's contributions is the liar's doing. In three of four the syncers live: one that
    has lost merges must believe what its learners say of them."""
    drawn, rng = draw(seed, tapes), random.Random(f"liar {seed}")
    if seed % RESTARTS_EVERY:
        syncers = drawn.job.syncer_names()
        faults = tuple(each for each in drawn.faults if each.who not in syncers)
        drawn = dataclasses.replace(drawn, faults=faults, frozen=())
    who = rng.choice([*drawn.job.learner_names(), *drawn.job.relay_names()])
    begin, end = rng.uniform(0, drawn.heal_at * 0.5), drawn.heal_at
    chance = rng.choice([0.05, 0.3, 1.0])
    shards = drawn.job.syncer_names()[1:]
    if shards and seed % SHARD_EVERY == SHARD_EVERY - 1:
        who, chance = rng.choice(shards), min(chance, 0.3)
        end += rng.choice([0.0, 10.0, 60.0])  # What it says at the end of the job, too.
    return dataclasses.replace(drawn, poisoned=(), wrong=(), lying=((who, begin, end, chance),))


def _dismissed(seed: int, job: Job, heal_at: float) -> tuple[tuple[str, float, float], ...]:
    """Learners that are asked to leave, in every other world whose data shards move."""
    rng = random.Random(f"dismissed {seed}")
    if job.job.shards is None or rng.random() < 0.5:
        return ()
    names, found = job.learner_names(), list[tuple[str, float, float]]()
    for _ in range(rng.randint(1, 3)):
        at, back_s = rng.uniform(0, heal_at), rng.choice([0.0, 2.0, 20.0])
        found.append((rng.choice(names), at, min(back_s, heal_at - at)))
    return tuple(found)


def _frozen(seed: int, job: Job, heal_at: float) -> tuple[tuple[str, float, float], ...]:
    """Syncers that are stopped, some for so long that they have a successor when they wake up."""
    if seed % FROZEN_EVERY not in (FROZEN_EVERY - 2, FROZEN_EVERY - 6):
        return ()
    rng = random.Random(f"frozen {seed}")
    found: list[tuple[str, float, float]] = []
    for _ in range(rng.randint(1, 4)):
        at, for_s = rng.uniform(0, heal_at), rng.choice([3.0, 7.0, 9.0, 14.0, 30.0])
        found.append((rng.choice(job.syncer_names()), at, min(for_s, heal_at - at)))
    return tuple(found)


def _chaos(rng: random.Random, job: Job, heal_at: float) -> Faults:
    kinds = [kind for kind in LEARNER_KINDS if rng.random() < 0.35]
    storms: list[dict[str, Any]] = []
    common = {"for_s": rng.choice([1.0, 5.0, 20.0]), "until_s": heal_at}
    details = {
        "factor": rng.choice([2.0, 20.0]),
        "delay_s": rng.choice([0.05, 2.0]),
        "mbit": rng.choice([0.001, 0.1]),
        "direction": rng.choice(["both", "to-syncer", "from-syncer"]),
    }
    if kinds:
        every_s = rng.choice([2.0, 6.0, 20.0])
        storms.append({"what": kinds, "every_s": every_s, **common, **details})
    if rng.random() < 0.3:
        what = rng.choice([["crash"], ["stall"], ["crash", "stall"]])
        every_s = rng.choice([8.0, 25.0])
        storms.append({"what": what, "who": list(job.syncer_names()), "every_s": every_s, **common})
    late = [
        {"what": "join", "who": name, "at_s": rng.uniform(0, heal_at)}
        for name in job.learner_names()[1:]
        if rng.random() < 0.15
    ]
    if job.job.shards is not None:  # Learners come late, to shards that others have by then.
        more = random.Random(f"data comers {job.job.seed}")
        late = [
            {"what": "join", "who": name, "at_s": more.uniform(0, heal_at)}
            for name in job.learner_names()[1:]
            if more.random() < 0.5
        ]
    if is_combined(job.job.seed):
        more = random.Random(f"combined storms {job.job.seed}")
        for who in (list(job.syncer_names()), ["learners"]):
            for_s, every_s = more.choice([1.0, 5.0]), more.choice([6.0, 12.0, 25.0])
            storms.append({"what": ["crash"], "who": who, "every_s": every_s, **common})
            storms[-1]["for_s"] = for_s
    if job.relay:
        more = random.Random(f"relay storms {job.job.seed}")
        for_s, every_s = more.choice([0.5, 3.0]), more.choice([4.0, 10.0, 40.0, 1e6])
        what = more.choice([["crash"], ["stall"], ["crash", "stall"]])
        storms.append({"what": what, "who": list(job.relay_names()), "every_s": every_s, **common})
        storms[-1]["for_s"] = for_s
    plain = {"seed": rng.randrange(2**32), "fault": late, "storm": storms}
    return convert(plain, Faults, "drawn faults")


def _healed(fault: Fault, heal_at: float) -> Fault:
    """A fault, shortened so that it ends before the quiet phase."""
    if fault.for_s is None:
        return fault
    return replace(fault, for_s=min(fault.for_s, heal_at - fault.at_s))


def _bearable(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """The faults without those that would make a step last longer than the world: factors of
    overlapping faults multiply, and a step keeps the pace with which it began."""
    kept: list[Fault] = []
    for fault in faults:
        factor = fault.factor
        for each in kept:
            over_at = each.at_s + (each.for_s or 0.0)
            if each.what == "slow" and each.who == fault.who and over_at > fault.at_s:
                factor *= each.factor
        if fault.what != "slow" or factor <= SLOW_MAX:
            kept.append(fault)
    return tuple(kept)


def _owner(world: World, t: int) -> str:
    """The syncer whose fragment is due at a global step."""
    fragment = world.plan.fragment_due(t)
    assert fragment is not None, "something is due at every step that is launched"
    return world.job.syncer_of(fragment)


class Healing(InvariantCheck[World, Node]):
    """heal-progress, participation: once there are no more faults, every learner takes part.

    A learner takes part from the time at which everything that was sent over its narrowed links
    has arrived: 1 kbit/s for half a minute delays its reports by more than a minute (seeds 4788,
    6500). What it does after the last merge cannot be merged (seed 6906). A job may end without a
    fragment whose shard was away until the leading syncer had done its last global step: nobody is
    left to merge it with (seed 4461).
    """

    def __init__(self, merging: Merging, learning: Learning, heal_at: float) -> None:
        self._merging = merging
        self._learning = learning
        self._heal_at = heal_at
        self._repeated: set[int] = set()
        self._scored = self._kept = False
        self._over_at: float | None = None
        """When the leading syncer asked the other shards to end."""
        self._clear_at: dict[str, float] = {}
        """By actor, when all that was sent to it or by it before the faults ended has arrived."""

    def started(self, world: World, node: Node) -> None:
        """Forget the syncs that a restarted syncer would have repeated."""
        if node.actor_name in world.fragment_memories:
            self._repeated -= {t for t in self._repeated if _owner(world, t) == node.actor_name}
        if node.actor_name == world.lead:
            self._over_at = None

    def see(self, world: World, node: Node, event: Event, effects: Sequence[Effect]) -> None:
        """Check the end of the job, at the leading syncer."""
        if not self._clear_at and world.now > self._heal_at:
            self._clear_at = {
                name: max([each.backlog_until for each in world.switch.of(other)], default=0.0)
                for name, other in world.nodes.items()
            }
        if node.actor_name not in world.fragment_memories:
            return
        if node.actor_name == world.lead and isinstance(event, ModelSaved | Started):
            self._kept = isinstance(event, ModelSaved)
        for effect in effects:
            match effect:
                case Transmit(body=Close()) if self._over_at is None:
                    self._over_at = world.now
                case Observe("sync repeated", fields):
                    self._repeated.add(fields["t"])
                case Observe("merge", fields):
                    self._repeated.discard(fields["t"])
                case Observe("result"):
                    self._scored = True
                case SaveModel():
                    self._saved(world, node, effect)
                case Finish() if node.actor_name == world.lead:
                    self._ended(world, effect)
                case _:
                    pass

    def _saved(self, world: World, node: Node, effect: SaveModel) -> None:
        """The saved model must be complete and have the newest merges; a restarted syncer may have
        merged since."""
        for p, handle in enumerate(effect.fragments):
            (fragment, version, *_), newest = node.contents[handle].what, self._merging.versions[p]
            owner = world.nodes[world.job.syncer_of(p)]
            said = f"version {version} of fragment {fragment} is saved as {p}, {newest} was merged"
            late = version == newest or owner.number > 1
            hold(fragment == p and late, "model-whole", said)

    def _ended(self, world: World, finish: Finish) -> None:
        # A leading syncer that dies after saving the model may find its shards gone on return.
        done = finish.status == "done" or (self._scored and world.nodes[world.lead].number > 1)
        machine: Any = world.nodes[world.lead].actor.machine
        too_late = self._over_at is not None and self._over_at < self._heal_at
        done = done or (too_late and finish.reason == machine._left_out() != "")
        hold(done, "heal-progress", f"the job ended: {finish.reason}")
        kept = self._kept or finish.status != "done"
        hold(kept, "model-whole", "the job ended, and the model was not kept")
        left = sorted(t for t in self._repeated if _owner(world, t) == world.lead)
        hold(not left, "heal-progress", f"the job ended, syncs {left} were to be repeated")
        sync = world.job.sync
        for actor, other in world.nodes.items():
            clear_at = max(self._clear_at.get(actor, 0.0), self._heal_at)
            quiet = [merge for merge in self._merging.merges if merge[0] > clear_at]
            if actor in world.job.listeners() or len(quiet) < 2 * sync.fragments + 6:
                continue  # No learner, or the job ended too early to tell.
            averaged = {name for merge in quiet for name in merge[3]}
            done_at = self._learning.steps[other.incarnation]
            steps = [at for at in done_at if clear_at < at < quiet[-1][0]]
            if other.pace.step_s * 2 >= sync.staleness * sync.interval:
                continue  # So slow that all its contributions are stale.
            if len(steps) >= 2 * sync.interval:
                took = other.incarnation in averaged
                said = f"{other.incarnation} is in none of the {len(quiet)} merges after the faults"
                hold(took, "participation", said)


@dataclass
class SeedOutcome:
    """The result of one seed."""

    seed: int
    events: int = 0
    seconds: float = 0.0
    steps: int = 0
    merges: int = 0
    faults: int = 0
    trail: str = ""
    violation: str | None = None
    invariant: str = ""


@dataclass
class Watch:
    """The checks of one world."""

    heal_at: float
    merging: Merging = field(default_factory=Merging)
    learning: Learning = field(default_factory=Learning)
    trail: Trail = field(default_factory=Trail)
    snapshot_endings: SnapshotEndings = field(init=False)
    liars: frozenset[str] = frozenset()
    restarts: bool = False

    def __post_init__(self) -> None:
        self.snapshot_endings = SnapshotEndings(self.heal_at)

    def checks(self) -> list[Check]:
        """All checks, in order."""
        if self.liars:
            return self._beside_liars()
        healing = Healing(self.merging, self.learning, self.heal_at)
        told = [self.merging, PerSyncer(Launches), self.learning, Causal(), Durable()]
        known = [Clocks(), Contents(), DataOrder(), Bounds(), Holders(), Optimizer(), Oracle()]
        return [
            *told,
            *known,
            PerSyncer(Belief),
            healing,
            Standing(),
            SnapshotContents(),
            self.snapshot_endings,
            self.trail,
        ]

    def _beside_liars(self) -> list[Check]:
        """What holds although somebody lies: of all that others do, and of all that is done with
        what they say. ``restarts``: syncers are lost, so what learners hold is believed."""
        told: list[Check] = [
            Unless(each, self.liars) for each in (Contents(cursors=False), Bounds())
        ]
        told += [Holders(), self.learning, Optimizer(), Standing(), self.trail]
        if self.restarts:
            return told
        sums = [] if any("relay" in each for each in self.liars) else [Oracle()]
        durable = Unless(Durable(), self.liars)
        return [*told, self.merging, durable, *sums, OfItselfOnly(self.liars)]


def run_seed(seed: int, tapes: Path | None = None, *, lying: bool = False) -> SeedOutcome:
    """Run the hostile world of a seed with all checks; returns the result."""
    return happen((draw_lying if lying else draw)(seed, tapes))


def happen(drawn: Hostile) -> SeedOutcome:
    """Run a world with all checks; returns the result."""
    restarts = drawn.seed % RESTARTS_EVERY == 0
    liars_of = frozenset(who for who, *_ in drawn.lying)
    watch = Watch(drawn.heal_at, liars=liars_of, restarts=restarts)
    fences = Fences() if drawn.frozen else None
    observers, may_act = ([fences], fences.may_act) if fences is not None else ([], None)
    world = World(drawn.job, drawn.physics, watch.checks(), observers, may_act)
    outcome = SeedOutcome(drawn.seed, faults=len(drawn.faults))
    try:
        world.begin(drawn.faults)
        for name, begin, end in drawn.poisoned:
            world.call(begin, _poison, world, name, True)
            world.call(end, _poison, world, name, False)
        for name, begin, end, how in drawn.wrong:
            world.call(begin, _spoil, world, name, how)
            world.call(end, _spoil, world, name, None)
        liars = Liars(world, drawn.seed) if drawn.lying else None
        for name, begin, end, chance in drawn.lying:
            assert liars is not None, "a world with a liar"
            world.call(begin, liars.begin, name, chance)
            world.call(end, liars.end, name)
        for name, at, for_s in drawn.frozen:
            assert fences is not None, "a world with leases"
            world.call(at, fences.freeze, world, name, for_s)
        for name, at, back_s in drawn.dismissed:
            world.call(at, world.dismiss, name, back_s)
        for at, name in drawn.asked:
            world.call(at, ask, world, name)
        world.run(drawn.end_at, events_max=EVENTS_MAX)
        if not drawn.lying:
            watch.snapshot_endings.ended(world)
        hold(
            world.nodes[world.lead].finish is not None,
            "heal-progress",
            f"{world.now:.0f} s, no end",
        )
    except Violation as violation:
        outcome.violation, outcome.invariant = str(violation), violation.invariant
    except EndlessError as error:
        outcome.violation, outcome.invariant = f"heal-progress: {error}", "heal-progress"
    except Exception as error:  # noqa: BLE001, a machine that raises is a finding as well
        outcome.violation = f"raised: {type(error).__name__}: {error}"
        outcome.invariant = "raised"
    finally:
        world.close()
    outcome.events, outcome.seconds = world.events, world.now
    outcome.merges = len(watch.merging.merges)
    outcome.steps = sum(len(steps) for steps in watch.learning.steps.values())
    outcome.trail = watch.trail.value()
    return outcome


TWICE_EVERY = 20
"""One seed in this many runs again, once without and once with tapes (determinism-check,
record-is-inert)."""


def run_checked(seed: int, *, lying: bool = False) -> SeedOutcome:
    """Like ``run_seed``; one seed in twenty runs again, and with tapes, with one result."""
    outcome = run_seed(seed, lying=lying)
    if seed % TWICE_EVERY == 0 and outcome.violation is None:
        with tempfile.TemporaryDirectory(prefix="ddloco-hostile-") as folder:
            _compare(outcome, run_seed(seed, lying=lying), "determinism-check")
            _compare(outcome, run_seed(seed, Path(folder), lying=lying), "record-is-inert")
    return outcome


def _compare(outcome: SeedOutcome, again: SeedOutcome, invariant: str) -> None:
    if again.trail != outcome.trail and outcome.violation is None:
        more = f" ({again.violation})" if again.violation else ""
        outcome.violation = f"{invariant}: {outcome.trail} and then {again.trail}{more}"
        outcome.invariant = invariant


def _poison(world: World, name: str, poisoned: bool) -> None:
    if name in world.nodes:
        world.nodes[name].simulated_work.poisoned = poisoned


def _spoil(world: World, name: str, how: Wrong | None) -> None:
    if name in world.nodes:
        world.nodes[name].simulated_work.wrong = how
