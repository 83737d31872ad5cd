"""The checks of a scenario's worlds, also those that use more than the actors know."""

from ddloco.replayer.invariants.training import Causal, Durable, Learning, Merging
from ddloco.simulation.calibrated import Recording
from ddloco.simulation.physics import Check
from ddloco.simulation.scenario import Scenario
from ddloco.simulation.trail import Trail
from tests.lab.data_order import DataOrder
from tests.lab.launches import Launches
from tests.lab.merge_oracle import Oracle
from tests.lab.resource_bounds import Bounds
from tests.lab.truth import Clocks, Contents, Optimizer


def all_checks_of(scenario: Scenario | Recording) -> list[Check]:
    """All checks that apply to a scenario's worlds; an oracle of merges where there are numbers."""
    if not scenario.scenario.checks:
        return []
    checks: list[Check] = [Merging(), Launches(), Learning(), Causal(), Clocks(), Contents()]
    checks += [Bounds(), Durable(), DataOrder(), Optimizer(), Trail()]
    return [*checks, Oracle()] if scenario.work.arithmetic else checks
