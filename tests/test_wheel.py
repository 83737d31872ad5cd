"""The installed wheel holds five packages and the examples, and works away from the checkout."""

import subprocess

import pytest

from tests.installed import CHECKOUT, DDLOCO, HOME, PYTHON, install

EXAMPLES = ("init", "--template", "examples")
PACKAGES = ("ddloco", "transport", "clocks", "snapshot", "replay")


@pytest.fixture(scope="module")
def site():
    """The folder into which the wheel, built from this checkout, is installed."""
    install()
    [found] = (HOME / "venv" / "lib").glob("python3*/site-packages")
    return found


def run(*command, cwd):
    """Run a command to its end, away from the checkout."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_all_five_packages_come_from_one_distribution(site, tmp_path):
    """`snapshot` and `replay` are names of other projects too: ours must be the ones imported."""
    code = f"import importlib; print([importlib.import_module(n).__file__ for n in {PACKAGES}])"

    assert run(PYTHON, "-c", code, cwd=tmp_path).count(str(site)) == len(PACKAGES)
    record = next(site.glob("ddloco-*.dist-info/RECORD")).read_text()
    assert all(f"{name}/__init__.py" in record for name in PACKAGES)
    assert all(f"{name}/py.typed" in record for name in PACKAGES)


def test_nothing_else_is_in_the_wheel(site):
    """Tests stay in the source archive, and examples are no package of their own."""
    record = next(site.glob("ddloco-*.dist-info/RECORD")).read_text()
    tops = {line.split("/")[0] for line in record.splitlines()} - {"..", ""}

    assert set(PACKAGES) == {top for top in tops if not top.endswith(".dist-info")}


def test_the_parts_of_a_report_are_in_the_wheel(site):
    """A report is put together from files that are no Python."""
    page = site / "ddloco" / "debugger" / "report_page"

    assert {"template.html", "style.css", "script.js"} <= {each.name for each in page.iterdir()}


def test_the_command_answers(site, tmp_path):
    """The console script prints its help."""
    assert "usage: ddloco" in run(*DDLOCO, "--help", cwd=tmp_path)


def test_the_first_commands_of_the_help_work(site, tmp_path):
    """Whoever has only the wheel gets the examples, their own changes are left alone, and the job
    file that the help names can be run: it is resolved, and its task is found."""
    run(*DDLOCO, *EXAMPLES, cwd=tmp_path)
    names = {path.name for path in (CHECKOUT / "examples").iterdir() if path.is_file()}
    assert names == {path.name for path in (tmp_path / "examples").iterdir()}

    mine = tmp_path / "examples" / "quickstart.toml"
    changed = mine.read_text().replace("steps = ", "steps = 1 # ")
    mine.write_text(changed)
    assert f"0 files copied, {len(names)} existed" in run(*DDLOCO, *EXAMPLES, cwd=tmp_path)
    assert mine.read_text() == changed

    code = (
        "from ddloco.config.job import load_job; from pathlib import Path\n"
        "from ddloco.workers.task import task_digest\n"
        "print(task_digest(load_job(Path('examples/quickstart.toml')).job.task))"
    )
    assert len(run(PYTHON, "-P", "-c", code, cwd=tmp_path).strip()) == 64


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
