"""How much memory a process can use."""

import re
from contextlib import suppress
from pathlib import Path


def available(root: Path = Path("/")) -> int:
    """Memory in bytes that can be used: what the system has, or what is left of a cgroup's."""
    least = 0
    with suppress(OSError, AttributeError, ValueError):
        text = (root / "proc/meminfo").read_text()
        least = int(re.search(r"MemAvailable:\s*(\d+) kB", text)[1]) * 1024  # type: ignore[index]
    with suppress(OSError, ValueError):
        group = root / "sys/fs/cgroup"
        limit = int((group / "memory.max").read_text())
        least = min(least, max(limit - int((group / "memory.current").read_text()), 0))
    return least
