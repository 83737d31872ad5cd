"""Tests of real processes run a second time when they failed, unless a replay differed.

Such a test may fail because the machine was too busy. That a replay differed is never a matter of
load: such a failure stands at once. Tests hand the output of every replay to `look_at`.
"""

import re

import pytest

FOLDERS = {
    "processes": "real jobs, whose processes start and answer as fast as the machine lets them",
    "ordinary": "real jobs, whose processes start and answer as fast as the machine lets them",
    "examples": "real jobs, whose processes start and answer as fast as the machine lets them",
    "hosts": "real jobs on simulated hosts, with links and faults in real time",
}
"""Where the tests are that run a second time, and why they may fail without a mistake."""

DIFFERENCE = re.compile(
    r"DIFFERENT [A-Z]+: |DIVERGENCE|[\"']divergence[\"']: \{|Divergence\(|differs in its \w+"
)
"""In what people read, in what ``--json`` prints, in a report and in an exception."""

_differed: list[str] = []
"""What replays of the test that runs have said of differences."""


def look_at(said: str) -> str:
    """Remember whether a replay said that something differed; what it said."""
    if DIFFERENCE.search(said):
        _differed.append(said)
    return said


def is_repeated(error: BaseException | None) -> bool:
    """Whether a test that failed is run a second time."""
    return not _differed and not any(DIFFERENCE.search(f"{each!r} {each}") for each in _all(error))


def _all(error: BaseException | None) -> list[BaseException]:
    """An error, those that a group of it holds, and those that led to it."""
    if error is None:
        return []
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    led = (error.__cause__, error.__context__)
    return [error, *(found for each in (*inner, *led) for found in _all(each))]


def is_of_processes(item: pytest.Item) -> bool:
    """Whether a test starts processes."""
    return bool(FOLDERS.keys() & set(item.path.relative_to(item.config.rootpath).parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of real processes."""
    for item in items:
        if is_of_processes(item):
            item.add_marker(pytest.mark.flaky(reruns=1, condition=is_repeated))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests that were run a second time, with the reason why they may be."""
    for report in terminalreporter.getreports("rerun"):
        reason = next(why for folder, why in FOLDERS.items() if f"{folder}/" in report.nodeid)
        terminalreporter.write_line(f"ran twice: {report.nodeid}: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Nothing has differed yet."""
    del item
    _differed.clear()
