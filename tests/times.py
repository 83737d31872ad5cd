"""How much processor time tests take, with all processes that they start: ``make test-times``.

Times on the wall say as much about what else runs on the machine. A plugin of pytest: it adds
``cpu_s`` to the report of every test, and prints a table by folder at the end.
"""

import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SLOWEST = 40
"""Tests that are named one by one."""


def cpu_s(pid="self"):
    """The processor time in seconds of a process, of its living descendants, and of all that they
    have waited for."""
    # The second field is a name in brackets, which may hold anything.
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    children = [read(f"{task}/children") for task in Path(f"/proc/{pid}/task").glob("*")]
    own = sum(map(int, fields[11:15])) / TICKS_PER_S
    return own + sum(map(cpu_s, " ".join(children).split()))


def read(path):
    """A file of the system's, empty once what it tells of has ended."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """Note where the test begins, the fixtures that it asks for first included."""
    item.began = cpu_s(), time.perf_counter()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """Add what the test took to its report, which travels to the process that prints."""
    try:
        return (yield)
    finally:
        cpu, wall = item.began
        # The system rounds what a process took in another way once that has ended.
        took = max(cpu_s() - cpu, 0.0)
        item.user_properties.append(("took", (took, time.perf_counter() - wall)))


class Table:
    """What each test took."""

    def __init__(self):
        self.took = {}

    def pytest_runtest_logreport(self, report):
        """Keep the last figure of a test: one that runs again replaces its first."""
        if report.when == "teardown":
            self.took.update({report.nodeid: dict(report.user_properties)["took"]})

    def pytest_terminal_summary(self, terminalreporter):
        """Print the table by folder, and the most expensive tests."""
        folders = defaultdict(list)
        for test, took in self.took.items():
            folders[folder_of(test)].append(took)
        write = terminalreporter.write_line
        write(f"{'CPU s':>8} {'wall s':>8} {'tests':>6}  folder")
        for folder, took in sorted(folders.items(), key=lambda found: -sum(c for c, _ in found[1])):
            cpu, wall = (sum(each) for each in zip(*took, strict=True))
            write(f"{cpu:8.1f} {wall:8.1f} {len(took):6}  {folder}")
        cpu, wall = (sum(each) for each in zip(*self.took.values(), strict=True))
        write(f"{cpu:8.1f} {wall:8.1f} {len(self.took):6}  all")
        for test, (cpu, wall) in sorted(self.took.items(), key=lambda t: -t[1][0])[:SLOWEST]:
            write(f"{cpu:8.1f} {wall:8.1f}         {test}")


def folder_of(test):
    """The folder that a test is counted for: two levels of ``tests``."""
    parts = test.partition("::")[0].split("/")
    return "/".join(parts[:3] if parts[1] == "ddloco" else parts[:2]) if len(parts) > 2 else "tests"


def pytest_configure(config):
    """Print where the reports arrive, not in each worker."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Table())
