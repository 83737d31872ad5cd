"""How much memory a process can use."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CGROUPS = "sys/fs/cgroup"
"""Where control groups are, below the root."""


def available(root: Path = Path("/")) -> int:
    """Memory in bytes that can be used: what the system has, or the least of what is left of the
    limits of this process's control groups and those above them."""
    least = 0
    with suppress(OSError, AttributeError, ValueError):
        text = (root / "proc/meminfo").read_text()
        least = int(re.search(r"MemAvailable:\s*(\d+) kB", text)[1]) * 1024  # type: ignore[index]
    for limit, used in _groups(root):
        with suppress(OSError, ValueError):
            least = min(least, max(int(limit.read_text()) - int(used.read_text()), 0))
    return least


def _groups(root: Path) -> Iterator[tuple[Path, Path]]:
    """The files with the limit and the use of each group: of version 2, and of version 1, where
    memory has a tree of its own. In a container its own group may be the root."""
    yield from _above(root / CGROUPS, "/", "memory.max", "memory.current")
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                yield from _above(root / CGROUPS, path, "memory.max", "memory.current")
            elif "memory" in kinds.split(","):
                names = "memory.limit_in_bytes", "memory.usage_in_bytes"
                yield from _above(root / CGROUPS / "memory", path, *names)


def _above(tree: Path, path: str, limit: str, used: str) -> Iterator[tuple[Path, Path]]:
    parts = [each for each in path.split("/") if each not in {"", ".."}]
    for count in range(len(parts), -1, -1):
        group = tree.joinpath(*parts[:count])
        yield group / limit, group / used
