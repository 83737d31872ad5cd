"""Projects that `ddloco init` writes: complete, runnable, and never over a user's files."""

import pytest

from ddloco.cli.examples import TEMPLATES, put_template
from ddloco.cli.parser import main
from ddloco.job.advice import advice
from ddloco.job.config import load_job
from ddloco.stage.files.toml import ConfigError


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_project_stands_alone(template, tmp_path, monkeypatch):
    """Its job file names its own task, and no file speaks of the examples' folder."""
    made, left = put_template(tmp_path / "mine", template)
    job = load_job(tmp_path / "mine" / "job.toml")

    assert ["README.md", "job.toml", "task.py"] == sorted(path.name for path in made)
    assert not left
    assert job.job.task == "task:task"
    assert "examples" not in "".join(path.read_text() for path in made)
    compile((tmp_path / "mine" / "task.py").read_text(), "task.py", "exec")


def test_existing_files_are_not_changed(tmp_path, capsys):
    """Files that the user has changed are kept; the command says so."""
    (tmp_path / "task.py").write_text("mine")
    with pytest.raises(SystemExit) as left:
        main(["init", str(tmp_path)])

    assert left.value.code == 0
    assert (tmp_path / "task.py").read_text() == "mine"
    said = capsys.readouterr().out
    assert f"{tmp_path / 'task.py'} exists and was not changed" in said
    assert f"wrote {tmp_path / 'job.toml'}" in said


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    """One line names the path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        put_template(tmp_path / "file", "gpt")


@pytest.mark.parametrize("template", TEMPLATES)
def test_settings_for_machines_line_and_model_are_written(template, tmp_path):
    """The job file has them, and says why; its comments and its other settings stay."""
    found = advice(8, 100.0, 1e9)
    put_template(tmp_path, template, found)
    text = (tmp_path / "job.toml").read_text()
    job = load_job(tmp_path / "job.toml")
    assert (8, 96, 5) == (job.job.learners, job.sync.interval, job.sync.overlap)
    assert "int4" == job.compress.up == job.compress.down
    assert text.startswith("# syncs take 43 Mbit/s each way")
    assert "task:task" == job.job.task
    assert load_job(tmp_path / "job.toml").sync.fragments > 1


def test_the_questions_are_options(tmp_path, capsys):
    """Without a terminal nothing is asked; what is no number is refused in a line."""
    for options, code in ((["--learners", "5"], 0), (["--mbit", "-3"], 2)):
        with pytest.raises(SystemExit) as left:
            main(["init", str(tmp_path / str(code)), *options])
        assert code == left.value.code
    assert 5 == load_job(tmp_path / "0" / "job.toml").job.learners
    assert "--mbit: -3.0; want a number above zero" in capsys.readouterr().err


def test_at_a_terminal_it_asks(tmp_path, monkeypatch):
    """Three questions; no answer leaves the example as it is."""
    answers = iter(["4", "", ""])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    with pytest.raises(SystemExit):
        main(["init", str(tmp_path)])
    assert 4 == load_job(tmp_path / "job.toml").job.learners


def test_all_examples_are_copied(tmp_path):
    """Those in folders, too."""
    made, _ = put_template(tmp_path, "examples")
    assert tmp_path / "examples" / "experiments" / "methods.toml" in made
    assert not [each for each in made if "__pycache__" in str(each)]
