"""What README and ARCHITECTURE say is true: commands parse, folders and modules are there."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


def test_make_targets_exist():
    """Every `make ...` that README names is a target."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))

    assert set(re.findall(r"(?:`|^)make ([a-z]+)", README, flags=re.MULTILINE)) <= targets


FIRST_SCREEN_LINES = 24


def first_commands():
    """The commands that stand alone in README's first screen."""
    shown = "\n".join(README.splitlines()[:FIRST_SCREEN_LINES])
    return re.findall(r"^(make \w+)$", shown, flags=re.MULTILINE)


def test_the_first_screen_has_the_two_commands_and_ci_calls_the_second():
    """What a newcomer types is what is tested."""
    assert first_commands() == ["make demo", "make test"]
    called = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in called if line.startswith("make")] == ["make test"]


@pytest.mark.parametrize("command", ["make demo", "make test"])
def test_on_a_fresh_machine_a_command_sets_up_what_it_needs(command, tmp_path):
    """Before anything else, and only where it is not there yet."""
    words = [*command.split(), "--dry-run", f"VENV={tmp_path / 'venv'}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    said = done.stdout
    first = next(line for line in said.splitlines() if str(tmp_path) in line)
    assert f"-m venv {tmp_path / 'venv'}" in first
    assert said.count("-m pip install") == 2 * said.count(f"-m venv {tmp_path}")


def test_links_lead_to_files():
    """Every link of README to a file of this repository leads to one."""
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)

    assert [] == [each for each in links if "://" not in each and not (ROOT / each).is_file()]


def test_the_tree_is_there():
    """Every folder that README's tree names exists, and no other top-level folder."""
    tree = README.split("## The tree")[1].split("```")[1]
    named = set(re.findall(r"^(\w+)/", tree, flags=re.MULTILINE))
    here = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"}

    assert named <= here
    assert here - {"runs", "build", "dist", "site"} - named == set()


def test_architecture_names_every_module():
    """Every source file has its place in ARCHITECTURE.md's map, in the row of its folder."""
    rows = re.findall(r"^\| `([\w/]+)/` \|(.*)$", ARCHITECTURE, flags=re.MULTILINE)
    here = {
        folder.relative_to(ROOT).as_posix(): {
            p.stem for p in folder.glob("*.py") if p.stem[0] != "_"
        }
        for room in ("clocks", "transport", "snapshot", "replay", "ddloco")
        for folder in [ROOT / room, *(path for path in (ROOT / room).rglob("*") if path.is_dir())]
    }
    here = {folder: modules for folder, modules in here.items() if modules}

    assert {folder: set(re.findall(r"`(\w+)`", said)) for folder, said in rows} == here
