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
    for group, (limit, used, _) in _groups(root):
        with suppress(OSError, ValueError):
            most, now = ((group / name).read_text() for name in (limit, used))
            least = min(least, max(int(most) - int(now), 0))
    return least


def kills_for_memory(root: Path = Path("/")) -> int | None:
    """How many processes the kernel has killed for want of memory, as far as it is counted here: in
    the system, and in this process's control groups and those above them. Only the difference of
    two calls means something. None if nothing is counted."""
    counted = [root / "proc/vmstat", *(group / names[2] for group, names in _groups(root))]
    found: list[int] = []
    for path in counted:
        with suppress(OSError):
            found += map(int, re.findall(r"^oom_kill (\d+)$", path.read_text(), re.MULTILINE))
    return sum(found) if found else None


V2 = "memory.max", "memory.current", "memory.events"
V1 = "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"
"""The files of a group with its limit, what is used, and the count of kills."""


def _groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Each group, and the names of its files: of version 2, and of version 1, where memory has a
    tree of its own. In a container its own group may be the root."""
    yield root / CGROUPS, V2
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                yield from ((each, V2) for each in _above(root / CGROUPS, path))
            elif "memory" in kinds.split(","):
                yield from ((each, V1) for each in _above(root / CGROUPS / "memory", path))


def _above(tree: Path, path: str) -> Iterator[Path]:
    parts = [each for each in path.split("/") if each not in {"", ".."}]
    yield from (tree.joinpath(*parts[:count]) for count in range(len(parts), -1, -1))
