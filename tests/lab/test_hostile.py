"""The command that runs hostile worlds: totals, exit codes, and how a failure is shown again."""

import json
import re
import shlex
from pathlib import Path

import pytest
import trio

from ddloco.machines.syncer import syncs
from ddloco.replayer.replay_of import replay_of
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from tests.lab import hostile, hostile_world


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys, here):
    """Calls the command in this process: its exit code, and what it said."""

    def called(line):
        code = hostile.main([*shlex.split(line), "--jobs", "1"])
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def break_it(monkeypatch):
    """Plant a bug that every world notices."""
    monkeypatch.setattr(syncs, "merge_weight", lambda tokens, steps, rule: 1.0)


def shown_again(err):
    """The options and the folder that were printed."""
    return re.search("again: python -m tests.lab.hostile (.*)", err)[1], re.search(
        "tapes: (.*)", err
    )[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [("--seeds 0", "--seeds 0: at least 1"), ("--seeds 2 --dir run", "choose one seed")],
)
def test_what_cannot_be_used_is_said_in_a_line(call, line, said):
    """With exit code 2, and nothing is left behind."""
    code, out, err = call(line)
    assert 2 == code
    assert said in err
    assert ("", 1) == (out, len(err.strip().splitlines()))


def test_worlds_that_hold(call):
    """What was done in all of them, in one line, and that everything held."""
    code, out, err = call("--seed 3 --seeds 4")
    assert (HELD, "") == (code, err.strip())
    assert re.search(r"^4 worlds .* 0 violations$", out, re.MULTILINE)
    assert "held: every invariant in every world" in out


def test_worlds_as_json(call):
    """Totals, and the seeds that failed."""
    _, out, _ = call("--seed 3 --seeds 2 --json")
    said = json.loads(out)
    outcomes = [hostile_world.run_seed(3), hostile_world.run_seed(4)]
    assert {"worlds": 2, "violations": 0, "seeds": []}.items() <= said.items()
    assert sum(each.events for each in outcomes) == said["events"]
    assert sum(each.merges for each in outcomes) == said["merges"]


def test_a_world_leaves_its_tapes_where_asked(call, here):
    """With job file and log; they replay."""
    code, *_ = call("--seed 8 --dir run")
    assert HELD == code
    assert {"job.toml", "tapes"} <= {path.name for path in (here / "run").iterdir()}
    assert trio.run(replay_of(here / "run").run).identical


@pytest.mark.parametrize("more", ["", " --json", " --dir run"])
def test_a_broken_world_is_shown_again(call, monkeypatch, more):
    """Exit code 1: seed, command and tapes, however it is printed."""
    break_it(monkeypatch)
    code, out, err = call("--seed 5" + more)
    assert FOUND == code
    assert "seed 5: weights-valid" in err
    again, folder = shown_again(err)
    assert "--seed 5" == again
    assert (Path(folder) / "tapes").is_dir()
    assert ("run" == folder) == (more == " --dir run")
    if "json" in more:
        [failed] = json.loads(out)["seeds"]
        assert (5, "weights-valid") == (failed["seed"], failed["invariant"])
    else:
        assert "failed" in out
    assert FOUND == call(again)[0]


def test_not_every_failure_is_listed(call, monkeypatch):
    """Ten of them are enough to begin with; the count is of all."""
    break_it(monkeypatch)
    monkeypatch.setattr(hostile, "SHOWN_MAX", 2)
    code, out, err = call("--seeds 5")
    assert FOUND == code
    assert (2, True) == (err.count("again:"), "5 violations" in out)


@pytest.mark.parametrize("invariant", ["determinism-check", "record-is-inert"])
def test_a_second_run_that_differs_is_found(call, monkeypatch, invariant):
    """One seed in twenty is run again, plainly and with tapes."""
    run, count = hostile_world.run_seed, []

    def differs(seed, tapes=None, *, lying=False):
        outcome = run(seed, tapes, lying=lying)
        count.append(tapes)
        if (tapes is None) == (invariant == "determinism-check") and len(count) > 1:
            outcome.trail = "another"
        return outcome

    monkeypatch.setattr(hostile_world, "run_seed", differs)
    code, _, err = call("--seed 20")
    assert FOUND == code
    assert f"seed 20: {invariant}: " in err
