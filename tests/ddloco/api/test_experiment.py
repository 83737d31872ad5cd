"""Experiments: their files, cells, results and pages."""

import json
import math
import re
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import msgspec
import pytest

from ddloco.api import experiment
from ddloco.api.experiment import (
    CellError,
    CellResult,
    cells,
    identity_now,
    load_experiment,
    run_cell,
    settings_digest,
    trials,
)
from ddloco.api.experiment_table import CaseRow, case_table, said_of_identity
from ddloco.cli.parser import main
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.run_identity import file_digest, said_of_sources

FILE = """
[experiment]
name = "quorum"
about = "How many are waited for."
shows = "This shows that it works."
seeds = [0, 1]
[job]
task = "tests.tasks:regression"
steps = 12
learners = 2
[sync]
fragments = 2
interval = 4
[work]
step_s = 1.0
tensors = 6
[[case]]
name = "one"
[[case]]
name = "all"
set = { "sync.quorum" = 2 }
paper = "55.4"
[[case]]
name = "diloco"
set = { "job.method" = "diloco", "sync.interval" = 4 }
[[case]]
name = "lone"
set = { "job.method" = "lone" }
"""


@pytest.fixture
def file(tmp_path):
    """An experiment file."""
    path = tmp_path / "quorum.toml"
    path.write_text(FILE)
    return path


def result(case, loss, seed=0, **more):
    """A result of a cell."""
    usual = {"steps": 24, "merges": 6, "goodput": 0.5, "up": 10**6, "down": 2 * 10**6}
    return CellResult(case, seed, loss, **{**usual, "seconds": 12.0, "took_s": 3.0, **more})


def test_a_cell_is_a_case_with_a_seed(file, tmp_path):
    """Those of the first seed first, so that a stopped experiment has all cases."""
    found = cells(load_experiment(file), tmp_path)
    assert [("one", 0), ("all", 0), ("diloco", 0), ("lone", 0), ("one", 1)] == [
        (each.case, each.seed) for each in found
    ][:5]
    assert len({each.folder for each in found}) == len(found)


def test_settings_of_the_command_line_are_for_all_cases(file):
    """A case's own come after them."""
    loaded = load_experiment(file, ["job.steps=6", "sync.quorum=1"])
    assert {6} == {each["job"]["steps"] for each in loaded.plain.values()}
    assert [1, 2] == [loaded.plain[name]["sync"]["quorum"] for name in ("one", "all")]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "all"', 'name = "one"', "two cases have one name"),
        ("seeds = [0, 1]", "seeds = []", "seeds"),
        ("seeds = [0, 1]", 'baseline = "none"', "not one of the cases"),
        ('"sync.quorum" = 2', '"sync.quorum" = 3', "case all: sync.quorum"),
        ('"sync.quorum" = 2', '"sync.quorun" = 2', "case all"),
        ("seeds = [0, 1]", "sedes = [0]", "sedes"),
        ("seeds = [0, 1]", 'time = "real"\nhours = 0.1', "a cell ends by job.steps"),
    ],
)
def test_what_is_wrong_is_named(file, old, new, said):
    """In one line, with the file."""
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError, match=said) as caught:
        load_experiment(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_difference_below_the_noise_is_none():
    """Two standard errors decide; one seed says no noise."""
    base = CaseRow("base", [result("base", loss, n) for n, loss in enumerate((2.0, 2.1, 2.2))])
    near = CaseRow("near", [result("near", loss, n) for n, loss in enumerate((2.05, 2.15, 2.25))])
    far = CaseRow("far", [result("far", loss, n) for n, loss in enumerate((3.0, 3.1, 3.2))])
    assert near.against(base) == "none (+2.4 % ± 7.8)"
    assert far.against(base) == "+47.6 % ± 7.8"
    assert base.against(base) == "-"
    gaps = [far.cells(base, other)[2] for other in (None, far, near)]
    assert ["+47.6 % ± 7.8", "-"] == gaps[:2]
    assert gaps[2].endswith(" to near")
    assert "+50.0 %" == CaseRow("one", [result("one", 3.0)]).against(
        CaseRow("two", [result("two", 2.0)])
    )
    assert "-" == CaseRow("none", [result("none", None)]).against(base)


@pytest.fixture(scope="module")
def page():
    """The script that writes the page about experiments."""
    script = Path(__file__).parents[3] / "docs" / "experiment_page.py"
    where = spec_from_file_location("experiment_page", script)
    module = module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_the_page_has_a_table_and_a_picture(file, page):
    """With the paper's column, the command, and what it shows."""
    loaded = load_experiment(file)
    found = [result("one", 2.0), result("one", 2.2, 1), result("all", 2.5), result("all", 2.6, 1)]
    lines = case_table(loaded, found)
    assert lines[0].endswith("| the paper |")
    assert "| one | 2.1000 ± 0.1414 | - | 24 | 50.0 % | 1.0 | 2.0 | 12 s | - |" == lines[2]
    text, drawn = page.pages({"quorum.toml": (loaded, found)}, "pictures")
    assert "\n* one, by seed: 0: 2.0000, 1: 2.2000\n" in text
    assert "`ddloco experiment quorum.toml`" in text
    assert "This shows that it works." in text
    assert "(pictures/experiment-quorum.svg)" in text
    assert drawn == {"experiment-quorum.svg": page.losses_svg(loaded, found)}
    assert drawn["experiment-quorum.svg"].count("<circle") == 4


TUNED = """
[experiment.tune]
key = "inner.lr"
values = [1e-3, 2e-3, 4e-3]
[job]"""


@pytest.fixture
def tuned(file):
    """An experiment file that tunes; its last case has a value of its own."""
    own = 'set = { "job.method" = "lone", "inner.lr" = 1e-3 }'
    text = FILE.replace("[job]", TUNED.lstrip()).replace('set = { "job.method" = "lone" }', own)
    file.write_text(text)
    return file


def test_each_case_gets_its_best_value(tuned, tmp_path, page):
    """By one rule; losses that are no numbers are never the best, and ties go to the lower."""
    loaded = load_experiment(tuned)
    todo = trials(loaded, tmp_path)
    assert 18 == len({each.folder for each in todo})
    assert {100, 101} == {each.seed for each in todo}
    losses = {1e-3: {"one": 2.0, "all": 3.0}, 2e-3: {"one": 2.0, "all": 2.5}}
    losses[4e-3] = {"one": 1.0, "all": 1.0, "diloco": 1.0}

    def loss(each):
        found = losses[each.tuned].get(each.case, math.nan)
        return math.nan if each.seed == 101 and each.tuned == 4e-3 else found

    tried = [result(each.case, loss(each), each.seed, tuned=each.tuned) for each in todo]
    found = cells(loaded, tmp_path, tried)
    values = {each.case: each.tuned for each in found}
    assert {"one": 1e-3, "all": 2e-3, "diloco": 1e-3, "lone": None} == values
    assert 8 + 18 == len({each.folder for each in (*found, *todo)})
    digests = [settings_digest(loaded, each) for each in (*found[:2], cells(loaded, tmp_path)[1])]
    assert 3 == len(set(digests))
    done = [result(each.case, 2.0, each.seed, tuned=each.tuned) for each in found]
    lines = case_table(loaded, [*tried, *done])
    ends = [line.split(" | ")[-2] for line in lines[2:]]
    assert ["0.001 (the lowest)", "0.002", "0.001 (the lowest)", "-"] == ends
    assert (
        "the best of 0.001, 0.002, 0.004 with seeds 100, 101"
        in page.pages({"quorum.toml": (loaded, [*tried, *done])}, "pictures")[0]
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seeds = [0, 1]", "seeds = [0, 100]", "tune.seeds: 100 is one of the seeds"),
        ("[1e-3, 2e-3, 4e-3]", "[2e-3, 1e-3]", "ascending"),
        ("[1e-3, 2e-3, 4e-3]", "[1e-3]", "values"),
        ("[1e-3, 2e-3, 4e-3]", "[-1.0, 2e-3]", "case one: inner.lr"),
        ('"inner.lr"\nvalues', '"inner.rl"\nvalues', "case one"),
    ],
)
def test_what_is_wrong_with_trials_is_named(tuned, old, new, said):
    """In one line, before anything is run."""
    tuned.write_text(tuned.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=said) as caught:
        load_experiment(tuned)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_tuning_runs_trials_first(tuned, tmp_path, capsys):
    """Each once; the same command again runs nothing, and says the same."""
    arguments = ["experiment", str(tuned), "--dir", str(tmp_path / "kept"), "--json"]
    printed = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--set", "job.steps=6"])
        assert not ended.value.code
        out, err = capsys.readouterr()
        printed.append(json.loads(out)["cells"])
    assert printed[0] == printed[1]
    assert ["18 of 18", "8 of 8"] == re.findall(r"(\d+ of \d+) cells are in", err)
    best = {each["case"]: each["tuned"] for each in printed[0][18:]}
    for case in ("one", "all", "diloco"):
        losses = {}
        for each in printed[0][:18]:
            if each["case"] == case:
                losses[each["tuned"]] = losses.get(each["tuned"], 0.0) + each["loss"]
        assert best[case] == min(losses, key=losses.get)
    assert best["lone"] is None


@pytest.mark.slow
def test_cells_run_once_and_give_the_same_again(file, tmp_path, capsys, page):
    """In virtual time only settings and seeds decide; what is there is not run again."""
    loaded = load_experiment(file)
    todo = cells(loaded, tmp_path / "one")[:4]
    first = [run_cell(loaded, each) for each in todo]
    assert None not in [each.loss for each in first]
    again = run_cell(loaded, cells(loaded, tmp_path / "two")[2])
    assert (first[2].loss, first[2].up) == (again.loss, again.up)
    assert all(each.steps >= 24 for each in first[1:3])
    (tmp_path / "kept").mkdir()
    arguments = ["experiment", str(file), "--dir", str(tmp_path / "kept"), "--json"]
    file.write_text(FILE.replace("steps = 12", "steps = 8"))
    losses = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert not ended.value.code
        out, err = capsys.readouterr()
        losses.append([each["loss"] for each in json.loads(out)["cells"]])
    assert losses[0] == losses[1]
    assert "8 of 8 cells are in" in err
    page.write_page(tmp_path / "page.md", [file], tmp_path / "kept")
    assert "| diloco |" in (tmp_path / "page.md").read_text()


@pytest.mark.slow
def test_cells_may_end_at_equal_time_or_tokens(file, tmp_path):
    """Before their jobs do, with learners that crash and come back; each cell has a result."""
    crash = 'chaos.fault=[{what="crash", who="learner-1", at_s=9.0, for_s=4.0}]'
    cases = (("hours = 0.01", "elastic-data-parallel"), ("inner_steps = 40", "diloco"))
    for limit, method in cases:
        file.write_text(FILE.replace("seeds = [0, 1]", limit))
        loaded = load_experiment(file, ["job.steps=1000", f"job.method={method}", crash])
        found = run_cell(loaded, cells(loaded, tmp_path / method)[0])
        assert found.loss is not None
        if method == "diloco":
            assert 40 <= found.steps <= 43
        else:
            assert 35.0 < found.seconds < 40.0


@pytest.fixture
def kept(file, tmp_path, monkeypatch):
    """An experiment, its first cell, and the result that this has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LR", "0.1")
    Path("tasks.py").write_text("import helper\n")
    Path("helper.py").write_text("x = 1\n")
    Path("data.txt").write_text("1 2 3\n")
    file.write_text(FILE.replace("tests.tasks:regression", "tasks:task"))
    loaded = load_experiment(file)
    cell = cells(loaded, tmp_path / "cells")[0]
    read = {"file data.txt": file_digest(Path("data.txt")), "task.env.LR": "0.1"}
    then = {"jax": version("jax"), "device": "cpu", **read}
    then |= said_of_sources({"tasks.py": "", "helper.py": ""})
    found = result("one", 2.0, identity=identity_now(then, loaded, cell))
    cell.folder.mkdir(parents=True)
    (cell.folder / "result.json").write_bytes(msgspec.json.encode(found))
    return loaded, cell, found


def test_a_result_of_another_run_is_not_taken(file, kept, monkeypatch):
    """Of other settings, source, data, variable or version: what has changed is said."""
    loaded, cell, found = kept
    assert cell.known(loaded) == (found, [])
    [_, said] = said_of_identity([found, found])
    assert f"jax {version('jax')}; data files data.txt " in said
    other = load_experiment(file, ["job.steps=6"])
    (_, [settings]) = cell.known(other)
    assert settings.startswith("the digest of its settings was ")
    Path("helper.py").write_text("x = 2\n")
    Path("data.txt").write_text("1 2 4\n")
    monkeypatch.setenv("LR", "0.2")
    (nothing, [data, source, variable]) = cell.known(loaded)
    assert nothing is None
    assert data.startswith("the file data.txt, which the task reads, was ")
    assert source.startswith("the source file helper.py was ")
    assert variable == "the variable LR, which the task reads, was 0.1, is 0.2"
    Path("data.txt").unlink()
    assert cell.known(loaded)[1][0].endswith(", is gone")
    Path("tasks.py").unlink()
    assert cell.known(loaded)[1][1].endswith(", is gone")


def test_a_result_of_another_behaviour_is_not_taken(kept, monkeypatch):
    """The version may be the same, as in development."""
    loaded, cell, _ = kept
    monkeypatch.setattr(experiment, "SEMANTICS", ("another",))
    (nothing, [said]) = cell.known(loaded)
    assert (nothing, said.partition(" was ")[0]) == (None, "the digest of its behaviour")


def test_a_result_that_was_cut_short_is_not_taken(kept):
    """The cell is run again."""
    loaded, cell, _ = kept
    path = cell.folder / "result.json"
    path.write_bytes(path.read_bytes()[:-9])
    assert cell.known(loaded) == (None, [])


def test_a_cell_that_fails_says_which_and_why(file, tmp_path):
    """With the command, and the last lines of its output."""
    file.write_text(FILE.replace("tests.tasks:regression", "tests.tasks:nothing"))
    loaded = load_experiment(file)
    with pytest.raises(CellError, match=r"lone, seed 0: ddloco run .*nothing"):
        run_cell(loaded, cells(loaded, tmp_path)[3])
