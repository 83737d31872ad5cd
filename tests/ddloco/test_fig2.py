"""The paper's Fig. 2 as a test: one of two learners stalls for three steps, and nothing stops.

M=2, P=3, H=3 (one fragment every step), tau=2, K=1; paper.md 3.9.
"""

import itertools

import pytest

from ddloco.job.protocol.messages import Contribution, Progress
from ddloco.job.protocol.work import RunStep, StepFinished
from transport import Transmit

FIRST, SECOND = "learner-0.1", "learner-1.1"
STALL_AT_S, STALL_S, END_S_MAX = 6.2, 3.0, 99.0


@pytest.fixture(params=["fresh", "unmerged"])
def fig2(request, World, make_job):
    """The scenario, run to its end, with either reading of who is pulled."""
    sync = {"fragments": 3, "interval": 3, "overlap": 2, "quorum": 1, "pull": request.param}
    world = World(make_job(learners=2, steps=18, **sync))
    world.run(STALL_AT_S)
    world.stall("learner-1")
    world.pass_time(STALL_S)
    world.resume("learner-1")
    world.run(END_S_MAX)
    return world


def merges_between(world, begin_s, end_s):
    """The (t, learners) of the syncs launched in a stretch of time."""
    merged = {t: learners for _, t, _, learners in world.merging.merges}
    return [(t, merged[t]) for at, t, *_ in world.traced.launches if begin_s <= at < end_s]


def steps_of(world, name):
    """When each step of a learner finished."""
    return world.learning.steps[name]


def resumed_step(world):
    """The first step that begins after the stall, and the fragments as they were then."""
    return next(
        effect
        for at, name, _, effects in world.traced.lines
        for effect in effects
        if name == SECOND and at >= STALL_AT_S + STALL_S and isinstance(effect, RunStep)
    )


def test_all_learners_take_part_before_and_after(fig2):
    """While both train, every sync averages both; the job ends in good order."""
    before = merges_between(fig2, 2.0, STALL_AT_S)
    after = merges_between(fig2, STALL_AT_S + STALL_S + 1.0, 99.0)
    assert {(FIRST, SECOND)} == {learners for _, learners in before + after}
    assert len(before) >= 4
    assert len(after) >= 6
    assert {"done"} == {node.finish.status for node in fig2.nodes.values()}
    assert fig2.over


def test_during_the_stall_every_sync_has_only_the_first_learner(fig2):
    """A learner that stalls has nothing to add, and no sync waits for it; what it had trained
    before is in the next merge, unless only those that finish a step are pulled."""
    before, *during = merges_between(fig2, STALL_AT_S + 0.8, STALL_AT_S + STALL_S)
    earlier = (FIRST,) if fig2.job.sync.pull == "fresh" else (FIRST, SECOND)
    assert [earlier, (FIRST,)] == [before[1], *(learners for _, learners in during)]


def test_the_first_learner_never_pauses(fig2, World, make_job):
    """Its steps come at the very times at which they come when no learner stalls."""
    calm = World(make_job(learners=2, fragments=3, interval=3, steps=18, overlap=2, quorum=1))
    calm.run(END_S_MAX)
    shared = min(len(steps_of(calm, FIRST)), len(steps_of(fig2, FIRST)))
    assert shared >= 18
    assert steps_of(calm, FIRST)[:shared] == steps_of(fig2, FIRST)[:shared]


def test_the_global_step_advances_every_step(fig2):
    """Every global step is merged once, in order, about a step after the one before."""
    assert list(range(1, 19)) == [t for _, t, *_ in fig2.merging.merges]
    times = [at for at, *_ in fig2.traced.launches][1:]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    # A window of at most a step is given once, when the first learner begins to be missing.
    assert max(gaps) <= 2.0
    assert sum(gaps) / len(gaps) <= 1.1


def test_on_resume_the_newest_of_each_fragment_is_applied(fig2):
    """The step after the stall begins with the newest version of all three fragments."""
    at = STALL_AT_S + STALL_S
    known = {
        event.body.fragment: event.body.version
        for when, name, event, _ in fig2.traced.lines
        if name == SECOND and when <= at and hasattr(getattr(event, "body", None), "version")
    }
    step = resumed_step(fig2)
    assert known == {each.fragment: each.version for each in step.overwrites}
    assert [0, 1, 2] == [each.fragment for each in step.overwrites]


def test_on_resume_the_counters_restart(fig2):
    """The first progress after that step shows one step since each new version."""
    step = resumed_step(fig2).step
    versions = [each.version for each in resumed_step(fig2).overwrites]
    effects = next(
        effects
        for _, name, event, effects in fig2.traced.lines
        if name == SECOND and isinstance(event, StepFinished) and event.step == step
    )
    sent = (each.body for each in effects if isinstance(each, Transmit))
    said = next(body for body in sent if isinstance(body, Progress))
    assert (versions, (1, 1, 1), (8, 8, 8)) == (list(said.versions), said.steps, said.tokens)


def test_it_contributes_again_at_a_following_sync(fig2):
    """Within two syncs of coming back, the learner is averaged again, from its new base."""
    at = STALL_AT_S + STALL_S
    following = merges_between(fig2, at, 99.0)[:3]
    assert any(SECOND in learners for _, learners in following)
    back = {each.fragment: each.version for each in resumed_step(fig2).overwrites}
    said = [
        event.body
        for when, _, event, _ in fig2.traced.lines
        if when > at + 1.0
        and isinstance(getattr(event, "body", None), Contribution)
        and event.sender == SECOND
    ]
    assert all(body.base >= back[body.fragment] for body in said)
    assert said
