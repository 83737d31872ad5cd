"""``ddloco simulate RUN``: the run's own figures beside those of its simulations."""

import json
import shlex

import pytest

from ddloco.cli.parser import parser
from ddloco.cli.simulate import simulate
from ddloco.debugger.recorded_job import open_job
from ddloco.simulation.before_after import outcome_of
from ddloco.simulation.experiment import run_case
from ddloco.simulation.scenario import cases_of

SCENARIO = """
[scenario]
name = "recorded"
seed = 3
[job]
steps = 48
learners = 3
[sync]
fragments = 3
interval = 12
[work]
step_s = 1.0
variance = 0.2
[learner.learner-2]
factor = 3.0
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of three learners, one of them slow."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "scenario.toml").write_text(SCENARIO)
    [(case, scenario)] = cases_of(folder / "scenario.toml", ())
    assert run_case(case, scenario, 3, folder / "run").violation is None
    return folder / "run"


@pytest.fixture
def call(capsys, recorded):
    """Calls the command for the run: its exit code, and what it said."""

    def called(line=""):
        given = parser().parse_args(["simulate", str(recorded), *shlex.split(line)])
        code = simulate(given)
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def outcomes(said):
    """The outcomes that were printed as JSON."""
    return json.loads(said)["outcomes"]


def test_without_a_change_the_simulation_comes_to_what_the_run_came_to(call, recorded):
    """The recorded figures are those of the tapes; the log's durations are rounded a little."""
    code, said, _ = call("--json")
    assert code == 0
    shown = outcomes(said)
    assert list(shown) == ["recorded", "simulated"]
    simulated = shown["simulated"]
    assert shown["recorded"] == {
        name: value if name == "shares" else pytest.approx(value, abs=1e-4)
        for name, value in simulated.items()
    }
    told = outcome_of(recorded)
    assert (shown["recorded"]["merges"], shown["recorded"]["merged_tokens"]) == (
        told.merges,
        told.merged_tokens,
    )
    assert told.merges == 12
    run = open_job(recorded)
    trained = sum(event.tokens for who in run.learners for *_, event in run.steps_of(who))
    assert trained / 2 < told.merged_tokens <= trained
    assert set(told.shares) == {"learner-0", "learner-1", "learner-2"}


def test_a_learner_that_is_left_out_is_in_no_merge(call):
    """The run, its simulation, and that without the learner, each in a column."""
    code, said, _ = call("--without learner-2 --json")
    assert code == 0
    shown = outcomes(said)
    assert list(shown) == ["recorded", "simulated", "changed"]
    assert set(shown["changed"]["shares"]) == {"learner-0", "learner-1"}
    assert shown["changed"]["contributions"] < shown["simulated"]["contributions"]
    code, said, _ = call("--without learner-2")
    assert code == 0
    assert all(name in said for name in ("recorded", "simulated", "changed", "merges with"))


def test_with_fewer_learners_nothing_is_violated(call):
    """Those that the job does not have any more do not join; their tables are of no account."""
    code, said, said_so = call("--set job.learners=2 --json")
    assert (code, said_so) == (0, "")
    assert set(outcomes(said)["changed"]["shares"]) == {"learner-0", "learner-1"}
    assert outcomes(said)["changed"]["merges"] == 12


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--without learner-9", "no such learner; the run has learner-0 to learner-2"),
        ("--without learner-0 --without learner-1 --without learner-2", "leaves no learner"),
        ("--without learner-0 --set sync.quorum=3", "leaves 2 of 3 learners, and sync.quorum is 3"),
    ],
)
def test_who_cannot_be_left_out_is_said_in_one_line(call, line, said):
    """With what would be right."""
    code, _, complaint = call(line)
    assert code == 2
    assert said in complaint
    assert complaint.count("\n") == 1


def test_only_a_run_has_learners_to_leave_out(capsys, recorded):
    """A scenario says itself who takes part."""
    scenario = recorded.parent / "scenario.toml"
    assert 2 == simulate(parser().parse_args(["simulate", str(scenario), "--without", "learner-0"]))
    assert "want a run folder" in capsys.readouterr().err
