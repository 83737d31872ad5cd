"""Many hostile worlds, and the paper's tables: bounded samples of what `make simulate` runs."""

import math

import pytest

from ddloco.simulation.experiment import run_case
from ddloco.simulation.scenario import cases_of, find
from tests.lab import hostile_world
from tests.lab.checks import all_checks_of

SEEDS = range(10_000, 10_030)
"""Other worlds than those that `make simulate` begins with."""


def test_every_invariant_holds_in_hostile_worlds():
    """30 worlds, every check beside them; a failure names seed and invariant."""
    outcomes = [hostile_world.run_seed(seed) for seed in SEEDS]

    assert [] == [(each.seed, each.violation) for each in outcomes if each.violation]
    assert len(outcomes) == len(SEEDS)
    assert sum(each.merges for each in outcomes) > 420
    assert sum(each.faults for each in outcomes) > 120


def cells(scenario, only, *overrides):
    """(ours, the paper's) for some cases of a built-in scenario, by column."""
    found = {}
    for case, world in cases_of(find(scenario), overrides):
        if only(case.name):
            row = run_case(case, world, 0, checks_of=all_checks_of)
            assert row.violation is None
            for column, theirs in row.paper.items():
                found[case.name, column] = (row.values[column], theirs)
    return found


def rmse(found):
    """Root of the mean squared difference."""
    return math.sqrt(sum((a - b) ** 2 for a, b in found.values()) / len(found))


def test_table_1_at_its_corners():
    """Goodput of every kind of training at the smallest and largest scale, three hours of each."""
    corners = ("150k", "1.2M")
    rows = ("DP", "M = 4", "M = 8")
    found = cells(
        "goodput",
        lambda name: name.startswith(rows) and any(each in name for each in corners),
        "scenario.hours=3",
    )

    assert 8 == len(found)
    assert rmse(found) < 3.0, found


@pytest.mark.slow
def test_table_1_as_a_whole():
    """All twenty cells, a day of each: RMSE at most 2.0 points, as the issue of it demands."""
    found = cells("goodput", lambda name: "16" not in name and "2.4M" not in name)

    assert 20 == len(found)
    assert rmse(found) <= 2.0, found


@pytest.mark.slow
def test_uptime_from_four_learners_on():
    """With four learners or more at least one always trains, to a tenth of a percent of a day."""
    for case, world in cases_of(find("goodput"), ["scenario.hours=6"]):
        if case.name.startswith(("M = 4, 600k", "M = 8, 1.2M")):
            assert run_case(case, world, 0, checks_of=all_checks_of).values["uptime"] > 99.5


@pytest.mark.slow
def test_heterogeneous_hardware():
    """Synchronous training waits, decoupled training does not; a grace window brings more in."""
    rows = {
        case.name: run_case(case, world, 0, checks_of=all_checks_of).values
        for case, world in cases_of(find("heterogeneous"), ["scenario.hours=0.12"])
    }
    synchronous, hasty, patient, everyone, unmerged = rows.values()

    assert abs(synchronous["goodput"] - 84) < 2.0
    assert hasty["goodput"] > 99.5
    assert patient["goodput"] > 99.5
    assert hasty["taking part"] + 1.0 < patient["taking part"] < everyone["taking part"] + 0.1
    assert unmerged["taking part"] > 99.5
    assert unmerged["by fragment"] > patient["by fragment"] + 2.0


@pytest.mark.slow
def test_scavenging():
    """Lent learners make a decoupled job faster, as in the paper, and data-parallel ones hardly."""
    hours = {
        case.name: run_case(case, world, 0, checks_of=all_checks_of).values["hours"]
        for case, world in cases_of(find("scavenging"), ["scenario.inner_steps=3600"])
        if "100 %" in case.name or " 0 %" in case.name
    }

    decoupled = hours["decoupled, 100 % more"] / hours["decoupled, 0 % more"]
    parallel = hours["data-parallel, 100 % more"] / hours["data-parallel, 0 % more"]
    assert abs(decoupled - 0.75) < 0.03
    assert decoupled + 0.1 < parallel
