"""When a sync is launched: floor, quorum and grace, and the deadline of its pulls."""

import pytest

from ddloco.config.job import Sync
from ddloco.machines.syncer.pacing import PULL_S_MAX, PULL_S_MIN, PULL_S_UNKNOWN, Pacing


def one_missing(until):
    """There is a learner to wait for."""
    return True


def none_missing(until):
    """There is none."""
    return False


@pytest.fixture
def pacing():
    """Schedules with a step of 1 s, a sync of 0.2 s and no wait for quorums; overlap 2."""
    pacing = Pacing(Sync(overlap=2, quorum=2, grace=0.5, grace_steps_max=1.0))
    pacing.observe_steps([1.0])
    pacing.sync_s.add(0.2)
    pacing.quorum_s.add(0.0)
    pacing.launched_at, pacing.launched_t = 100.0, 7
    return pacing


@pytest.mark.parametrize(
    ("times", "median"),
    [([], None), ([0.0], None), ([2.0], 2.0), ([1.0, 9.0], 1.0), ([9.0, 0.0, 1.0, 2.0], 2.0)],
)
def test_the_step_is_the_median_learners(pacing, times, median):
    """The lower one of two; who has no time yet does not count; one slow one changes nothing."""
    pacing.observe_steps(times)
    assert median == pacing.step_s


@pytest.mark.parametrize(("t", "floor"), [(8, 101.0), (10, 103.0), (7, 100.5), (6, 100.5)])
def test_the_floor_is_a_step_for_each_step(pacing, t, floor):
    """Steps since the last launch have their time; a repeated sync has no floor of its own."""
    assert floor == pacing.await_sync(100.5, t, 0).floor_at


def test_the_first_sync_has_no_floor(pacing):
    """Before anything was launched there is nothing to keep a distance from."""
    pacing.launched_t = 0
    assert 100.5 == pacing.await_sync(100.5, 1, 0).floor_at


def test_no_quorum_no_time(pacing):
    """Below K nothing is launched, whatever the hour."""
    waiting = pacing.await_sync(100.5, 8, 0)
    assert pacing.wait_until(999.0, waiting, able=1, missing=one_missing) is None


def test_the_floor_holds_though_all_are_there(pacing):
    """A full quorum before the floor waits for the floor."""
    waiting = pacing.await_sync(100.5, 8, 0)
    assert 101.0 == pacing.wait_until(100.6, waiting, able=3, missing=none_missing)


def test_the_window_opens_at_the_quorum(pacing):
    """Gamma times what two steps of overlap hide: 0.5 * (2 - 0.2) = 0.9 s, for the missing."""
    waiting = pacing.await_sync(100.5, 8, 0)
    assert pytest.approx(101.9) == pacing.wait_until(101.0, waiting, able=2, missing=one_missing)
    assert pytest.approx(101.9) == pacing.wait_until(101.4, waiting, able=2, missing=one_missing)


def test_the_window_closes_when_none_missing_is_missing(pacing):
    """With the last one there, waiting longer brings nothing."""
    waiting = pacing.await_sync(100.5, 8, 0)
    pacing.wait_until(101.0, waiting, able=2, missing=one_missing)
    assert 101.5 >= pacing.wait_until(101.5, waiting, able=3, missing=none_missing)


def test_a_lost_quorum_begins_again(pacing):
    """When the quorum falls apart, the window starts again with the next one."""
    waiting = pacing.await_sync(100.5, 8, 0)
    pacing.wait_until(101.0, waiting, able=2, missing=one_missing)
    assert pacing.wait_until(101.2, waiting, able=1, missing=one_missing) is None
    assert pytest.approx(104.9) == pacing.wait_until(104.0, waiting, able=2, missing=one_missing)


@pytest.mark.parametrize(("sync_s", "window"), [(0.2, 0.9), (5.0, 0.0)])
def test_the_window_is_never_negative(pacing, sync_s, window):
    """A sync slower than the overlap leaves no window; at most a step where it is fast."""
    pacing.sync_s.value = sync_s
    waiting = pacing.await_sync(101.0, 8, 0)
    assert pytest.approx(101.0 + window) == pacing.wait_until(
        101.0, waiting, able=2, missing=one_missing
    )


def test_the_window_is_at_most_so_many_steps(pacing):
    """A large overlap does not stretch the window beyond ``grace_steps_max`` steps."""
    pacing.sync = Sync(overlap=20, quorum=2, grace=0.5, grace_steps_max=1.0)
    waiting = pacing.await_sync(101.0, 8, 0)
    assert 102.0 == pacing.wait_until(101.0, waiting, able=2, missing=one_missing)


def test_a_launch_measures_the_wait_for_its_quorum(pacing):
    """From the floor to the quorum; early quorums count as no wait."""
    waiting = pacing.await_sync(100.5, 8, 0)
    pacing.wait_until(103.0, waiting, able=2, missing=none_missing)
    pacing.launch(103.0, waiting, [])
    assert pytest.approx(0.2) == pacing.quorum_s.value
    assert (103.0, 8) == (pacing.launched_at, pacing.launched_t)


def test_a_repeated_launch_does_not_turn_the_schedule_back(pacing):
    """The floor of the next sync is counted from the newest global step launched."""
    pacing.launch(102.0, pacing.await_sync(101.0, 5, 0), [])
    assert (102.0, 7) == (pacing.launched_at, pacing.launched_t)


@pytest.mark.parametrize(
    ("answers_s", "step_s", "deadline_s"),
    [
        ([0.2], 1.0, 1.8),
        ([0.2, 9.0], 1.0, 1.8),
        ([9.0, 0.2, 0.3], 1.0, 2.2),
        ([0.001], 0.01, PULL_S_MIN),
        ([5000.0], 1.0, PULL_S_MAX),
        ([], 1.0, PULL_S_UNKNOWN),
        ([0.2], None, PULL_S_UNKNOWN),
    ],
)
def test_the_deadline_of_a_pull(pacing, answers_s, step_s, deadline_s):
    """Four times what a usual answer takes plus a step, within bounds, generous while unknown; one
    learner on a slow link does not move it."""
    pacing.step_s = step_s
    deadline = pacing.launch(200.0, pacing.await_sync(200.0, 8, 0), answers_s)
    assert pytest.approx(200.0 + deadline_s) == deadline


@pytest.mark.parametrize(("vain", "deadline_s"), [(0, 10.0), (1, 20.0), (4, 160.0), (40, 3600.0)])
def test_a_deadline_grows_while_it_is_in_vain(pacing, vain, deadline_s):
    """Twice as long after each sync without an answer, up to the longest."""
    pacing.vain = vain
    assert deadline_s == pacing.deadline_s([])
