"""What README promises is so: commands parse, the job file shows defaults, the tree is there."""

import re
import shlex
import tomllib
from pathlib import Path

import msgspec
import pytest

from ddloco.cli.parser import parser
from ddloco.config.job import Job, job_from
from ddloco.workers.task import REQUIRED

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line
    for language, block in BLOCKS
    if not language
    for line in block.splitlines()
    if line.startswith("ddloco ")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    """Every `ddloco ...` line of README is a command that exists."""
    given = parser().parse_args(shlex.split(command)[1:])

    assert hasattr(given, "run")


def test_make_targets_exist():
    """Every `make ...` that README names is a target."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))

    assert set(re.findall(r"`?make ([a-z]+)`", README)) <= targets


def test_the_job_file_shows_the_defaults():
    """The job file printed in README says of every key what its default is."""
    shown = next(block for language, block in BLOCKS if language == "toml")
    plain = tomllib.loads(shown)
    told = msgspec.to_builtins(job_from(plain, "README.md"))
    default = msgspec.to_builtins(job_from({"job": {"task": plain["job"]["task"]}}, "default"))
    told["learner"] = {}

    assert default == told
    tables = [field for field in Job.__struct_fields__ if field not in {"task", "learner"}]
    for table in tables:
        missing = set(default[table]) - set(plain[table])
        assert missing <= {"syncers"}, f"README does not show {table}.{missing}"


def test_the_task_protocol_is_whole():
    """The task printed in README has the methods that are asked for."""
    shown = next(block for language, block in BLOCKS if language == "python")

    assert all(f"def {name}(" in shown for name in REQUIRED)


def test_the_tree_is_there():
    """Every folder that README's tree names exists, and no other top-level folder."""
    tree = README.split("## The tree")[1].split("```")[1]
    named = set(re.findall(r"^(\w+)/", tree, flags=re.MULTILINE))
    here = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"}

    assert named <= here
    assert here - {"runs", "build", "dist"} - named == set()


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
