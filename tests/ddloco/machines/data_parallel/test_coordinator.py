"""The averager in worlds: what data-parallel training does when replicas are lost, and its cost."""

import itertools

import numpy as np
import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.work import Differentiate
from ddloco.stage.files.faults import SYNCER
from ddloco.workers.simulated.objective import target
from ddloco.workers.simulated.work import TOKENS

DOWNSCALE_S, UPSCALE_S, RESTART_S = 4.0, 3.0, 7.0
DETECT_S = 2.2
"""A replica that is gone is noticed at the next word to it: two seconds, and the way there."""


@pytest.fixture
def job():
    """Makes a data-parallel job."""

    def made(elastic=False, learners=3, steps=40):
        method = "elastic-data-parallel" if elastic else "data-parallel"
        table = {"task": "none:none", "steps": steps, "learners": learners, "method": method}
        durations = {
            "downscale_s": DOWNSCALE_S, "upscale_s": UPSCALE_S, "restart_s": RESTART_S,
        }  # fmt: skip
        return job_from({"job": table, "elastic": durations}, "test")

    return made


def merges(world):
    """(seconds, global step, who was averaged) of every step."""
    return [(at, fields["t"], tuple(fields["learners"])) for at, fields in world.observed("merge")]


def test_a_job_is_plain_sgd_on_the_mean_gradient(World, job):
    """Each step merges every replica's gradient at the same parameters; a loop of numpy gives the
    same."""
    world = World(job(steps=10), {"learner-1": 1.7}, arithmetic=True)
    world.run(99.0)
    assert world.over
    everyone = tuple(f"learner-{n}.1" for n in range(3))
    assert [(t, everyone) for t in range(1, 11)] == [(t, who) for _, t, who in merges(world)]
    size = world.plan.total_bytes // 4
    theta = target(f"start of {world.job.job.seed}", size).astype(np.float64)
    for _ in range(10):
        theta -= 0.1 * np.mean([theta - target(name, size) for name in everyone], axis=0)
    found = world.nodes[SYNCER].contents["theta/0/10"].array
    np.testing.assert_allclose(found, theta, rtol=1e-4, atol=1e-5)


def test_the_numbers_are_those_of_any_job(World, job):
    """Goodput, steps and tokens, with each step and in the result; a fast replica waits."""
    world = World(job(steps=10), {"learner-1": 3.0})
    world.run(99.0)
    assert world.over
    [(_, result)] = world.observed("result")
    assert (result["inner_steps"], result["trained_tokens"]) == (30, 30 * TOKENS)
    assert (result["merged_tokens"], result["live"]) == (30 * TOKENS, 3)
    # Two of three replicas compute for a third of the time, and the first steps compile.
    assert 0.45 < result["goodput"] < 0.6
    assert result["compiling_s"] == pytest.approx(5.0)
    assert result["parameters_s"] > 2 * 9 * 2.0
    steps = [fields["goodput"] for _, fields in world.observed("merge")]
    assert all(0.0 <= goodput <= 1.0 for goodput in steps)
    status = world.nodes[SYNCER].actor.machine.status(world.now)
    assert (status.t, status.merges, status.goodput) == (10, 10, result["goodput"])


def test_every_step_waits_for_the_slowest(World, job):
    """That is the point of the comparison."""
    world = World(job(), {"learner-1": 3.0})
    world.run(60.0)
    times = [at for at, *_ in merges(world)]
    gaps = [late - early for early, late in itertools.pairwise(times)]
    assert min(gaps) > 3.0
    assert max(gaps) < 3.2


def test_it_stops_until_everyone_is_back(World, job):
    """Not elastic: no step without a replica, and none for as long as its program starts again."""
    world = World(job())
    world.run(10.2)
    world.kill("learner-1")
    world.run(30.0)
    done = merges(world)
    assert done[-1][0] < 10.2 + 1.2
    world.start("learner-1")
    world.run(60.0)
    after = merges(world)[len(done) :]
    assert 30.0 + RESTART_S < after[0][0] < 30.0 + RESTART_S + 3.0
    assert ("learner-0.1", "learner-1.2", "learner-2.1") == after[0][2]
    assert done[-1][1] + 1 == after[0][1]
    reasons = [fields for _, fields in world.observed("reconfigures")]
    assert [{"seconds": RESTART_S, "reason": "3 replicas go on"}] == reasons


def test_an_elastic_job_goes_on_without_it(World, job):
    """After it has scaled down; and takes it in again when it is back, after scaling up."""
    world = World(job(elastic=True))
    world.run(10.2)
    world.kill("learner-1")
    world.run(30.1)
    lost = [at for at, fields in world.observed("lost") if fields["learner"] == "learner-1.1"]
    assert 10.2 < lost[0] < 10.2 + DETECT_S + 1.0
    two = [each for each in merges(world) if len(each[2]) == 2]
    assert two[0][2] == ("learner-0.1", "learner-2.1")
    assert lost[0] + DOWNSCALE_S <= two[0][0] < lost[0] + DOWNSCALE_S + 1.5
    world.start("learner-1")
    world.run(60.0)
    three = [each for each in merges(world) if each[0] > 30.1 and len(each[2]) == 3]
    assert 30.1 + UPSCALE_S < three[0][0] < 30.1 + UPSCALE_S + 3.0
    reasons = [fields["seconds"] for _, fields in world.observed("reconfigures")]
    assert [DOWNSCALE_S, UPSCALE_S] == reasons
    ts = [t for _, t, _ in merges(world)]
    assert list(range(1, len(ts) + 1)) == ts


@pytest.mark.parametrize("elastic", [False, True])
def test_gradients_of_survivors_are_kept(World, job, elastic):
    """A replica that had sent its gradient of the running step does not compute it again."""
    world = World(job(elastic=elastic), {"learner-1": 2.0})
    world.run(11.0)
    at, t, _ = merges(world)[-1]
    world.run(at + 1.5)  # The two others have sent theirs.
    world.kill("learner-1")
    world.run(world.now + 12.0)
    if not elastic:
        world.start("learner-1")
        world.run(world.now + 15.0)
    assert merges(world)[-1][1] > t
    for name in ("learner-0.1", "learner-2.1"):
        mine = [effects for _, who, _, effects in world.traced.lines if who == name]
        asked = [e.source for each in mine for e in each if isinstance(e, Differentiate)]
        sources = {handle: asked.count(handle) for handle in asked}
        assert set(sources.values()) == {1}
        assert len(asked) <= merges(world)[-1][1] + 1


def test_everyone_gone_is_no_end(World, job):
    """An elastic job, too, waits for a first replica; then it continues with those that are
    there."""
    world = World(job(elastic=True, learners=2))
    world.run(6.2)
    for name in ("learner-0", "learner-1"):
        world.kill(name)
    world.run(20.0)
    before = len(merges(world))
    world.start("learner-1")
    world.run(40.0)
    assert ("learner-1.2",) == merges(world)[before][2]
    world.start("learner-0")
    world.run(120.0)
    assert world.over
    assert 40 == merges(world)[-1][1]


def test_a_job_begins_with_everyone(World, job):
    """An elastic one, too: nothing is done until all have come."""
    world = World(job(elastic=True))
    world.kill("learner-2")
    world.run(10.0)
    assert [] == merges(world)
    world.start("learner-2")
    world.run(20.0)
    assert 3 == len(merges(world)[0][2])


def test_asked_to_stop_it_ends_in_good_order(World, job):
    """The model of the last step is scored and kept; all replicas are told."""
    world = World(job())
    world.run(5.5)
    world.stop(SYNCER, "enough")
    world.run(60.0)
    assert world.over
    assert ("stopped", "enough") == (
        world.nodes[SYNCER].finish.status,
        world.nodes[SYNCER].finish.reason,
    )
    [(_, result)] = world.observed("result")
    assert merges(world)[-1][1] == result["t"]


def test_a_link_that_breaks_costs_a_handshake(World, job):
    """No step is left out or done twice."""
    world = World(job(steps=20))
    world.run(7.3)
    world.break_lane("learner-1", SYNCER)
    world.run(99.0)
    assert world.over
    assert list(range(1, 21)) == [t for _, t, _ in merges(world)]


def test_a_job_whose_syncer_was_lost_ends_with_a_line(World, job):
    """Its parameters and optimizer state are lost, so the job cannot go on, and does not stand."""
    world = World(job())
    world.run(8.2)
    world.kill(SYNCER)
    world.run(9.0)
    world.start(SYNCER)
    world.run(60.0)
    finish = world.nodes[SYNCER].finish
    assert finish.status == "failed"
    assert "cannot go on; run it again" in finish.reason


@pytest.mark.parametrize("elastic", [False, True])
def test_a_standstill_is_named(World, job, elastic):
    """Replicas are gone, or one does not finish its step: a warning after a minute, then at growing
    intervals; none in a job that steps."""
    world = World(job(elastic=elastic, learners=2))
    world.run(8.2)
    assert not world.observed("no merge")
    for name in ("learner-0", "learner-1") if elastic else ("learner-0",):
        world.kill(name)
    world.run(300.0)
    said = [fields for _, fields in world.observed("no merge")]
    times = [at for at, _ in world.observed("no merge")]
    assert 3 == len(said)
    many = "0 of 2" if elastic else "1 of 2"
    assert {f"{many} replicas are linked"} == {each["reason"].partition(",")[0] for each in said}
    assert times[0] < 8.2 + 65.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps == sorted(gaps)


def test_who_is_waited_for_is_named(World, job):
    """A replica that hangs in its step is linked, and the others wait for its gradient."""
    world = World(job(learners=2))
    world.run(8.2)
    world.freeze("learner-1")
    world.run(80.0)
    ((_, fields),) = world.observed("no merge")
    assert "the gradients of learner-1.1" == fields["reason"]
    assert "warning" == fields["level"]
