"""Scenario files: a job, its simulated environment, faults, and cases that vary them. The job's own
tables ([job], [sync], [outer], [chaos], [learner.NAME]) are those of a job file. A case overrides
keys with ``set``, like ``--set``, and may contain the paper's numbers."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace

from ddloco.job.config import Job, job_from, override, with_overrides
from ddloco.job.protocol.tape_facts import TENSORS
from ddloco.simulation.chips import ChipPace, Chips, More, Seconds
from ddloco.simulation.network import Wire
from ddloco.simulation.node import Costs, Pace
from ddloco.simulation.physics import Physics
from ddloco.simulation.tapes import log_maker, recorder_maker
from ddloco.stage.files.faults import Fault, Whole, schedule
from ddloco.stage.files.toml import ConfigError, Section, convert, read_toml
from ddloco.workers.simulated.work import leaves_of

BUILT_IN = Path(__file__).parent / "scenarios"
"""The folder of the scenarios in this package, each known by its name."""

JOB_TABLES = ("job", "sync", "outer", "chaos", "learner", "elastic", "compress")


class ScenarioTable(Section, frozen=True):
    """``[scenario]``: what it shows, and how long it runs: for at most ``hours`` of virtual time,
    until all learners together have done ``inner_steps``, or else to the end of its job. ``checks``
    enables all invariant checks. ``note`` is printed below the table."""

    name: str
    about: str = ""
    note: str = ""
    seed: Whole = 0
    hours: More | None = None
    inner_steps: Annotated[int, Meta(ge=1)] | None = None
    checks: bool = True


class WorkTable(Section, frozen=True):
    """``[work]``: durations of work in seconds; ``variance`` of steps is a fraction of them. A
    merge takes ``merge_s``, and ``merge_each_s`` for each contribution."""

    step_s: More = 1.0
    variance: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    encode_s: Seconds = 0.01
    merge_s: Seconds = 0.05
    merge_each_s: Seconds = 0.0
    tensors: Annotated[int, Meta(ge=1, le=1024)] = 24
    fragment_mb: Seconds = 0.0
    arithmetic: bool = False


class Network(Section, frozen=True):
    """``[network]``: the properties of every link; ``mbit`` is per second and direction,
    ``hub_mbit`` what a syncer's host carries per second and direction, for all its links."""

    delay_s: Seconds = 0.01
    jitter_s: Seconds = 0.0
    mbit: More | None = None
    hub_mbit: More | None = None


class Lending(Section, frozen=True):
    """``[lending]``: learners beyond the first ``base`` are repeatedly absent for ``without_s`` and
    present for ``with_s``, beginning absent ("scavenging", paper: section 9.3)."""

    base: Annotated[int, Meta(ge=1)]
    with_s: More
    without_s: More

    def faults(self, learners: Sequence[str], until_s: float) -> list[Fault]:
        faults: list[Fault] = []
        for name in learners[self.base :]:
            at_s = self.without_s
            faults.append(Fault("join", name, at_s))
            while at_s < until_s:
                at_s += self.with_s
                faults.append(Fault("leave", name, at_s, self.without_s))
                at_s += self.without_s
        return faults


class Case(Section, frozen=True):
    """``[[case]]``: a row of the table. ``paper`` contains the paper's values, by column."""

    name: str
    set: dict[str, Any] = {}
    paper: dict[str, float] = {}


class Scenario(Section, frozen=True):
    scenario: ScenarioTable
    job: dict[str, Any] = {}
    sync: dict[str, Any] = {}
    outer: dict[str, Any] = {}
    elastic: dict[str, Any] = {}
    chaos: dict[str, Any] = {}
    learner: dict[str, Any] = {}
    compress: dict[str, Any] = {}
    work: WorkTable = WorkTable()
    network: Network = Network()
    chips: Chips | None = None
    lending: Lending | None = None
    case: tuple[Case, ...] = ()

    def resolved(self, source: str) -> Job:
        plain = {table: deepcopy(getattr(self, table)) for table in JOB_TABLES}
        plain["job"] = {"task": "simulated:tensors", "name": "simulated", **plain["job"]}
        plain["task"] = {TENSORS: self.work.tensors}
        return job_from({table: keys for table, keys in plain.items() if keys}, source)

    def physics(self, job: Job, seed: int, folder: Path | None = None) -> Physics:
        work, network = self.work, self.network
        bytes_per_s = network.mbit * 1e6 / 8 if network.mbit else float("inf")
        return Physics(
            leaves=leaves_of(work.tensors),
            seed=seed,
            wire=Wire(network.delay_s, network.jitter_s, bytes_per_s),
            costs=Costs(work.encode_s, work.merge_s, merge_each_s=work.merge_each_s),
            hub_bytes_per_s=(network.hub_mbit or 0.0) * 1e6 / 8,
            fragment_bytes=work.fragment_mb * 1e6,
            arithmetic=work.arithmetic,
            pace=self.pace(job),
            recorder=recorder_maker(job, folder, arithmetic=work.arithmetic),
            log=log_maker(folder),
        )

    def faults(self, job: Job, seed: int, until_s: float) -> tuple[Fault, ...]:
        names = job.learner_names()
        drawn = schedule(replace(job.chaos, seed=job.chaos.seed + seed), names, until_s=until_s)
        if self.lending is None:
            return drawn
        lent = self.lending.faults(names, until_s)
        return tuple(sorted((*drawn, *lent), key=lambda each: each.at_s))

    def pace(self, job: Job) -> Callable[[str, random.Random], Pace]:
        return partial(_pace, job, self.work, self.chips)


def _pace(job: Job, work: WorkTable, chips: Chips | None, name: str, rng: random.Random) -> Pace:
    step_s = work.step_s * job.learner_table(name).factor
    if chips is None or name not in job.learner_names():
        return Pace(step_s, work.variance, rng)
    count = max(chips.total // job.job.learners, 1)
    return ChipPace(chips, count, step_s, work.variance, rng)


def find(name: str) -> Path:
    """Return the file of a scenario: a path, or the name of one in this package."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    known = sorted(each.stem for each in BUILT_IN.glob("*.toml"))
    if name not in known:
        raise ConfigError(f"{name}: neither a file nor one of {', '.join(known)}, bandwidth")
    return BUILT_IN / f"{name}.toml"


def cases_of(path: Path, overrides: Sequence[str] = ()) -> list[tuple[Case, Scenario]]:
    """Return every case of a scenario file with its scenario after overrides, which have the form
    ``chips.total=300000`` and take precedence; one case if it has none."""
    plain = read_toml(path)
    whole = convert(plain, Scenario, str(path))
    cases = whole.case or (Case(whole.scenario.name),)
    found: list[tuple[Case, Scenario]] = []
    for case in cases:
        varied = deepcopy(plain)
        for key, value in case.set.items():
            override(varied, key, value, source=f"{path}: case {case.name}")
        scenario = with_overrides(varied, overrides, _checked, f"{path}: case {case.name}")
        found.append((case, scenario))
    return found


def _checked(plain: Any, source: str) -> Scenario:
    scenario = convert(plain, Scenario, source)
    scenario.resolved(source)
    return scenario
