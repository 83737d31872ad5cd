"""What a task reads from the environment is on the tape, and what it sets too late is refused."""

import os
import subprocess
from pathlib import Path

import pytest

from ddloco.stage.process.run_identity import file_digest
from ddloco.workers import task_environment
from ddloco.workers.environment import RECORDED
from ddloco.workers.task import TaskError
from ddloco.workers.task_environment import (
    FILES_MAX,
    NAMES_MAX,
    TaskReads,
    refuse_late_settings,
    watch_environment,
)


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Runs a text as user code, in a process whose variables are watched, and as they were after
    it."""
    before = dict(os.environ)
    monkeypatch.setattr(os, "environ", os.environ)
    for name, value in {"LR": "0.03", "TOKEN": "hf_abc", "FLAG": "True", "XLA_FLAGS": "-x"}.items():
        monkeypatch.setitem(os.environ, name, value)
    watch_environment()

    def run(text, name="task.py"):
        path = tmp_path / name
        path.write_text(text)
        os.environ.read.pop("PYTEST_CURRENT_TEST", None)  # The tests' own code reads it.
        exec(compile(text, str(path), "exec"), {})  # noqa: S102, the text of this test

    yield run
    for name in {*os.environ, *before} - {"PYTEST_CURRENT_TEST"}:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.environ['LR']",
        "import os; os.environ.get('LR')",
        "import os; os.getenv('LR', '1')",
        "from os import environ; 'LR' in environ",
        "import os; os.environ.setdefault('LR', '1')",
        "import os; os.environ.copy; float(os.environ['LR'])",
    ],
)
def test_each_way_to_read_one_is_noticed(task, text):
    """A number is recorded as it is."""
    task(text)
    assert TaskReads().new() == {"task.env.LR": "0.03"}


def test_secrets_are_not_recorded_and_can_be_compared(task):
    """Only a digest; a switch is no secret, and what is not there has no value."""
    task("import os; [os.environ.get(name) for name in ('TOKEN', 'FLAG', 'GONE')]")
    found = TaskReads().new()
    assert found.pop("task.env.TOKEN").startswith("sha256 ")
    assert found == {"task.env.FLAG": "True", "task.env.GONE": "not set"}
    assert "hf_abc" not in str(TaskReads().new())


def test_the_first_value_counts(task):
    """What the task sets itself is no setting of the run."""
    task("import os; os.environ.get('LR'); os.environ['LR'] = '7'; os.environ.get('LR')")
    assert TaskReads().new() == {"task.env.LR": "0.03"}


def test_others_read_what_they_want(task):
    """Neither what libraries read, nor what is recorded anyway, nor a copy of
    all of them."""
    task("import tempfile; tempfile.gettempdir()")
    task("import os; os.environ['XLA_FLAGS']")
    assert TaskReads().new() == {}
    for number in range(NAMES_MAX + 1):
        os.environ[f"OF_THE_TEST_{number}"] = "1"
    task("import os; dict(os.environ)")
    assert TaskReads().new() == {}


@pytest.mark.parametrize(
    "text",
    [
        "with open('data.txt') as file: file.read()",
        "import pathlib; pathlib.Path('data.txt').read_text()",
        "import numpy; numpy.loadtxt('data.txt')",
        "import os; os.close(os.open('data.txt', os.O_RDONLY))",
    ],
)
def test_files_that_a_task_opens_are_noticed(task, tmp_path, monkeypatch, text):
    """Each way to open one, once, by its name in this folder and the digest of its bytes."""
    monkeypatch.setattr(task_environment, "_opened", None)
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("1 2 3\n")
    watch_environment()
    reads = TaskReads()
    task(text)
    assert reads.new() == {"file data.txt": file_digest(Path("data.txt"))}
    task(text)
    assert reads.new() == {}


def test_a_file_has_its_digest_wherever_the_task_has_gone(task, tmp_path, monkeypatch):
    """Its name is as of the folder in which the worker began."""
    monkeypatch.setattr(task_environment, "_opened", None)
    (tmp_path / "within").mkdir()
    (tmp_path / "data.txt").write_text("1\n")
    monkeypatch.chdir(tmp_path)
    watch_environment()
    task("open('data.txt').close(); import os; os.chdir('within')")
    assert TaskReads().new() == {"file data.txt": file_digest(tmp_path / "data.txt")}


def test_files_that_are_no_data_are_not_noticed(task, tmp_path, monkeypatch):
    """What is written, imported, or of the system; and no more than a few."""
    monkeypatch.setattr(task_environment, "_opened", None)
    monkeypatch.chdir(tmp_path)
    Path("helping.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    watch_environment()
    for mode in ("w", "a", "r+"):
        task(f"open('out.txt', {mode!r}).close()")
    task("import helping; open('/proc/self/status').close(); open('/etc/hosts').close()")
    Path(".hidden").mkdir()
    for name in (".token", ".hidden/data.txt"):
        Path(name).touch()
        task(f"open({name!r}).close()")
    task("import contextlib\nwith contextlib.suppress(OSError): open('none.txt')")
    for number in range(FILES_MAX + 5):
        Path(f"{number}.txt").touch()
        task(f"open('{number}.txt').close()")
    found = TaskReads().new()
    assert {*found} <= {f"file {number}.txt" for number in range(FILES_MAX + 5)}
    assert len(found) == FILES_MAX


def test_what_is_watched_is_the_environment(task):
    """It is written through to the process, for what the task starts."""
    task("import os; os.environ['MADE'] = '5'; del os.environ['FLAG']")
    said = subprocess.check_output(["sh", "-c", "echo $MADE $FLAG"], text=True)
    assert said.split() == ["5"]


def test_a_setting_that_comes_too_late_is_refused(task):
    """JAX has read it; nothing else would say that it has no effect."""
    before = dict(os.environ)
    refuse_late_settings("m:task", before)
    task("import os; os.environ['JAX_ENABLE_X64'] = '0'; os.environ['JAX_NO_SUCH'] = '1'")
    refuse_late_settings("m:task", before)
    task("import os; os.environ['JAX_ENABLE_X64'] = '1'")
    with pytest.raises(TaskError, match=r"^task m:task: sets JAX_ENABLE_X64 in os.env"):
        refuse_late_settings("m:task", before)


def test_a_setting_after_the_start_is_refused(task):
    """Also one that JAX reads only when it opens its devices; not those of another library, which
    people keep off the GPU as they load their data."""
    before = dict(os.environ)
    refuse_late_settings("m:task", before, started=True)
    for name in ("CUDA_VISIBLE_DEVICES", "TF_DETERMINISTIC_OPS"):
        task(f"import os; os.environ[{name!r}] = '1'")
    refuse_late_settings("m:task", before, started=True)
    task("import os; os.environ['XLA_FLAGS'] = '--xla_none'")
    refuse_late_settings("m:task", before)
    with pytest.raises(
        TaskError, match=r'set XLA_FLAGS = "--xla_none" in \[worker.env\] of the job'
    ):
        refuse_late_settings("m:task", before, started=True)


def test_a_setting_that_was_made_otherwise_as_well_is_none(task, monkeypatch):
    """The task has called ``jax.config.update``, too."""
    before = dict(os.environ)
    task("import os; os.environ['JAX_ENABLE_X64'] = 'yes'")
    monkeypatch.setattr(task_environment, "jax", type("Jax", (), {"config": Config}))
    refuse_late_settings("m:task", before)


class Config:
    """JAX's, after an update."""

    jax_enable_x64 = True


def test_the_variables_of_jax_are_recorded():
    """So a late one that is not among them changes no arithmetic."""
    assert {"JAX_ENABLE_X64", "JAX_DEFAULT_MATMUL_PRECISION"} <= RECORDED
