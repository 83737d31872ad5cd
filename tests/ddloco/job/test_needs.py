"""What jobs need, as it was computed by hand."""

import pytest

from ddloco.job.config import job_from
from ddloco.job.needs import needs_of
from ddloco.job.protocol.fragment_plan import Leaf, make_plan

GB = 10**9


def job(learners, interval=24, form="float32", **more):
    """A job with 24 fragments."""
    return job_from(
        {
            "job": {"task": "x:y", "learners": learners},
            "sync": {"fragments": 24, "interval": interval},
            "compress": {"up": form, "down": form},
            **more,
        },
        "test",
    )


@pytest.fixture(scope="module")
def plan():
    """10 GB in 24 fragments of one tensor."""
    leaves = [Leaf(f"w{n:02}", (10 * GB // 24 // 4,), "float32") for n in range(24)]
    return make_plan(leaves, fragments=24, interval=24, strategy="balanced")


@pytest.mark.parametrize(
    ("given", "each_way", "merge", "shards"),
    [
        ((64,), 26.7, 26.7, 27),
        ((64, 24, "int4"), 3.4, 3.4, 4),
        ((64, 240, "int4"), 0.34, 3.4, 1),
        ((1000, 24, "int4"), 53, 53, 54),
        ((1000, 240, "int4"), 5.3, 53, 6),
    ],
)
def test_what_jobs_need(plan, given, each_way, merge, shards):
    """Learners times model by steps of an interval; the contributions of a merge together."""
    need = needs_of(job(*given), plan, step_s=1.0)
    assert each_way * GB == pytest.approx(need.received_s, rel=0.03)
    assert each_way * GB == pytest.approx(need.sent_s, rel=0.03)
    assert merge * GB == pytest.approx(need.merge_bytes, rel=0.03)
    assert shards == need.shards


def test_contributions_in_memory_may_be_limited(plan):
    """By the setting, if there are more; few are what they are."""
    limited = {"transport": {"memory_gb": 2.0}}
    assert 2 * GB == needs_of(job(64, **limited), plan, step_s=1.0).merge_bytes
    few = [needs_of(each, plan, step_s=1.0) for each in (job(4, **limited), job(4))]
    assert few[0] == few[1]


def test_snapshots_are_counted_by_their_interval(plan):
    """None without; by seconds, or by steps and their duration."""
    assert 0 == needs_of(job(2), plan, step_s=1.0).snapshot_h
    by_s = needs_of(job(2, snapshot={"every_s": 600.0}), plan, step_s=1.0)
    by_steps = needs_of(job(2, snapshot={"every_steps": 300}), plan, step_s=2.0)
    assert by_s.snapshot_h == by_steps.snapshot_h
    assert 6 * (2 * 3 + 2) * 10 * GB == pytest.approx(by_s.snapshot_h, rel=0.01)


def test_a_site_with_a_relay_is_one_line(plan):
    """And a learner without one is another."""
    relays = {"relay-0": {"learners": [f"learner-{n}" for n in range(40)]}}
    with_relay = needs_of(job(64, relay=relays), plan, step_s=1.0)
    as_many = needs_of(job(25), plan, step_s=1.0)
    assert (with_relay.received_s, with_relay.sent_s, with_relay.merge_bytes) == (
        as_many.received_s, as_many.sent_s, as_many.merge_bytes,
    )  # fmt: skip
