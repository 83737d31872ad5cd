"""What a release is checked for, from a clean clone: ``make release``.

Builds the source archive and the wheels, checks them as an index would, installs them by pip and
by uv into fresh environments of each Python, with the lowest and with the newest packages that
ddloco allows, and types in each what a newcomer types, in an empty folder. Then the container image
is made and used. What was checked, and what this machine could not check, is in
``dist/checked.md``.
"""

import argparse
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from tests.pages import commands
from tests.release import image
from tests.release.calls import FailedError, call

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
PYTHONS = ("3.11", "3.12", "3.13")
INSTALLERS = {
    "pip, newest": ("{python}", "-m", "pip", "install", "--quiet"),
    "uv, lowest": (
        *("uv", "pip", "install", "--quiet", "--python", "{python}"),
        *("--resolution", "lowest-direct"),
    ),
}
"""How an environment gets the archive: the command, and which packages it takes. The archive's own
dependencies are named beside it, since only what is named counts as direct."""

CROSS = "aarch64-linux-gnu-gcc"


def built() -> list[Path]:
    """The source archive, and a wheel for each kind of machine that can be compiled for here."""
    shutil.rmtree(DIST, ignore_errors=True)
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    call(*build)  # The wheel is made from the source archive.
    call(*build, "--wheel", env={"CC": "false"})
    if shutil.which(CROSS):
        call(*build, "--wheel", env={"CC": CROSS, "_PYTHON_HOST_PLATFORM": "linux-aarch64"})
    return sorted(DIST.iterdir())


def newcomer(programs: Path, folder: Path) -> None:
    """Type what the first pages say, in an empty folder, with what is installed."""
    env = {
        "PATH": os.pathsep.join([str(programs), "/usr/local/bin", "/usr/bin", "/bin"]),
        "HOME": str(folder / "home"),
    }
    for name in ("blank", "tutorial", "home"):
        (folder / name).mkdir()
    blank = ["ddloco init", "ddloco run job.toml --dir runs/first", "ddloco replay runs/first"]
    for line in blank:
        call(*shlex.split(line), cwd=folder / "blank", env=env)
    for line in commands(ROOT / "docs" / "tutorial.md"):
        call(*shlex.split(line), cwd=folder / "tutorial", env=env)


def installed(python: str, installer: str, archive: Path) -> str:
    """Install an archive into a fresh environment and use it; what it has of the large packages."""
    with tempfile.TemporaryDirectory(prefix="ddloco-release-") as made:
        folder = Path(made)
        call(python, "-m", "venv", folder / "venv")
        programs = folder / "venv" / "bin"
        words = [word.format(python=programs / "python") for word in INSTALLERS[installer]]
        call(*words, archive, *project()["dependencies"])
        newcomer(programs, folder)
        code = (
            "from importlib.metadata import version as v;"
            "print(', '.join(f'{n} {v(n)}' for n in ('jax', 'numpy', 'optax')))"
        )
        return call(programs / "python", "-c", code).strip()


def program_of(python: str) -> str | None:
    """The interpreter of that version: on the path, or among pyenv's."""
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{python}.*/bin/python{python}"))
    for each in (shutil.which(f"python{python}"), *map(str, pyenv)):
        try:
            if each is not None and python in call(each, "--version"):
                return each
        except FailedError:
            continue  # A name that pyenv answers for, and does not have.
    return None


def matrix(archives: list[Path], *, whole: bool) -> list[str]:
    """Install and use them: every Python, and the source archive once."""
    [wheel] = [each for each in archives if "manylinux" in each.name and "x86_64" in each.name] or [
        each for each in archives if each.name.endswith("none-any.whl")
    ]
    [source] = [each for each in archives if each.name.endswith(".tar.gz")]
    cells = [(python, how, wheel) for python in PYTHONS for how in INSTALLERS]
    cells.append((PYTHONS[0], "pip, newest", source))
    said = []
    for python, how, archive in cells if whole else cells[:1]:
        program = program_of(python)
        if program is None:
            said.append(f"not checked: Python {python}, which is not here")
            continue
        begun = time.monotonic()
        has = installed(program, how, archive)
        took = time.monotonic() - begun
        said.append(f"Python {python}, {how}, {archive.suffix[1:]}: {has} ({took:.0f} s)")
        print(said[-1], flush=True)
    return said


def project() -> dict[str, Any]:
    """What ``pyproject.toml`` says of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def digests(archives: list[Path]) -> list[str]:
    """Their SHA-256, as a page of downloads shows them."""
    return [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}" for each in archives]


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.release", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one environment, and no image")
    asked = parser.parse_args()
    if call("git", "status", "--porcelain", cwd=ROOT).strip():
        sys.exit("there are uncommitted changes: a release is made of a commit")
    try:
        archives = built()
        print(call(sys.executable, "-m", "twine", "check", "--strict", *archives), flush=True)
        said = matrix(archives, whole=not asked.quick)
        said += ["not checked: the image (--quick)"] if asked.quick else image.checked(ROOT)
    except FailedError as error:
        sys.exit(str(error))
    commit = call("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    lines = [f"# ddloco {project()['version']}", "", f"Of commit {commit}.", "", "```"]
    lines += [*digests(archives), "```", "", *(f"* {each}" for each in said), ""]
    (DIST / "checked.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
