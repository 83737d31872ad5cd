"""A misspelled name is answered with the one that was meant; a name like no other is not."""

from typing import get_args, get_type_hints

import pytest

from ddloco.job.config import Job, job_from
from ddloco.simulation.scenario import Scenario
from ddloco.stage.files.faults import Faults
from ddloco.stage.files.near_miss import did_you_mean
from ddloco.stage.files.toml import ConfigError, Section
from ddloco.stage.process.entry_point import NamedError, called, check_function
from ddloco.stage.process.entry_sources import source_digests

FAULT = {"what": "crash", "who": "learner-1", "at_s": 1.0}


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"sync": {"qourum": 1}}, "unknown key `qourum`; did you mean sync.quorum?"),
        ({"sync": {"learners": 1}}, "unknown key `learners`; did you mean job.learners?"),
        ({"steps": 3}, "unknown key `steps`; did you mean job.steps?"),
        ({"synk": {}}, "unknown key `synk`; did you mean sync?"),
        ({"learner": {"learner-0": {"factr": 2}}}, "did you mean learner[...].factor?"),
        ({"chaos": {"fault": [{**FAULT, "wat": 1}]}}, "did you mean chaos.fault[0].what?"),
        ({"sync": {"pull": "freshh"}}, "want one of fresh, unmerged; did you mean fresh?"),
        ({"tape": {"level": "x"}}, "Invalid enum value 'x'; want one of events, off"),
        ({"sync": {"xyzzy": 1}}, "sync: unknown key `xyzzy`"),
    ],
)
def test_keys_and_choices(plain, said):
    """Keys of this table come first, then the same key of another; enumerations list all."""
    with pytest.raises(ConfigError) as error:
        job_from({"job": {"task": "a:b"}, **plain}, "job.toml")

    line = str(error.value)
    if "want one of fresh" in said:
        assert "unmerged" in line
        assert line.endswith("did you mean fresh?")
    else:
        assert line.endswith(said)


@pytest.mark.parametrize("kind", [Job, Faults, Scenario])
def test_no_regex_reaches_a_user(kind):
    """Whatever has a pattern says in words what it wants, for the error line."""

    def bounds(part):
        for each in get_type_hints(part, include_extras=True).values():
            yield from getattr(each, "__metadata__", ())
            for inner in (each, *get_args(each)):
                if isinstance(inner, type) and issubclass(inner, Section):
                    yield from bounds(inner)

    found = list(bounds(kind))
    assert found
    assert all(each.description for each in found if each.pattern)


def test_names_that_are_like_no_other():
    """Names that are too different are not suggested."""
    assert did_you_mean("zzz", ["quorum", "steps"]) == ""


def test_tasks(tmp_path, monkeypatch):
    """A function of the module, and a module of the current folder or of a folder in it."""
    with pytest.raises(NamedError, match=r"no function regresion; did you mean regression\?"):
        called("task", "tests.tasks:regresion", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "classifier.py").write_text("")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "model.py").write_text("")
    with pytest.raises(NamedError, match=r"installed; did you mean classifier\?"):
        source_digests("task", "clasifier:task")
    with pytest.raises(NamedError, match=r"installed; did you mean inner.model\?"):
        source_digests("task", "inner.modell:task")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def task(): pass", True),
        ("task = lambda: 1", True),
        ("from other import thing as task", True),
        ("try:\n    import task\nexcept ImportError: pass", True),
        ("from other import *", True),
        ("def __getattr__(name): return 1", True),
        ("this is no Python", True),
        ("def tsk(): pass\nprint(task)", False),
        ("class A:\n    def task(self): pass", False),
    ],
)
def test_a_task_is_looked_for_in_the_source(source, found, tmp_path, monkeypatch):
    """Before a run folder is made; what the source cannot tell is left to the worker."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(source)
    if found:
        check_function("task", "mine:task")
        return
    with pytest.raises(NamedError, match="mine has no function task"):
        check_function("task", "mine:task")


def test_what_is_imported_is_not_meant(tmp_path, monkeypatch):
    """A misspelled function is no module that has a similar name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import tasks\ndef tesk(): pass\n")
    with pytest.raises(NamedError, match=r"no function taskz; did you mean tesk\?"):
        check_function("task", "mine:taskz")
