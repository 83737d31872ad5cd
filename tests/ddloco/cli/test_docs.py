"""`ddloco docs`: pages of the documentation, by name."""

import re
from pathlib import Path

import pytest

from ddloco.cli import docs
from ddloco.cli.examples import README, SOURCES
from ddloco.cli.help_text import PERFORM_MORE
from ddloco.cli.parser import main

PAGES = Path(__file__).parents[3] / "docs"


def call(*words):
    """The exit code."""
    with pytest.raises(SystemExit) as left:
        main(["docs", *words])
    return left.value.code


def test_all_pages_are_listed(capsys):
    """Each with its title, the first page first, decisions last."""
    assert call() == 0
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == len([*PAGES.rglob("*.md")])
    assert lines[0].startswith("index ")
    assert [line for line in lines if re.match("configuration +The job file", line)]
    assert lines[-1].startswith("decisions/")


@pytest.mark.parametrize("name", ["tutorial", "tutorial.md", "docs/tutorial.md"])
def test_a_page_is_printed(capsys, name):
    """By its name, or as other texts name its file; or where it is."""
    assert call(name) == 0
    assert capsys.readouterr().out.strip() == (PAGES / "tutorial.md").read_text().strip()
    assert call(name, "--path") == 0
    assert Path(capsys.readouterr().out.strip()) == PAGES / "tutorial.md"
    assert call("--path") == 0
    assert Path(capsys.readouterr().out.strip()) == PAGES


@pytest.mark.parametrize("name", ["tutorail", "../README", "nothing/at/all", "reference.py"])
def test_what_is_no_page_is_refused(capsys, name):
    """In one line, with what may have been meant."""
    assert call(name) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"ddloco: {name}: no such page")
    assert said.count("\n") == 1
    assert ("did you mean tutorial?" in said) == (name == "tutorail")


def test_without_pages_the_installation_is_incomplete(capsys, monkeypatch, tmp_path):
    """One line, as for the examples."""
    monkeypatch.setattr(docs, "SOURCES", (tmp_path / "docs",))
    assert call() == 2
    assert "the installation is incomplete" in capsys.readouterr().err


def test_what_templates_and_help_name_is_there():
    """No text that a user gets points to a page that there is not."""
    texts = [README, PERFORM_MORE]
    texts += [path.read_text() for folder in SOURCES if folder.is_dir() for path in
              folder.glob("*.*") if path.suffix in {".py", ".toml", ".md"}]  # fmt: skip
    named = {name for text in texts for name in re.findall(r"ddloco docs ([\w-]+)", text)}

    assert {"configuration", "own-actors", "own-tasks"} <= named
    assert [] == [name for name in named if not (PAGES / f"{name}.md").is_file()]
    assert not [text for text in texts if re.search(r"\bdocs/\w", text)]
