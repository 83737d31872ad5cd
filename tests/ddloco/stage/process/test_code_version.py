"""The version of the code, installed or not."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from ddloco.stage.process.code_version import code_version, own_version

ROOT = Path(__file__).parents[4]


def test_it_is_the_installed_one():
    """As the package says, and in what tapes record."""
    assert own_version() == version("ddloco")
    assert code_version().startswith(f"ddloco {version('ddloco')} sources-")


def test_sources_that_are_not_installed_have_an_unknown_one():
    """They run all the same: what the sources are, the digest says."""
    code = (
        "import importlib.metadata as m\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        "m.version = missing\n"
        "from ddloco.stage.process.code_version import code_version\n"
        "print(code_version())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.startswith("ddloco unknown sources-")
