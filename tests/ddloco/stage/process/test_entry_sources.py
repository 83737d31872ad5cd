"""The source files of a task are found without executing any, as an import would find them."""

import hashlib
from pathlib import Path

import pytest

from ddloco.stage.process.entry_point import KeptModules, NamedError
from ddloco.stage.process.entry_sources import source_digests

FILES = {
    "job.py": "import parts.deep, numpy\nfrom parts import near as n\nraise SystemExit\n",
    "parts/__init__.py": "from . import beside\n",
    "parts/deep.py": "from .within.far import X\n",
    "parts/near.py": "def f():\n    import late\n",
    "parts/beside.py": "from .. import nothing\nfrom ... import nothing\n",
    "parts/within/far.py": "X = (\n",
    "late.py": "import job\r\n",
    "never.py": "",
    "numpy.txt": "",
    "ddloco.py": "",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A task's folder: what it imports, what that does, and what nothing does."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(text.encode())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_a_module_imports_is_found(folder):
    """Directly or not, late or not, by a name or a path; no package that is installed, nothing that
    is not imported, and what cannot be parsed as it is. Nothing is executed."""
    found = source_digests("task", "job:task")
    assert {*found} == {*FILES} - {"never.py", "numpy.txt", "ddloco.py"}
    assert found["parts/within/far.py"] == hashlib.sha256(b"X = (\n").hexdigest()
    assert found["late.py"] == hashlib.sha256(b"import job\n").hexdigest()
    (folder / "parts" / "near.py").unlink()
    assert {*found} - {*source_digests("task", "job:task")} == {"parts/near.py", "late.py"}


def test_a_module_in_a_folder_names_its_path(folder):
    """Its name is relative to the folder that it is imported from."""
    found = source_digests("task", "parts.deep:task")
    assert {*found} == {
        "parts/deep.py",
        "parts/__init__.py",
        "parts/beside.py",
        "parts/within/far.py",
    }


def test_what_a_run_folder_keeps_has_the_digests_that_were_checked(folder, tmp_path, monkeypatch):
    """Of the files that the task imports."""
    digests = {name: hashlib.sha256(text.encode()).digest() for name, text in FILES.items()}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = source_digests("task", "job:task", KeptModules(str(folder), digests))
    assert {*found} == {*FILES} - {"never.py", "numpy.txt", "ddloco.py"}
    assert found["job.py"] == digests["job.py"].hex()
    with pytest.raises(NamedError, match="there is no module jobs"):
        source_digests("task", "jobs:task", KeptModules(str(folder), digests))


def test_an_installed_task_has_the_files_of_its_own_package():
    """Not those of all packages."""
    found = source_digests("task", "msgspec.json:decode")
    assert {Path(name).parts[0] for name in found} == {"msgspec"}
