"""The source of a task: what it loads from its own folder, kept, and compared line by line."""

import sys
import types
from pathlib import Path

import pytest

import ddloco
from ddloco.workers import task_sources
from ddloco.workers.task_sources import (
    changed_lines,
    keep_sources,
    kept_sources,
    of_the_user,
    sources_of,
)


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A task that imports a module beside it, a package, and something installed."""
    files = {
        "my_task_module.py": "import json, my_helper_module\nfrom my_package.deep import x\n",
        "my_helper_module.py": "rate = 0.1\n",
        "my_package/__init__.py": "",
        "my_package/deep.py": "x = 1\n",
        "my_other_module.py": "unused = True\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    __import__("my_task_module")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_what_a_task_imports_from_its_folder_is_its_source(task):
    """What it does not import, and what is installed, is not."""
    found = sources_of("my_task_module")
    assert list(found) == [
        "my_helper_module.py",
        "my_package/__init__.py",
        "my_package/deep.py",
        "my_task_module.py",
    ]
    assert found["my_helper_module.py"] == "rate = 0.1\n"


def test_links_are_followed(task, monkeypatch):
    """A module that was found through a linked folder, or that is a link, is where it really is."""
    (task / "elsewhere").mkdir()
    (task / "elsewhere" / "my_linked_module.py").write_text("y = 1\n")
    (task / "my_linked_module.py").symlink_to(task / "elsewhere" / "my_linked_module.py")
    (task / "through").symlink_to(task)
    through = types.ModuleType("my_module_through_a_link")
    through.__file__ = str(task / "through" / "my_other_module.py")
    monkeypatch.setitem(sys.modules, through.__name__, through)
    __import__("my_linked_module")

    found = sources_of("my_task_module")
    assert {"elsewhere/my_linked_module.py", "my_other_module.py"} <= set(found)
    assert not {"my_linked_module.py", "through/my_other_module.py"} & set(found)


def test_sources_are_kept_once_and_read_again(task, tmp_path):
    """A second actor of the same run changes nothing."""
    run = tmp_path / "run"
    found = sources_of("my_task_module")
    keep_sources(run, found)
    keep_sources(run, {**found, "my_helper_module.py": "rate = 9\n"})
    assert kept_sources(run) == found


def test_changed_lines_are_shown():
    """Each file on one line, with the lines that differ."""
    then = {"a.py": "x = 0.1\ny = 2\n", "b.py": "", "c.py": "same\n"}
    now = {"a.py": "x = 0.1000001\ny = 2\n", "c.py": "same\n"}
    assert list(changed_lines(then, now)) == [
        "a.py: @@ -1 +1 @@ | -x = 0.1 | +x = 0.1000001",
        "b.py: only then",
    ]
    assert list(changed_lines({}, now)) == []


def test_what_cannot_be_written_ends_nothing(tmp_path, monkeypatch):
    """A run folder that is a file, and more than fits."""
    (tmp_path / "file").write_text("")
    keep_sources(tmp_path / "file", {"a.py": "x"})
    assert kept_sources(tmp_path / "file") == {}
    monkeypatch.setattr(task_sources, "BYTES_MAX", 3)
    assert sources_of("json") == {}


def test_source_that_every_host_has_is_not_sent():
    """Ddloco's own, where the task lies in its checkout; a module of the user's with such a name
    stays."""
    own = Path(ddloco.__file__).read_text()
    theirs = {"task.py": "", "clocks.py": "MINE = True"}
    assert of_the_user({**theirs, "ddloco/__init__.py": own}) == theirs
    changed = {**theirs, "ddloco/__init__.py": "MINE = True"}
    assert of_the_user(changed) == changed
