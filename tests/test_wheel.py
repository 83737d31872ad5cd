"""The installed wheel holds the five packages, and works away from the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ddloco", "transport", "clocks", "snapshot", "replay")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, built from this checkout, is installed alone."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    wheel = next(folder.glob("*.whl"))
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(installed: Path, code: str) -> str:
    """Run Python with the installed wheel first on its path, away from the checkout."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=installed,
        env={"PYTHONPATH": str(installed), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_all_five_packages_come_from_one_distribution(installed):
    """`snapshot` and `replay` are names of other projects too: ours must be the ones imported."""
    code = f"import importlib; print([importlib.import_module(n).__file__ for n in {PACKAGES}])"

    assert run(installed, code).count(str(installed)) == len(PACKAGES)
    record = next(installed.glob("ddloco-*.dist-info/RECORD")).read_text()
    assert all(f"{name}/__init__.py" in record for name in PACKAGES)
    assert all(f"{name}/py.typed" in record for name in PACKAGES)


def test_nothing_else_is_in_the_wheel(installed):
    """Tests and examples stay in the source archive."""
    found = {path.name for path in installed.iterdir() if path.suffix != ".dist-info"}

    assert set(PACKAGES) == found


def test_the_command_answers(installed):
    """The entry point of the wheel prints its help."""
    said = run(installed, "from ddloco.cli import main; main(['--help'])")

    assert "usage: ddloco" in said
