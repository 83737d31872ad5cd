"""Modules that a run folder keeps: found after all others, and compiled from their source."""

import hashlib
import importlib
import py_compile
import sys

import pytest

from ddloco.stage.process.entry_point import KeptFinder, KeptModules

FILES = {
    "kept_top.py": "from kept_parts import deep\nX = deep.Y\n",
    "kept_parts/deep.py": "from . import deeper\nY = deeper.Z\n",
    "kept_parts/deeper.py": "Z = 7\n",
    "kept_whole/__init__.py": "",
    "kept_parts/stray.py": "",
    "json.py": "STRAY = True\n",
}
"""Of these ``stray`` is not listed."""


@pytest.fixture
def folder(tmp_path):
    """A run folder's source, with its finder."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    checked = {name: text for name, text in FILES.items() if name != "kept_parts/stray.py"}
    digests = {name: hashlib.sha256(text.encode()).digest() for name, text in checked.items()}
    finder = KeptFinder(KeptModules(str(tmp_path), digests))
    finder.install()
    yield tmp_path
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.startswith("kept_")]:
        del sys.modules[name]


def test_kept_modules_are_found_with_their_packages(folder):
    """Also in folders without ``__init__.py``; a module that is not listed is not found."""
    assert importlib.import_module("kept_top").X == 7
    assert importlib.import_module("kept_whole").__path__ == [str(folder / "kept_whole")]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("kept_parts.stray")


@pytest.mark.usefixtures("folder")
def test_what_is_found_elsewhere_stays_there(monkeypatch):
    """A module of this name in the run folder does not replace another one."""
    monkeypatch.delitem(sys.modules, "json")
    assert not hasattr(importlib.import_module("json"), "STRAY")


def test_compiled_code_beside_the_source_is_not_executed(folder):
    """It may be anybody's: only the source was looked at."""
    source = folder / "kept_parts" / "deeper.py"
    text = source.read_text()
    source.write_text("Z = 8\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_text(text)
    assert importlib.import_module("kept_parts.deeper").Z == 7


def test_what_was_changed_since_it_was_checked_is_not_executed(folder):
    """Whoever can write the run folder may do so in between."""
    (folder / "kept_top.py").write_text("X = 8\n")
    with pytest.raises(ImportError, match=r"kept_top.py has changed since it was checked"):
        importlib.import_module("kept_top")


def test_other_ends_of_lines_are_no_change(folder):
    """Texts are compared, as they were when they were checked."""
    path = folder / "kept_top.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert importlib.import_module("kept_top").X == 7
