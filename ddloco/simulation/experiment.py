"""Running one case of a scenario, which gives one row of a table."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ddloco.replayer.invariants.base import Violation
from ddloco.replayer.invariants.merged_tokens import MergedTokens
from ddloco.replayer.invariants.training import Causal, Durable, Learning, Merging
from ddloco.simulation.calibrated import Recording
from ddloco.simulation.goodput import Ledger, even_data
from ddloco.simulation.physics import Check
from ddloco.simulation.scenario import Case, Scenario
from ddloco.simulation.trail import Trail
from ddloco.simulation.world import World
from ddloco.stage.files.run_folder import open_folder

HOURS_MAX = 24 * 365.0
"""A case without ``hours`` that has not ended after a year will never end."""


@dataclass
class Row:
    """The results of one case, averaged over its seeds."""

    case: str
    seed: int
    values: dict[str, float] = field(default_factory=dict[str, float])
    paper: dict[str, float] = field(default_factory=dict[str, float])
    events: int = 0
    wall_s: float = 0.0
    trail: str = ""
    violation: str | None = None


FAULTS_S_MAX = 31 * 24 * 3600.0
"""A case without an end of its own gets a month of faults."""


ENDING_S_MAX = 1000.0
"""A job that is asked to end must have ended within this time."""


def checks_of(scenario: Scenario | Recording) -> list[Check]:
    """The checks of a scenario's worlds: those that ``tape verify`` has for recorded runs."""
    if not scenario.scenario.checks:
        return []
    return [Merging(), Learning(), Causal(), Durable(), Trail()]


def run_case(
    case: Case,
    scenario: Scenario | Recording,
    seed: int,
    folder: Path | None = None,
    checks_of: Callable[[Scenario | Recording], list[Check]] = checks_of,
) -> Row:
    """Run one case once; its actors write tapes and a log to ``folder``, if given."""
    job = scenario.resolved(case.name)
    until_s = (scenario.scenario.hours or HOURS_MAX) * 3600
    faults = scenario.faults(job, seed, min(until_s, FAULTS_S_MAX))
    if folder is not None:
        open_folder(folder, job)
    ledger, tokens, checks = Ledger(), MergedTokens(), checks_of(scenario)
    world = World(job, scenario.physics(job, seed, folder), [*checks, tokens], [ledger])
    ledger.watch(world)
    row = Row(case.name, seed, paper=dict(case.paper))
    begun = time.perf_counter()
    try:
        world.begin(faults)
        world.run(until_s, until=_enough(world, scenario.scenario.inner_steps))
    except Violation as violation:
        row.violation = str(violation)
    except Exception as error:  # noqa: BLE001, a machine that raises is a finding as well
        row.violation = f"raised: {type(error).__name__}: {error}"
    row.wall_s = time.perf_counter() - begun
    row.events = world.events
    row.values = {**ledger.results(world), **tokens.results(len(world.plan.fragments))}
    if job.job.shards is not None or (isinstance(scenario, Scenario) and scenario.lending):
        row.values |= even_data(world)
    if folder is not None and not world.over and row.violation is None:
        # Tools that read these tapes expect a job that has ended.
        world.stop(world.lead, "enough")
        world.run(world.now + ENDING_S_MAX)
    world.close()
    row.trail = next((each.value() for each in checks if isinstance(each, Trail)), "")
    return row


def _enough(world: World, steps: int | None) -> Callable[[], bool] | None:
    """A condition: all learners together have done ``steps``; None if there is no such limit."""
    if steps is None:
        return None

    def enough() -> bool:
        return sum(pace.steps for pace in world.paces()) >= steps

    return enough
