"""Recorded runs that the debugger is asked about: simulated ones, made once per session."""

import pytest

from ddloco.debugger.recorded_job import open_job
from ddloco.simulation.experiment import run_case
from ddloco.simulation.scenario import cases_of

SCENARIO = """
[scenario]
name = "debugged"
seed = 3
checks = false
[job]
steps = 240
learners = 4
[sync]
fragments = 6
interval = 24
quorum = 2
[work]
step_s = 1.0
variance = 0.3
arithmetic = true
[learner.learner-3]
factor = 3.0
[[chaos.fault]]
what = "crash"
who = "learner-1"
at_s = 100.0
for_s = 60.0
"""


@pytest.fixture(scope="session")
def simulate(tmp_path_factory):
    """Records a simulated run, given overrides of the scenario; returns its folder."""

    def simulated(*overrides):
        folder = tmp_path_factory.mktemp("run")
        path = folder / "scenario.toml"
        path.write_text(SCENARIO)
        [(case, scenario)] = cases_of(path, overrides)
        run_case(case, scenario, scenario.scenario.seed, folder / "run")
        return folder / "run"

    return simulated


@pytest.fixture(scope="session")
def folder(simulate):
    """A run of four learners, one of which is slow and one of which is killed for a minute."""
    return simulate()


@pytest.fixture
def run(folder):
    """The same run, opened."""
    return open_job(folder)


@pytest.fixture
def opened():
    """Opens a run folder."""
    return open_job
