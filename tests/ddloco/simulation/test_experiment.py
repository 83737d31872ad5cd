"""One case, run once: what is measured, what is said of a broken invariant, what is left behind."""

import pytest
import trio

from ddloco.machines.syncer import syncs
from ddloco.machines.syncer.rounds import Rounds
from ddloco.replayer.replay_of import replay_of
from ddloco.simulation.experiment import checks_of, run_case
from ddloco.simulation.scenario import cases_of
from ddloco.simulation.trail import Trail
from tests.lab.checks import all_checks_of
from tests.lab.merge_oracle import Oracle

SCENARIO = """
[scenario]
name = "small"
[job]
steps = 12
learners = 2
[sync]
fragments = 3
interval = 3
overlap = 2
[work]
tensors = 3
arithmetic = true
"""


@pytest.fixture
def case(tmp_path):
    """Makes the case of a scenario, with keys overridden."""

    def made(*overrides):
        path = tmp_path / "small.toml"
        path.write_text(SCENARIO)
        return cases_of(path, overrides)[0]

    return made


def test_a_case_is_measured(case):
    """To the end of its job, with every check beside it."""
    row = run_case(*case(), 4, checks_of=all_checks_of)
    assert ("small", 4, None) == (row.case, row.seed, row.violation)
    times = {"goodput", "chip goodput", "uptime", "taking part", "steps", "merges", "hours"}
    assert times | {"in a merge", "by fragment"} == set(row.values)
    assert 12.0 == row.values["merges"]
    # Steps are all that chips do in this world, and each learner's first one compiles.
    assert 80 < row.values["goodput"] < row.values["chip goodput"] <= 100
    assert row.events > 100
    assert 32 == len(row.trail)
    assert row.trail == run_case(*case(), 4).trail


@pytest.mark.parametrize(
    ("override", "column", "expected"),
    [("scenario.hours=0.001", "hours", 0.001), ("scenario.inner_steps=9", "steps", 9.0)],
)
def test_a_case_may_end_before_its_job(case, override, column, expected):
    """After so many hours, or as soon as so many steps are done by all together."""
    row = run_case(*case(override), 0)
    assert expected == pytest.approx(row.values[column], abs=1.0 if column == "steps" else 1e-9)
    assert row.values["merges"] < 12


def test_checks_may_be_left_out(case):
    """For speed; beside those of tapes, tests have more, and an oracle where there are numbers."""
    assert [] == checks_of(case("scenario.checks=false")[1])
    assert "" == run_case(*case("scenario.checks=false"), 0).trail
    assert isinstance(checks_of(case()[1])[-1], Trail)
    with_numbers, without = (
        all_checks_of(case(f"work.arithmetic={each}")[1]) for each in ("true", "false")
    )
    assert isinstance(with_numbers[-1], Oracle)
    assert len(without) == len(with_numbers) - 1


def test_a_broken_invariant_is_named(case, monkeypatch):
    """With its text; what was measured until then is there."""
    monkeypatch.setattr(syncs, "merge_weight", lambda tokens, steps, rule: 1.0)
    row = run_case(*case(), 0)
    assert row.violation.startswith("weights-valid: ")
    assert "chip goodput" in row.values


def test_a_machine_that_raises_is_named(case, monkeypatch):
    """As such."""

    def close(self, at, sync, shared):
        raise KeyError("theta/0/7")

    monkeypatch.setattr(Rounds, "_close", close)
    assert "raised: KeyError: 'theta/0/7'" == run_case(*case(), 0).violation


@pytest.mark.parametrize("override", ["job.steps=12", "scenario.hours=0.001"])
def test_its_tapes_replay(case, override, tmp_path):
    """Also those of a case that ends before its job: all actors are asked to end in good order."""
    folder = tmp_path / "run"
    row = run_case(*case(override), 0, folder)
    assert row.violation is None
    assert trio.run(replay_of(folder).run).identical
    assert (folder / "job.toml").exists()
