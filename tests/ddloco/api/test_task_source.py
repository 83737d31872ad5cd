"""Tasks that are given as functions: named, or taken out of a notebook with all that they use."""

import linecache
import sys
import types

import pytest

import ddloco
from ddloco.api.task_source import module_text, named
from ddloco.stage.process.entry_point import pinned_name, pinned_text
from tests import tasks

CELLS = [
    """
import json as j
import xml.etree.ElementTree
from collections import OrderedDict, deque as queue
from math import pi
""",
    """
SIZES = {"tiny": (1, 2)}
table = bytearray(3)
""",
    """
def once(f):
    return f

class Base:
    size: "Unknown" = 3
""",
    """
class Task(Base):
    def init(self, key: Unknown = None) -> Nothing:
        return OrderedDict(a=helper(key))
""",
    """
def helper(x):
    return [x, pi, SIZES, j.dumps(x), xml.etree.ElementTree.__name__, queue([x]), len("")]
""",
    """
@once
def task(width=2):
    return Task()
""",
    """
def wrong():
    return table

def open_ended():
    return nowhere
""",
]


@pytest.fixture
def notebook(monkeypatch):
    """The names of a notebook whose cells were executed, as IPython does it."""
    main = types.ModuleType("__main__")
    names = vars(main)
    names["In"] = CELLS
    monkeypatch.setitem(sys.modules, "__main__", main)
    for number, cell in enumerate(CELLS):
        file = f"<cell {number} of a test>"
        monkeypatch.setitem(
            linecache.cache, file, (len(cell), None, cell.splitlines(keepends=True), file)
        )
        code = "from __future__ import annotations\n" + cell[1:]
        exec(compile(code, file, "exec"), names)  # noqa: S102, cells of this file
    return names


def test_a_notebooks_task_becomes_a_module_that_works_alone(notebook):
    """Functions, classes, decorators, imports and constants come along, each once; annotations
    that stand for nothing do no harm."""
    text = module_text(notebook["task"])
    alone = {"__name__": "alone"}
    exec(compile(text, "alone.py", "exec"), alone)  # noqa: S102, made of cells of this file

    assert alone["task"]().init(1) == notebook["task"]().init(1)
    assert "table" not in text
    assert text.count("def helper") == 1
    assert text == module_text(notebook["task"])


def test_what_is_not_in_the_source_is_named(notebook):
    """A value that is no literal, a name that stands for nothing, and a source that is gone."""
    with pytest.raises(ddloco.ConfigError, match=r"task wrong: wrong uses table.*\(bytearray\)"):
        named(notebook["wrong"])
    with pytest.raises(ddloco.ConfigError, match="uses nowhere, which is not defined"):
        named(notebook["open_ended"])
    exec("def typed(): pass", notebook)  # noqa: S102, as at a prompt
    with pytest.raises(ddloco.ConfigError, match="the source of typed cannot be had"):
        named(notebook["typed"])


def test_functions_of_modules_are_named(tmp_path, monkeypatch):
    """A module that workers find is named; one that they would not find is refused."""
    assert named(tasks.regression) == ("tests.tasks:regression", "")
    assert named("a.b:c") == ("a.b:c", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "elsewhere.py").write_text("def task(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path / "there"))
    import elsewhere

    with pytest.raises(ddloco.ConfigError, match=r"start in .*there, or install"):
        named(elsewhere.task)


def test_a_script_elsewhere_may_not_need_what_lies_beside_it(tmp_path, monkeypatch, notebook):
    """`python there/script.py` finds modules in `there`, and workers do not: a task of the script
    that imports one is refused, in one line with the way out, and so is a name in it."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "sibling.py").write_text("def task(): pass\n")
    cell = "import sibling\ndef needs(): return sibling.task()\ndef needs_not(): return pi\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "there"))
    notebook["In"] = [*CELLS, cell]
    exec(compile(cell, "<typed>", "exec"), notebook)  # noqa: S102, as in a script
    said = r"not sibling from .*there; start in .*there, or install it"

    with pytest.raises(ddloco.ConfigError, match=f"task needs: workers.*{said}"):
        named(notebook["needs"])
    with pytest.raises(ddloco.ConfigError, match=f"task sibling:task: workers.*{said}"):
        named("sibling:task")
    assert named(notebook["needs_not"])[1]
    monkeypatch.chdir(tmp_path / "there")
    assert "import sibling" in named(notebook["needs"])[1]
    assert named("sibling:task") == ("sibling:task", "")


def test_what_has_no_name_is_refused():
    """Lambdas, functions inside of functions, and what is no function."""

    def inner():
        pass

    with pytest.raises(ddloco.ConfigError, match="is a lambda"):
        named(lambda: None)
    with pytest.raises(ddloco.ConfigError, match="made inside of a function"):
        named(inner)
    with pytest.raises(ddloco.ConfigError, match="want a function"):
        named(3)  # type: ignore[arg-type]


def test_only_the_text_that_a_pinned_module_is_named_after_is_used(tmp_path):
    """A file that was changed, or has another name, is no pinned module."""
    name = pinned_name("x = 1\n")
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "other.py").write_text("x = 1\n")

    assert pinned_text(tmp_path, f"{name}:task") == "x = 1\n"
    assert not pinned_text(tmp_path, "other:task")
    (tmp_path / f"{name}.py").write_text("x = 2\n")
    assert not pinned_text(tmp_path, f"{name}:task")
