"""Experiments: one job under several settings, with several seeds, compared with each other.

An experiment file is a job file with ``[experiment]`` and a ``[[case]]`` for each row. A *cell* is
a case with a seed. By default a cell runs in virtual time, and trains for real: its machines are
simulated with ``[work]``, ``[network]`` and the other tables of a scenario, and the task is trained
along the tapes of that. So learners have the speeds that the file says, whatever else the machine
does, and a cell gives the same result again. What a simulation merges the training must merge too,
so ``sync.band`` is 0 there unless it is set. Results are kept, so an experiment that was stopped
goes on.

With ``[experiment.tune]`` a key, such as the inner learning rate, is tuned for each case by one
rule: the case is run with each of its values and each of some other seeds, in cells that are
*trials*, and its own seeds are run with the value whose mean held-out loss was lowest.
"""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Meta, Struct
from msgspec.structs import replace

from clocks import read_regular, replace_file
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.report_data import report_data
from ddloco.job.config import Job, job_from, override, with_overrides
from ddloco.job.protocol.tape_facts import SEMANTICS
from ddloco.stage.files.faults import LARGE, Whole
from ddloco.stage.files.toml import ConfigError, Section, convert, read_toml
from ddloco.stage.files.trust import job_digest
from ddloco.stage.process.code_version import own_version
from ddloco.stage.process.log_tail import LogTail
from ddloco.stage.process.run_identity import (
    DDLOCO,
    FILE,
    GONE,
    READ,
    SOURCE,
    changes,
    file_digest,
    said_of_sources,
    said_of_variable,
    sources_in,
    versions_here,
)
from ddloco.workers.environment import worker_environment
from ddloco.workers.task import TaskError, task_digests

ENVIRONMENT = ("work", "network", "lending", "chips")
"""The tables of a scenario that say what machines and lines are like in virtual time."""

ACTED = ("job", "sync", "outer", "elastic", "chaos", "learner", "compress")

OUTPUT_MAX = 2000
"""Characters of a failed command's last lines that are shown."""

RESULT_FILE = "result.json"

FOLDER = Path("runs") / "experiments"
"""Where the cells of experiments are, unless another folder is asked for."""


class CellError(Exception):
    """A cell has failed; the text says which, where its output is, and its last lines."""


class TuneTable(Section, frozen=True):
    """``[experiment.tune]``: a key that each case has its own best value of. A case that sets the
    key itself is not tuned.

    Attributes:
        key: what is tuned.
        values: the values that are tried, in ascending order.
        seeds: of the trials; none of the experiment's own. With a single one, chance may choose a
            value at which training is hardly stable.
    """

    key: str
    values: Annotated[tuple[int | float, ...], Meta(min_length=2)]
    seeds: Annotated[tuple[Whole, ...], Meta(min_length=1)] = (100, 101)


class ExperimentTable(Section, frozen=True):
    """``[experiment]``: what is compared, and what that shows.

    Attributes:
        name: its name.
        about: what is compared, in a sentence.
        shows: what the results show, for the page.
        shows_not: what they do not show.
        seeds: each case is run with each of them.
        baseline: the case that the others are compared with; the first one by default.
        time: "virtual", or "real" for cases whose time or kills are real.
        hours: of virtual time, after which a cell ends if its job has not: cases at equal time.
        inner_steps: of all learners together, after which a cell ends: cases at equal tokens.
        paper: what the values in ``paper`` of the cases are, and where they are from.
        tune: the key that is tuned for each case, if one is.
    """

    name: str
    about: str = ""
    shows: str = ""
    shows_not: str = ""
    seeds: Annotated[tuple[Whole, ...], Meta(min_length=1)] = (0, 1, 2)
    baseline: str = ""
    time: Literal["virtual", "real"] = "virtual"
    hours: Annotated[float, Meta(gt=0.0, le=LARGE)] | None = None
    inner_steps: Annotated[int, Meta(ge=1)] | None = None
    paper: str = ""
    tune: TuneTable | None = None


class ExperimentCase(Section, frozen=True):
    """``[[case]]``: a row; ``set`` overrides keys, ``against`` is the case that it is compared with
    in place of the baseline (with its own name, none), ``paper`` is the paper's value."""

    name: str
    set: dict[str, Any] = {}
    against: str = ""
    paper: str = ""


class _Tables(Section, frozen=True):
    experiment: ExperimentTable
    case: Annotated[tuple[ExperimentCase, ...], Meta(min_length=1)]


class Experiment(Struct, frozen=True):
    """A loaded experiment file; ``plain`` has the job and the environment of each case, with
    overrides."""

    table: ExperimentTable
    cases: tuple[ExperimentCase, ...]
    plain: dict[str, dict[str, Any]]

    @property
    def baseline(self) -> str:
        return self.table.baseline or self.cases[0].name

    def folder(self, among: Path) -> Path:
        return among / self.table.name.replace(" ", "-")


class CellResult(Struct, frozen=True):
    """The results of one cell.

    Attributes:
        loss: the held-out loss of the final model, in nats.
        steps: inner steps of all learners.
        goodput: the share of the learners' time that was spent in steps that finished.
        up: payload bytes that learners sent.
        down: payload bytes that were sent to them.
        seconds: the time of the job, virtual or real.
        took_s: the time that the cell took on this machine, in seconds.
        identity: what decides it (see ``run_identity``): with another one it is run again.
        tuned: the value that it had of the key that is tuned, if its case is.
    """

    case: str
    seed: int
    loss: float | None
    steps: int
    merges: int
    goodput: float | None
    up: int
    down: int
    seconds: float
    took_s: float
    identity: dict[str, str] = {}
    tuned: int | float | None = None


class Cell(Struct, frozen=True):
    """A case with a seed, the folder of its runs, and its value of the key that is tuned."""

    case: str
    seed: int
    folder: Path
    tuned: int | float | None = None

    def known(self, experiment: Experiment) -> tuple[CellResult | None, list[str]]:
        """Return its result, if it was run before as it would be now; and what has changed since it
        was run, in words."""
        try:
            data = read_regular(self.folder / RESULT_FILE)
            found = msgspec.json.decode(data, type=CellResult)
        except (FileNotFoundError, msgspec.DecodeError):
            return None, []
        if not found.identity:
            return None, ["what it was run with, which it does not say"]
        now = identity_now(found.identity, experiment, self)
        changed = [str(each) for each in changes(found.identity, now)]
        return (None if changed else found), changed


def load_experiment(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment file; ``overrides`` apply to all cases, before their own."""
    plain = read_toml(path)
    own = {key: plain.pop(key) for key in ("experiment", "case") if key in plain}
    tables = convert(own, _Tables, str(path))
    table, rows = tables.experiment, tables.case
    names = [each.name for each in rows]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two cases have one name")
    asked = {"experiment.baseline": table.baseline, **{f"case {e.name}": e.against for e in rows}}
    for where, wanted in asked.items():
        if wanted and wanted not in names:
            raise ConfigError(f"{path}: {where}: {wanted} is not one of the cases")
    if table.time == "real" and (table.hours or table.inner_steps):
        raise ConfigError(
            f'{path}: experiment: hours and inner_steps are of virtual time; with time = "real" a '
            "cell ends by job.steps"
        )
    found: dict[str, dict[str, Any]] = {}
    for case in rows:
        source = f"{path}: case {case.name}"
        varied = with_overrides(plain, overrides, lambda changed, _: changed, source)
        for key, value in case.set.items():
            override(varied, key, value, source=source)
        _job_of(varied, source)
        found[case.name] = varied
    experiment = Experiment(table, rows, found)
    _check_trials(experiment, str(path))
    return experiment


def _check_trials(experiment: Experiment, path: str) -> None:
    tune = experiment.table.tune
    if tune is None:
        return
    where = f"{path}: experiment.tune"
    for seed in set(tune.seeds) & set(experiment.table.seeds):
        raise ConfigError(f"{where}.seeds: {seed} is one of the seeds; trials need their own")
    if list(tune.values) != sorted(set(tune.values)):
        raise ConfigError(f"{where}.values: write them in ascending order, each once")
    for trial in trials(experiment, Path()):
        _job_of(_plain_of(experiment, trial), f"{where}: case {trial.case}")


def _job_of(plain: dict[str, Any], source: str) -> Job:
    return job_from({key: each for key, each in plain.items() if key not in ENVIRONMENT}, source)


def trials(experiment: Experiment, folder: Path) -> list[Cell]:
    """Return the cells that choose the values of the key that is tuned; none without such a key."""
    tune = experiment.table.tune
    if tune is None:
        return []
    return [
        Cell(case.name, seed, folder / f"{number:02}-{tune.key}-{value}-{seed}", value)
        for seed in tune.seeds
        for value in tune.values
        for number, case in enumerate(experiment.cases)
        if tune.key not in case.set
    ]


def cells(experiment: Experiment, folder: Path, tried: Sequence[CellResult] = ()) -> list[Cell]:
    """Return all cells but the trials, those of the first seed first."""
    best = {case.name: best_trial(tried, case.name) for case in experiment.cases}
    return [
        Cell(case.name, seed, folder / f"{number:02}-{seed}", best[case.name])
        for seed in experiment.table.seeds
        for number, case in enumerate(experiment.cases)
    ]


def best_trial(tried: Sequence[CellResult], case: str) -> int | float | None:
    """Return the value with which a case had the lowest mean held-out loss in its trials, the first
    of several; None if it has none. A trial without a finite loss rules its value out."""
    found: dict[int | float, list[float]] = {}
    for each in tried:
        if each.case == case and each.tuned is not None:
            loss = each.loss if each.loss is not None else math.inf
            found.setdefault(each.tuned, []).append(loss if math.isfinite(loss) else math.inf)
    means = {value: fmean(losses) for value, losses in found.items()}
    return min(means, key=lambda value: means[value]) if means else None


def run_cell(experiment: Experiment, cell: Cell) -> CellResult:
    """Run a cell, and keep its result; raises CellError if a command has failed."""
    begun = time.monotonic()
    folder, plain = cell.folder, _plain_of(experiment, cell)
    folder.mkdir(parents=True, exist_ok=True)
    job = {key: each for key, each in plain.items() if key not in ENVIRONMENT}
    replace_file(folder / "job.toml", [tomli_w.dumps(job).encode()])
    run, schedule = folder / "run", folder / "schedule"
    train = ["run", str(folder / "job.toml"), "--dir", str(run), "--overwrite", "--with-parent"]
    values: dict[str, float] = {}
    if experiment.table.time == "real":
        _ddloco(cell, *train)
    else:
        acted = {key: plain[key] for key in (*ACTED, *ENVIRONMENT) if key in plain}
        acted["job"] = {k: each for k, each in plain["job"].items() if k != "task"}
        about = {"name": "cell", "checks": False, "seed": cell.seed, **_limits(experiment)}
        if schedule.exists():  # Of a cell that was stopped.
            shutil.rmtree(schedule)
        scenario = tomli_w.dumps({"scenario": about, **acted})
        replace_file(folder / "scenario.toml", [scenario.encode()])
        simulate = ["simulate", str(folder / "scenario.toml"), "--dir", str(schedule), "--json"]
        values = json.loads(_ddloco(cell, *simulate))["cases"][0]["values"]
        _ddloco(cell, *train, "--schedule", str(schedule))
    result = _result_of(cell, run, values, time.monotonic() - begun)
    result = replace(result, identity=_identity_of(experiment, cell, run), tuned=cell.tuned)
    replace_file(folder / RESULT_FILE, [msgspec.json.encode(result)])
    return result


def _identity_of(experiment: Experiment, cell: Cell, run: Path) -> dict[str, str]:
    """The identity of a cell's run, by its tapes, with what its learners have read."""
    job, found = open_job(run), dict[str, str]()
    for learner in job.learners:
        found |= job.identity(learner)
    return found | _own_identity(experiment, cell)


def _own_identity(experiment: Experiment, cell: Cell) -> dict[str, str]:
    """What an experiment compares in place of the version of each source file of ddloco."""
    behaviour = hashlib.sha256("\n".join(SEMANTICS).encode()).hexdigest()
    found = {"the digest of its settings": settings_digest(experiment, cell)}
    return found | {DDLOCO: own_version(), "the digest of its behaviour": behaviour}


def identity_now(then: Mapping[str, str], experiment: Experiment, cell: Cell) -> dict[str, str]:
    """Return the identity that a cell would have, if it were run now: with the source files,
    versions, variables and data files of now, and the device of then."""
    job = _job_of(_plain_of(experiment, cell), cell.case)
    try:
        sources = task_digests(job.job.task)
    except TaskError:
        sources = dict.fromkeys(sources_in(then), GONE)
    env = worker_environment(os.environ, job.worker)
    now = {key: value for key, value in then.items() if not key.startswith(SOURCE)}
    now |= said_of_sources(sources) | {k: v for k, v in versions_here().items() if k in then}
    for key in then:
        if key.startswith(FILE):
            now[key] = file_digest(Path(key.removeprefix(FILE)))
        elif key.startswith(READ):
            now[key] = said_of_variable(env.get(key.removeprefix(READ)))
    return now | _own_identity(experiment, cell)


def settings_digest(experiment: Experiment, cell: Cell) -> str:
    limits = _limits(experiment)
    return job_digest({"time": experiment.table.time, **limits, **_plain_of(experiment, cell)})


def _limits(experiment: Experiment) -> dict[str, Any]:
    table = experiment.table
    limits = {"hours": table.hours, "inner_steps": table.inner_steps}
    return {key: value for key, value in limits.items() if value is not None}


def _plain_of(experiment: Experiment, cell: Cell) -> dict[str, Any]:
    plain, tune = experiment.plain[cell.case], experiment.table.tune
    if tune is not None and cell.tuned is not None:
        plain = deepcopy(plain)
        override(plain, tune.key, cell.tuned, source=f"case {cell.case}")
    band = {"band": 0.0} if experiment.table.time == "virtual" else {}
    return {
        **plain,
        "job": {**plain["job"], "seed": cell.seed},
        "sync": {**band, **plain.get("sync", {})},
    }


def _ddloco(cell: Cell, *arguments: str) -> str:
    """Run a command of ddloco; returns what it has printed."""
    command = [sys.executable, "-m", "ddloco", *arguments]
    read, write = os.pipe()  # What it reads ends with this process, and it with that.
    try:
        done = subprocess.run(command, stdin=read, capture_output=True, text=True, check=False)  # noqa: S603
    finally:
        os.close(read)
        os.close(write)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-OUTPUT_MAX:]
        raise CellError(f"{cell.case}, seed {cell.seed}: ddloco {' '.join(arguments)}: {said}")
    return done.stdout


def _result_of(cell: Cell, run: Path, values: dict[str, float], took_s: float) -> CellResult:
    """The result of a cell, from the log and the tapes of its run."""
    lines = LogTail(run).new_lines()
    found = next((line for line in lines if line["event"] == "result"), {})
    links = report_data(open_job(run)).runs[0].links
    return CellResult(
        case=cell.case,
        seed=cell.seed,
        loss=found.get("held_out_loss"),
        steps=sum(line.get("together", 1) for line in lines if line["event"] == "step"),
        merges=sum(line["event"] == "merge" for line in lines),
        goodput=values["chip goodput"] / 100 if values else found.get("goodput"),
        up=sum(each.up_bytes for each in links),
        down=sum(each.down_bytes for each in links),
        seconds=3600 * values["hours"] if values else found.get("at", 0.0),
        took_s=round(took_s, 1),
    )
