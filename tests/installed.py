"""The wheel of this checkout, built and installed once for a run of the tests, away from it.

Processes of tests are started as a user starts them: with the console script that the wheel
installs, in a folder that has the user's task and nothing of the checkout.
"""

import fcntl
import os
import shutil
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}-{time.time_ns()}"
"""The number of a process alone is used again, and what is installed there is of another day."""

_ALL = Path(tempfile.gettempdir()) / f"ddloco-tests-{os.getuid()}"
HOME = _ALL / _RUN
WORK = HOME / "work"
"""Where users of tests work: their tasks are here, as ``tests.tasks``."""

PYTHON = HOME / "venv" / "bin" / "python"
DDLOCO = [str(HOME / "venv" / "bin" / "ddloco")]

OLD_S = 24 * 3600.0
"""What a run of the tests left behind is deleted by one of the next day."""


def install() -> None:
    """Build the wheel and install it, unless another process of this run has."""
    HOME.mkdir(parents=True, exist_ok=True)
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (HOME / "whole").exists():
            return
        _forget_old()
        _quietly(sys.executable, "-m", "venv", "--without-pip", str(HOME / "venv"))
        _quietly(
            *(sys.executable, "-m", "build", "--wheel", "--no-isolation"),
            *("--outdir", str(HOME / "dist"), str(CHECKOUT)),
        )
        [wheel] = (HOME / "dist").glob("*.whl")
        pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install"]
        _quietly(*pip, "--quiet", "--no-deps", "--no-index", str(wheel))
        # What ours depends on comes from this environment; not its own link to the checkout, which
        # is in a .pth file, and those are looked for in site folders alone.
        [packages] = (HOME / "venv" / "lib").glob("python3*/site-packages")
        (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
        (WORK / "tests").mkdir(parents=True)
        shutil.copy(CHECKOUT / "tests" / "tasks.py", WORK / "tests")
        (HOME / "whole").touch()


def _forget_old() -> None:
    for path in _ALL.iterdir():
        if path.stat().st_mtime < time.time() - OLD_S:
            shutil.rmtree(path, ignore_errors=True)


def _quietly(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
