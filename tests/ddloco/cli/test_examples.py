"""Projects that `ddloco init` writes: complete, runnable, and never over a user's files."""

import pytest

from ddloco.cli.examples import TEMPLATES, put_template
from ddloco.cli.parser import main
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
