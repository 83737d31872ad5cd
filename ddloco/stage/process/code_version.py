"""The version of the code: a tape records it, and a replay with other code says so first."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("clocks", "ddloco", "replay", "snapshot", "transport")

ROOMS = "_packages"
"""The folder of the wheel's ``ddloco`` that has the other packages."""

NOT_OURS = (ROOMS, "examples")
"""Folders that the wheel adds to ``ddloco``."""


def own_version() -> str:
    """The version of ddloco; ``unknown`` where its sources are run without being installed."""
    try:
        return version("ddloco")
    except PackageNotFoundError:
        return "unknown"


@cache
def code_version() -> str:
    """Return the version, and a digest of the five packages' sources, which changes in development.
    It is the same in a checkout and in the wheel that is built from it."""
    ours = Path(__file__).parents[2]
    rooms = ours / ROOMS if (ours / ROOMS).is_dir() else ours.parent
    digest = hashlib.sha256()
    for package in PACKAGES:
        folder = ours if package == "ddloco" else rooms / package
        paths = sorted(folder.rglob("*.py"))
        assert paths, f"{folder} has no sources"
        for path in paths:
            within = path.relative_to(folder)
            if package != "ddloco" or within.parts[0] not in NOT_OURS:
                digest.update(f"{package}/{within.as_posix()}\n".encode())
                digest.update(path.read_bytes().replace(f"ddloco.{ROOMS}.".encode(), b""))
    return f"ddloco {own_version()} sources-{digest.hexdigest()[:12]}"
