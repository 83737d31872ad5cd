"""What may fail: it is told of once, and goes on; also where nobody can be told."""

import pytest

from ddloco.stage.process.best_effort import BestEffort


@pytest.fixture
def told():
    """What was said of failures, by name."""
    return []


def fails():
    """It cannot be done."""
    raise OSError(28, "No space left on device")


def test_a_failure_is_one_line_and_another_value(told):
    """Once for each name."""
    best = BestEffort(lambda name, said: told.append((name, said)))
    assert [best.do("figure", fails, 7) for _ in range(3)] == [7, 7, 7]
    assert best.do("figure", lambda: 1, 7) == 1
    assert best.do("display", fails, 0) == 0
    line = "OSError: [Errno 28] No space left on device"
    assert told == [("figure", line), ("display", line)]


async def test_what_runs_beside_may_end(told):
    """Its end is told of if it is an exception."""
    best = BestEffort(lambda name, said: told.append(name))

    async def ends():
        fails()

    async def well():
        pass

    await best.run("a", ends)
    await best.run("b", well)
    assert told == ["a"]


def test_nobody_can_be_told():
    """Then nothing is said."""
    best = BestEffort(lambda *_: fails())
    assert best.do("figure", fails, 7) == 7


def test_other_ends_are_not_failures():
    """Ctrl-C reaches whoever waits for it."""

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BestEffort(print).do("figure", interrupted, 7)
