"""The processes that a process has started."""

from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The process ids of its children, whichever of its threads started them."""
    found = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for each in found for child in each.split()]


def descendants_of(pid: int) -> list[int]:
    """The process ids of its children, of their children, and so on."""
    found = children_of(pid)
    for child in found:
        found += children_of(child)  # The loop continues with these.
    return found
