"""When a sync is launched: floor, quorum and grace, and the deadline of its pulls."""

import pytest
from msgspec.structs import replace

from ddloco.job.config import SyncTable
from ddloco.job.protocol.messages import Progress
from ddloco.machines.syncer.members import new_member
from ddloco.machines.syncer.pacing import PULL_S_MAX, PULL_S_MIN, PULL_S_UNKNOWN, Pacing


def one_missing(until):
    """There is a learner to wait for."""
    return True


SYNC = SyncTable(overlap=2, quorum=2, grace=0.5, grace_steps_max=1.0)


def none_missing(until):
    """There is none."""
    return False


@pytest.fixture
def pacing():
    """Schedules with a step of 1 s, a sync of 0.2 s and no wait for quorums; overlap 2."""
    pacing = Pacing()
    pacing.observe([member("learner-0")])
    pacing.sync_s.add(0.2)
    pacing.quorum_s.add(0.0)
    pacing.launched_t = 7
    return pacing


def member(name, ahead=0, heard_at=100.0, step_s=1.0):
    """A learner that has done so many steps since the last launch."""
    found = new_member(name, name, 1, heard_at)
    found.ahead, found.heard_at = ahead, heard_at
    found.progress = Progress(10, step_s, (0,), (1,), (1,))
    return found


def floored(waiting, at=101.0):
    """The sync, whose floor was reached at that time."""
    waiting.floor_at = at
    return waiting


@pytest.mark.parametrize(
    ("times", "median"),
    [([], None), ([0.0], None), ([2.0], 2.0), ([1.0, 9.0], 1.0), ([9.0, 0.0, 1.0, 2.0], 2.0)],
)
def test_the_step_is_the_median_learners(pacing, times, median):
    """The lower one of two; who has no time yet does not count; one slow one changes nothing."""
    pacing.observe([member(f"learner-{n}", step_s=each) for n, each in enumerate(times)])
    assert median == pacing.step_s == pacing.report_s


def test_a_report_of_several_steps_takes_as_long_as_they(pacing):
    """Who is live follows from reports; the grace window from steps, so that launches for steps
    that were taken together do not each wait for the next report."""
    several = member("learner-0")
    several.progress = replace(several.progress, step_s=0.25, together=12)
    pacing.observe([several, several])
    assert (0.25, 3.0) == (pacing.step_s, pacing.report_s)


@pytest.mark.parametrize(("t", "steps"), [(8, 1), (10, 3), (7, 0), (6, 0)])
def test_the_floor_is_a_step_for_each_step(pacing, t, steps):
    """Steps since the last launch must be done; a repeated sync has no floor of its own."""
    waiting = pacing.await_sync(100.5, t, 0)
    assert steps == waiting.steps
    assert (None if steps else 100.5) == waiting.floor_at


def test_the_first_sync_has_no_floor(pacing):
    """Before anything was launched there is nothing to keep a distance from."""
    pacing.launched_t = 0
    assert 100.5 == pacing.await_sync(100.5, 1, 0).floor_at


@pytest.mark.parametrize(
    ("ahead", "quiet_s", "done"),
    [
        ((3,), (0,), True),
        ((2,), (0,), False),
        ((3, 0), (0, 0), True),
        ((3, 0, 0), (0, 0, 0), False),
        ((3, 3, 0), (0, 0, 0), True),
        ((3, 3, 0, 0), (0, 0, 0, 0), True),
        ((9, 2, 2), (0, 0, 5), True),
        ((9, 2, 2), (0, 0, 3), False),
        ((0, 0), (9, 9), False),
        ((9, 0, 0, 0, 0), (0, 0, 5, 5, 5), True),
    ],
)
def test_the_median_live_learner_has_done_the_steps(pacing, ahead, quiet_s, done):
    """Half of those that have reported within four steps, or more; nobody waits for the others,
    and without anybody who has done them nothing is due."""
    members = [
        member(f"learner-{n}", each, 200.0 - quiet)
        for n, (each, quiet) in enumerate(zip(ahead, quiet_s, strict=True))
    ]
    count = sum(each.ahead >= 3 for each in members)
    assert pacing.have_done(200.0, count, members) is done


def test_learners_of_unknown_pace_are_not_waited_for(pacing):
    """A learner that compiles its second step has reported one, and has no step time yet."""
    members = [member("learner-0", 3), member("learner-1", step_s=0.0), member("learner-2", 0)]
    assert pacing.have_done(100.0, 1, members)


def test_learners_are_looked_at_twice_a_step(pacing):
    """Looking at all of them at every report of one would cost the square of their number."""
    members = [member(f"learner-{n}", 3 * (n == 0), 100.0) for n in range(4)]
    assert not pacing.have_done(104.0, 1, members)
    assert not pacing.have_done(104.4, 1, members), "not looked at again yet"
    assert pacing.have_done(104.5, 1, members)


@pytest.mark.parametrize(("step_s", "quiet_s", "awaits"), [(1, 3, 1), (1, 5, 0), (9, 30, 1)])
def test_who_is_awaited_reports_at_its_own_pace(pacing, step_s, quiet_s, awaits):
    """Four of its own steps, or of the median's if those are longer."""
    found = member("learner-0", 0, 200.0 - quiet_s, float(step_s))
    assert bool(awaits) is pacing.is_live(200.0, found)


def test_no_quorum_no_time(pacing):
    """Below K nothing is launched, whatever the hour."""
    waiting = floored(pacing.await_sync(100.5, 8, 0))
    assert pacing.wait_until(999.0, waiting, SYNC, able=1, missing=one_missing) is None


def test_the_floor_holds_though_all_are_there(pacing):
    """A full quorum before the floor waits for a report, however long that takes."""
    waiting = pacing.await_sync(100.5, 8, 0)
    assert pacing.wait_until(999.0, waiting, SYNC, able=3, missing=none_missing) is None
    assert 999.0 == pacing.wait_until(999.0, floored(waiting), SYNC, able=3, missing=none_missing)


def test_the_window_opens_at_the_quorum(pacing):
    """Gamma times what two steps of overlap hide: 0.5 * (2 - 0.2) = 0.9 s, for the missing."""
    waiting = floored(pacing.await_sync(100.5, 8, 0))
    assert pytest.approx(101.9) == pacing.wait_until(
        101.0, waiting, SYNC, able=2, missing=one_missing
    )
    assert pytest.approx(101.9) == pacing.wait_until(
        101.4, waiting, SYNC, able=2, missing=one_missing
    )


def test_the_window_closes_when_none_missing_is_missing(pacing):
    """With the last one there, waiting longer brings nothing."""
    waiting = floored(pacing.await_sync(100.5, 8, 0))
    pacing.wait_until(101.0, waiting, SYNC, able=2, missing=one_missing)
    assert 101.5 >= pacing.wait_until(101.5, waiting, SYNC, able=3, missing=none_missing)


def test_a_lost_quorum_begins_again(pacing):
    """When the quorum falls apart, the window starts again with the next one."""
    waiting = floored(pacing.await_sync(100.5, 8, 0))
    pacing.wait_until(101.0, waiting, SYNC, able=2, missing=one_missing)
    assert pacing.wait_until(101.2, waiting, SYNC, able=1, missing=one_missing) is None
    assert pytest.approx(104.9) == pacing.wait_until(
        104.0, waiting, SYNC, able=2, missing=one_missing
    )


@pytest.mark.parametrize(("sync_s", "window"), [(0.2, 0.9), (5.0, 0.0)])
def test_the_window_is_never_negative(pacing, sync_s, window):
    """A sync slower than the overlap leaves no window; at most a step where it is fast."""
    pacing.sync_s.value = sync_s
    waiting = floored(pacing.await_sync(101.0, 8, 0))
    assert pytest.approx(101.0 + window) == pacing.wait_until(
        101.0, waiting, SYNC, able=2, missing=one_missing
    )


def test_the_window_is_at_most_so_many_steps(pacing):
    """A large overlap does not stretch the window beyond ``grace_steps_max`` steps."""
    wide = replace(SYNC, overlap=20)
    waiting = floored(pacing.await_sync(101.0, 8, 0))
    assert 102.0 == pacing.wait_until(101.0, waiting, wide, able=2, missing=one_missing)


def test_a_launch_measures_the_wait_for_its_quorum(pacing):
    """From the floor to the quorum; early quorums count as no wait."""
    for _ in range(9):
        waiting = floored(pacing.await_sync(100.5, 8, 0), 101.0)
        pacing.wait_until(103.0, waiting, SYNC, able=2, missing=none_missing)
        pacing.launch(103.0, waiting, [])
    assert pytest.approx(2.0) == pacing.quorum_s.value
    assert 8 == pacing.launched_t


def test_a_repeated_launch_does_not_turn_the_schedule_back(pacing):
    """The floor of the next sync is counted from the newest global step launched."""
    pacing.launch(102.0, pacing.await_sync(101.0, 5, 0), [])
    assert 7 == pacing.launched_t


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
    pacing.report_s = step_s
    deadline = pacing.launch(200.0, pacing.await_sync(200.0, 8, 0), answers_s)
    assert pytest.approx(200.0 + deadline_s) == deadline


@pytest.mark.parametrize(("vain", "deadline_s"), [(0, 10.0), (1, 20.0), (4, 160.0), (40, 3600.0)])
def test_a_deadline_grows_while_it_is_in_vain(pacing, vain, deadline_s):
    """Twice as long after each sync without an answer, up to the longest."""
    pacing.vain = vain
    assert deadline_s == pacing.deadline_s([])
