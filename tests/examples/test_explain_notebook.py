"""The notebook about recorded runs: each of its cells is executed, in order, as a kernel does."""

import ast
import json
import re
import tempfile
from pathlib import Path

import ddloco
from ddloco.cli.examples import put_template
from ddloco.debugger.api import Position, Run

NOTEBOOK = Path(__file__).parents[2] / "examples" / "explain.ipynb"

NOT_SHOWN = {"actors", "clock", "cluster", "forward", "gaps", "machine", "merge", "recorded", "ref"}
"""Of the interface, what the notebook leaves to the documentation."""


def cells():
    """The notebook's cells, checked to be those of format 4."""
    read = json.loads(NOTEBOOK.read_text())
    assert (read["nbformat"], read["nbformat_minor"]) == (4, 5)
    assert {each["cell_type"] for each in read["cells"]} == {"markdown", "code"}
    assert len({each["id"] for each in read["cells"]}) == len(read["cells"])
    return read["cells"]


def execute(source, names):
    """Execute a cell; the value of a last line that is an expression is shown, as in a notebook."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102, it is our own notebook
    if last is not None:
        print(repr(eval(compile(ast.Expression(last.value), "cell", "eval"), names)))  # noqa: S307


def test_every_cell_runs_and_says_what_the_text_promises(tmp_path, monkeypatch, capsys):
    """Who is absent and why, causes, arrays, a merge without a learner, and two runs compared."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names = {}
    for cell in cells():
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            execute("".join(cell["source"]), names)
    said = capsys.readouterr().out
    assert f"<run {tmp_path}" in said
    assert "learner-1.1 starts" in said
    assert "without learner-1: not connected" in said
    assert " because " in said
    assert "inner step 50: <learner-0.1:" in said
    before = re.search(r"before its launch: <syncer.1:(\d+) ", said)
    assert int(before[1]) < int(names["merge"].launched.partition(":")[2])
    assert "the whole: the merge moved it by" in said
    assert "recorded differently: setting: outer.lr = 0.7 and 0.4" in said
    assert "learner-2: " in said
    assert isinstance(names["run"], ddloco.Run)


def test_it_shows_the_interface():
    """Every public method of a run and of an event, but for those that are named here."""
    sources = "\n".join("".join(each["source"]) for each in cells())
    public = {name for kind in (Run, Position) for name in vars(kind) if not name.startswith("_")}
    assert {name for name in public - NOT_SHOWN if f".{name}" not in sources} == set()
    assert NOT_SHOWN <= public


def test_it_is_among_the_examples_that_are_copied(tmp_path):
    """``ddloco init --template examples`` gives it to users."""
    new, _ = put_template(tmp_path, "examples")
    assert "explain.ipynb" in {each.name for each in new}


def test_no_tool_has_left_outputs_in_it():
    """The file stays as small as its text."""
    assert NOTEBOOK.stat().st_size < 10_000
