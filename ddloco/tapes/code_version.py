"""The version of the code: a tape records it, and a replay with other code says so first."""

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("clocks", "ddloco", "replay", "snapshot", "transport")


@cache
def code_version() -> str:
    """The version, and a digest of the five packages' sources, which changes in development."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return f"ddloco {version('ddloco')} sources-{digest.hexdigest()[:12]}"
