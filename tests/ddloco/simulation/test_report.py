"""``ddloco simulate``: tables, exit codes, and how a broken invariant is shown again."""

import json
import re
import shlex
from pathlib import Path

import pytest
import trio

from ddloco.cli.parser import parser
from ddloco.cli.simulate import simulate
from ddloco.cli.tape_verify import verify_folder
from ddloco.machines.syncer import syncs
from ddloco.replayer.replay_of import replay_of
from ddloco.simulation.report import FOUND, HELD

SCENARIO = """
[scenario]
name = "small"
about = "Two of them"
note = "No more than a note."
seed = 7
[job]
steps = 12
learners = 2
[sync]
fragments = 3
interval = 3
overlap = 2
[work]
tensors = 3
variance = 0.1
[[case]]
name = "first of all"
paper = { "chip goodput" = 90, time = 1.0 }
[[case]]
name = "second"
set = { "work.step_s" = 2.0 }
paper = { "chip goodput" = 80, time = 2.0 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Every test has a working folder of its own, with a scenario in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SCENARIO)
    return tmp_path


@pytest.fixture
def call(capsys):
    """Calls the command in this process: its exit code, and what it said."""

    def called(line):
        code = simulate(parser().parse_args(["simulate", *shlex.split(line), "--jobs", "1"]))
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def break_it(monkeypatch):
    """Plant a bug that every world notices."""
    monkeypatch.setattr(syncs, "merge_weight", lambda tokens, steps, rule: 1.0)


def test_a_table_has_a_row_for_each_case(call):
    """Beside what the paper says; how far off, what is meant, and over how many seeds."""
    code, out, _ = call("small.toml --seeds 2")
    assert HELD == code
    assert "Two of them" in out
    for row in ("first of all", "second"):
        assert re.search(rf"{row} .*%.*(90|80)\.0 %", out)
    assert "chip goodput: RMSE" in out
    assert re.search(r"time: RMSE 0\.\d\d over 2 cells", out)
    assert "mean of 2 seeds" in out
    assert "No more than a note." in out


def test_a_table_as_json(call):
    """Every case with its values, the mean over seeds; nothing else on standard output."""
    code, out, _ = call("small.toml --seeds 3 --json")
    said = json.loads(out)
    assert (HELD, "small") == (code, said["scenario"])
    assert ["first of all", "second"] == [row["case"] for row in said["cases"]]
    alone = [json.loads(call(f"small.toml --seed {7 + n} --json")[1]) for n in range(3)]
    mean = sum(each["cases"][0]["values"]["goodput"] for each in alone) / 3
    assert mean == pytest.approx(said["cases"][0]["values"]["goodput"])
    assert 7 == said["cases"][0]["seed"]


def test_one_case_and_other_keys(call):
    """``--case`` chooses by a part of the name, ``--set`` outweighs the file."""
    code, out, _ = call("small.toml --case second --set work.step_s=3 --json")
    [row] = json.loads(out)["cases"]
    assert (HELD, "second") == (code, row["case"])
    assert row["values"]["hours"] > 11 * 3 / 3600


def test_tapes_of_a_case_are_left_where_asked(call, here):
    """They replay."""
    code, *_ = call("small.toml --case second --dir run")
    assert HELD == code
    assert trio.run(replay_of(here / "run").run).identical


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("small.toml --case third", "no case has 'third' in its name"),
        ("small.toml --seeds 0", "--seeds 0: at least 1"),
        ("small.toml --dir run", "choose one --case and one seed"),
        ("small.toml --case second --dir run --seeds 2", "choose one --case and one seed"),
        ("small.toml --set work.step=1", "--set work.step=1: work: unknown key `step`"),
        ("small.toml --set job.steps=abc", "--set job.steps=abc: job.steps: Expected `int`"),
        ("smaller.toml", "smaller.toml"),
        ("smaller", "neither a file nor one of"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_line(call, line, said):
    """With exit code 2, and nothing is left behind."""
    code, out, err = call(line)
    assert 2 == code
    assert said in err
    assert ("", 1) == (out, len(err.strip().splitlines()))


def test_jobs_are_a_number_of_processes(capsys):
    """0 stands for one per core; less is a mistake."""
    code = simulate(parser().parse_args(["simulate", "small.toml", "--jobs", "-1"]))
    assert 2 == code
    assert "--jobs -1" in capsys.readouterr().err


def shown_again(err):
    """The command and the folder that were printed."""
    return re.search("again: ddloco simulate (.*)", err)[1], re.search("tapes: (.*)", err)[1]


def test_a_broken_invariant_is_shown_again(call, monkeypatch):
    """Exit code 1: the seed, the command that shows it again, and tapes that show it too."""
    break_it(monkeypatch)
    code, _, err = call("small.toml --case second --seed 3 --set work.step_s=3")
    assert FOUND == code
    assert re.search("^second, seed 3: weights-valid: .* for ", err, re.MULTILINE)
    again, folder = shown_again(err)
    assert "small.toml --case second --seed 3 --set work.step_s=3" == " ".join(shlex.split(again))
    held, lines = verify_folder(Path(folder), as_json=False)
    assert not held
    assert [line.split()[0] for line in lines if "VIOLATED" in line] == ["weights-valid"]
    code, _, once_more = call(again)
    assert FOUND == code
    assert err.splitlines()[0] == once_more.splitlines()[0]
    assert folder != shown_again(once_more)[1]
