"""The installed wheel is one package with the examples, and works away from the checkout."""

import os
import re
import shutil
import subprocess
import sys

import pytest

import hatch_build
from tests.installed import CHECKOUT, DDLOCO, HOME, PYTHON, install

EXAMPLES = ("init", "--template", "examples")
PACKAGES = ("ddloco", *(f"ddloco/_packages/{name}" for name in hatch_build.ROOMS))

OWN_SCRIPT = """
import replay
import transport.bus

import ddloco
from tests.tasks import regression

assert replay.MINE and transport.bus.MINE
run = ddloco.Job(task=regression, learners=1, steps=8).run(dir="again", quiet=True)
assert isinstance(ddloco.Tape(run.path / "tapes" / "syncer.1.tape").records(), object)
print(run.result.status, len(run.merges))
"""

FROZEN = """
import sys
from ddloco.api import public
from ddloco.stage.process.code_version import code_version
snapshot, clocks = (sys.modules[f"{sys.argv[1]}{name}"] for name in ("snapshot", "clocks"))
part = snapshot.Part("a.1", 1, {"a.1": 1}, (), {}, ())
state = [clocks.LaneSequence(), part]
frozen = snapshot.write_state(state)
assert snapshot.read_state(frozen, tuple[clocks.LaneSequence, snapshot.Part])[1] == part
print(frozen.hex(), code_version())
"""


@pytest.fixture(scope="module")
def site():
    """The folder into which the wheel, built from this checkout, is installed."""
    install()
    [found] = (HOME / "venv" / "lib").glob("python3*/site-packages")
    return found


def run(*command, cwd):
    """Run a command to its end, away from the checkout. What it said stands beside a failure."""
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command} ended with {ran.returncode}: {ran.stdout}{ran.stderr}"
    return ran.stdout


def test_the_wheel_claims_one_name(site):
    """`clocks`, `replay`, `snapshot` and `transport` are parts of `ddloco` in it, tests are not in
    it, and examples are no package of their own."""
    record = next(site.glob("ddloco-*.dist-info/RECORD")).read_text()
    tops = {line.split("/")[0] for line in record.splitlines()} - {"..", ""}

    assert {"ddloco"} == {top for top in tops if not top.endswith(".dist-info")}
    assert all(f"{name}/__init__.py" in record for name in PACKAGES)
    assert all(f"{name}/py.typed" in record for name in PACKAGES)


def test_every_module_of_the_wheel_can_be_imported(site, tmp_path):
    """No import was forgotten when the packages moved; only the examples stand for themselves."""
    names = sorted(
        path.relative_to(site).with_suffix("").as_posix().replace("/", ".")
        for path in (site / "ddloco").rglob("*.py")
        if "examples" not in path.parts and path.stem != "__main__"
    )
    code = f"import importlib, sys; [importlib.import_module(name) for name in {names}]\n"
    code += f"print([name for name in {hatch_build.ROOMS} if name in sys.modules])"

    assert run(PYTHON, "-P", "-c", code, cwd=tmp_path).strip() == "[]"


def test_users_packages_may_have_the_names_of_ours(site, tmp_path):
    """In a folder with a `replay.py` and a `transport/`, the command, a replay, and a script that
    imports both kinds work, and each finds its own."""
    (tmp_path / "replay.py").write_text("MINE = True\n")
    (tmp_path / "transport").mkdir()
    (tmp_path / "transport" / "__init__.py").write_text("")
    (tmp_path / "transport" / "bus.py").write_text("MINE = True\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").write_text("")
    (tmp_path / "tests" / "tasks.py").write_text((CHECKOUT / "tests" / "tasks.py").read_text())
    (tmp_path / "task.py").write_text(
        "import replay, transport.bus\nfrom tests.tasks import regression as task\n"
    )
    (tmp_path / "job.toml").write_text('[job]\ntask = "task:task"\nlearners = 1\nsteps = 8\n')
    (tmp_path / "script.py").write_text(OWN_SCRIPT)

    run(*DDLOCO, "run", "job.toml", "--dir", "runs/first", cwd=tmp_path)
    assert "identical" in run(*DDLOCO, "replay", "runs/first", cwd=tmp_path)
    assert run(PYTHON, "script.py", cwd=tmp_path).startswith("done ")


def test_states_and_tapes_mean_the_same_in_a_checkout_and_a_wheel(site, tmp_path):
    """Classes are written without the place where the wheel has them, and the digest of the
    sources is of what was written by hand."""
    in_wheel = run(PYTHON, "-P", "-c", FROZEN, "ddloco._packages.", cwd=tmp_path)

    assert in_wheel == run(sys.executable, "-P", "-c", FROZEN, "", cwd=CHECKOUT)


def test_a_package_that_hides_ours_is_named(tmp_path):
    """A checkout's packages can be hidden by others of their names: the command says so in one
    line, an import in its error, and both name the file and the way out."""
    (tmp_path / "replay.py").write_text("")
    hiding = {**os.environ, "PYTHONPATH": str(tmp_path)}
    for form in (("-P", "-m", "ddloco", "--version"), ("-c", "import ddloco")):
        asked = [sys.executable, *form]
        said = subprocess.run(
            asked, cwd=tmp_path, env=hiding, capture_output=True, text=True, check=False
        )
        last = said.stderr.strip().splitlines()[-1]

        assert said.returncode == (2 if "-m" in form else 1)
        assert last == said.stderr.strip() or "-m" not in form
        assert f"{tmp_path / 'replay.py'} is imported as `replay`" in last
        assert "rename or remove it, or install ddloco from its wheel" in last


def test_an_import_that_would_not_move_is_refused():
    """`import clocks` could not be renamed in its place without another name for it."""
    with pytest.raises(ValueError, match=r"a.py:2: write `from clocks.files import"):
        hatch_build.rewritten("import os\nimport clocks.files\n", "a.py")

    text = "def f():\n    from replay.tape import Tape; from .replay import x\n"
    moved = text.replace("from replay", "from ddloco._packages.replay")
    assert moved == hatch_build.rewritten(text, "a.py")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_wheel_has_the_compiled_arithmetic(site):
    """It is compiled when the wheel is built, and the wheel is one for this platform then."""
    code = (
        "from ddloco.workers.merge_kernel import merge_kernel; print(type(merge_kernel()));"
        "from ddloco.workers.quantization_kernel import quantizer; print(type(quantizer()))"
    )
    tags = next(site.glob("ddloco-*.dist-info/WHEEL")).read_text()

    used = run(PYTHON, "-c", code, cwd=site.parent)
    assert "CompiledKernel" in used
    assert "CompiledQuantizer" in used
    assert "Tag: py3-none-manylinux_2_17_" in tags  # As an index takes it.


def test_without_a_compiler_there_is_no_library(tmp_path, monkeypatch):
    """Nothing fails, and a library of an earlier source does not stay."""
    libraries = [tmp_path / each for each in hatch_build.KERNELS.values()]
    for library in libraries:
        library.parent.mkdir(parents=True, exist_ok=True)
        library.write_bytes(b"old")
    monkeypatch.setenv("CC", "/no/such/compiler")

    assert not hatch_build.compile_kernels(CHECKOUT, tmp_path)
    assert not any(library.exists() for library in libraries)


def test_the_parts_of_a_report_are_in_the_wheel(site):
    """A report is put together from files that are no Python."""
    page = site / "ddloco" / "debugger" / "report_page"

    assert {"template.html", "style.css", "script.js"} <= {each.name for each in page.iterdir()}


def test_the_documentation_is_in_the_wheel(site, tmp_path):
    """So no help and no template points to nothing: all pages, the reference among them."""
    pages = {path.relative_to(CHECKOUT / "docs") for path in (CHECKOUT / "docs").rglob("*.md")}
    assert pages == {
        path.relative_to(site / "ddloco/docs") for path in (site / "ddloco/docs").rglob("*")
        if path.is_file()
    }  # fmt: skip
    assert f"{site / 'ddloco' / 'docs'}" == run(*DDLOCO, "docs", "--path", cwd=tmp_path).strip()
    assert "## `[sync]`" in run(*DDLOCO, "docs", "configuration", cwd=tmp_path)
    run(*DDLOCO, "init", "--template", "blank", "mine", cwd=tmp_path)
    texts = [path.read_text() for path in (tmp_path / "mine").iterdir()]
    named = {name for text in texts for name in re.findall(r"`ddloco docs ([\w-]+)`", text)}
    assert {"configuration", "own-tasks"} <= named
    assert all((site / "ddloco" / "docs" / f"{name}.md").is_file() for name in named)
    assert not [text for text in texts if re.search(r"\bdocs/\w", text)]


def test_the_command_answers(site, tmp_path):
    """The console script prints its help."""
    assert "usage: ddloco" in run(*DDLOCO, "--help", cwd=tmp_path)


def test_the_first_commands_of_the_help_work(site, tmp_path):
    """A user who has only the wheel gets the examples, own changes are left alone, and the job
    file that the help names can be run: it is resolved, and its task is found."""
    run(*DDLOCO, *EXAMPLES, cwd=tmp_path)
    kept, made = CHECKOUT / "examples", tmp_path / "examples"
    names = {path.relative_to(kept) for path in kept.rglob("*.*") if path.suffix != ".pyc"}
    assert names == {path.relative_to(made) for path in made.rglob("*.*")}

    mine = tmp_path / "examples" / "quickstart.toml"
    changed = mine.read_text().replace("steps = ", "steps = 1 # ")
    mine.write_text(changed)
    assert f"0 files copied, {len(names)} existed" in run(*DDLOCO, *EXAMPLES, cwd=tmp_path)
    assert mine.read_text() == changed

    code = (
        "from ddloco.job.config import load_job; from pathlib import Path\n"
        "from ddloco.workers.task import task_digests\n"
        "print(*task_digests(load_job(Path('examples/quickstart.toml')).job.task))"
    )
    assert "examples/tiny_gpt.py" in run(PYTHON, "-P", "-c", code, cwd=tmp_path).split()


@pytest.mark.slow
@pytest.mark.parametrize("template", ["gpt", "classifier", "blank"])
def test_each_template_runs_as_the_help_says(site, tmp_path, template):
    """The first commands of the help, as they stand there but for the number of steps."""
    said = run(*DDLOCO, "init", "--template", template, "mine", cwd=tmp_path)
    assert "cd mine && ddloco run job.toml" in said
    mine = tmp_path / "mine"
    assert "examples" not in (mine / "job.toml").read_text() + (mine / "README.md").read_text()
    shorter = "--set=job.steps=24"
    run(*DDLOCO, "run", "job.toml", "--dir", "runs/first", shorter, cwd=mine)
    tmp_path = mine

    assert "identical" in run(*DDLOCO, "replay", "runs/first", cwd=tmp_path)
