"""Compressed differences of whole fragments: learners and syncer stay in step, to the bit."""

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from ddloco.config.job import Compress
from ddloco.protocol.effects import Differences, EncodeFragment, MergeFragment, Share
from ddloco.protocol.fragment_plan import Leaf
from ddloco.runtime.array_table import Arrays, HostCopy
from ddloco.runtime.shared_memory import Region
from ddloco.workers.compression import FragmentCompression
from ddloco.workers.layout import Layouts

LEAVES = (
    Leaf("a/bias", (3,), "float32"),
    Leaf("a/kernel", (300, 2), "float32"),
    Leaf("b/kernel", (40, 5), "bfloat16"),
)


class Side:
    """The compression of one actor of a job with one fragment."""

    def __init__(self, make_job, name="learner-0", **settings):
        job = replace(make_job(fragments=1, interval=1), compress=Compress(**settings))
        self.layouts = Layouts(job.plan(LEAVES), job.outer)
        self.arrays = Arrays()
        self.compression = FragmentCompression(job, name, self.layouts, self.arrays)
        self.size = self.layouts.segments(0)[-1].stop

    def payload(self, flat):
        """A fragment as it is sent whole."""
        return self.layouts.sent(0, np.asarray(flat, np.float32))

    def host(self, handle, flat):
        """A learner's host copy."""
        data = self.payload(flat).data.copy()
        self.arrays.put(handle, HostCopy(Region(0, data)))


def some(side, seed, scale=1.0):
    """Numbers that bfloat16 can hold."""
    values = np.random.default_rng(seed).normal(size=side.size) * scale
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("up", ["float32", "int8", "int4", "int1"])
def test_a_contribution_is_read_as_base_plus_difference(make_job, up):
    """The syncer adds what it reads to its own parameters of the base version."""
    learner = Side(make_job, up=up, down="int8")
    base, moved = some(learner, 1), some(learner, 2, 0.01)
    learner.arrays.put("in/1", learner.payload(base))
    learner.host("host/1", base + moved)
    payload, lost = learner.compression.contribution(
        EncodeFragment(1, 0, "host/1", "out/1", "in/1")
    )
    assert lost is None
    syncer = Side(make_job, "syncer", up=up, down="int8")
    syncer.arrays.put("theta/0/0", base)
    syncer.arrays.put("in/7", payload)
    more = Differences({"learner-0.1": "theta/0/0"})
    work = MergeFragment(
        1, 1, 0, "theta/0/0", "", (Share("learner-0.1", "in/7", 1.0, 0),), {}, {}, ("a", "b", "c"),
        differences=more,
    )  # fmt: skip
    (contribution,), segments = syncer.compression.merged(work)
    read = contribution.buffer.view(np.float32)
    assert segments[-1].stop == read.size == syncer.size
    sent = learner.layouts.flat(0, learner.arrays.get("host/1").region.data) - base
    worst = {"float32": 1e-6, "int8": 2e-4, "int4": 4e-3, "int1": 6e-2}[up]
    assert np.abs(read - base - sent).max() < worst


def test_error_feedback_makes_up_for_what_was_lost(make_job):
    """Twenty contributions of one bit add up to twenty moves; without feedback they do not."""
    totals = {}
    for feedback in (False, True):
        side = Side(make_job, up="int1", feedback=feedback)
        base, move = np.zeros(side.size, np.float32), some(side, 3, 0.01)
        side.arrays.put("in/1", side.payload(base))
        side.host("host/1", base + move)
        total, error = np.zeros_like(base), ""
        for n in range(20):
            out = f"error/0/{n}" if feedback else ""
            work = EncodeFragment(n, 0, "host/1", "out", "in/1", error, out)
            payload, lost = side.compression.contribution(work)
            total += side.layouts.decompressed(0, "int1", payload.data, np.zeros_like(base))
            if feedback:
                side.arrays.put(out, lost)
                error = out
        totals[feedback] = float(np.abs(total - 20 * move).mean() / np.abs(move).mean())
    assert totals[True] < 3.0
    assert totals[False] > 6.0


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("down", ["bfloat16", "int8", "int4", "int2"])
def test_learners_hold_what_the_syncer_believes(make_job, down, rounding):
    """Ten versions sent as differences: equal bytes on both sides, and never far from the merge."""
    settings = {"up": "int4", "down": down, "rounding": rounding}
    syncer, learner = Side(make_job, "syncer", **settings), Side(make_job, **settings)
    theta = some(syncer, 1)
    held = believed = syncer.payload(theta)
    errors = []
    for t in range(1, 11):
        theta = theta + some(syncer, t, 0.01)
        work = MergeFragment(t, t, 0, "", "", (), {}, {}, ("a", "b", "c"))
        believed, difference = syncer.compression.to_send(work, theta, believed)
        held = learner.compression.version(0, held.data, difference.data)
        assert held.data.tobytes() == believed.data.tobytes()
        assert held.digest == believed.digest
        errors.append(float(np.abs(learner.layouts.flat(0, held.data) - theta).mean()))
    # What one version loses is part of the next difference: errors do not add up.
    assert errors[-1] < 2.5 * max(errors[:3])


def test_noise_differs_between_learners_and_payloads(make_job):
    """The same difference is rounded otherwise by another learner, and the same in a replay."""
    sides = [
        Side(make_job, name, up="int4", rounding="stochastic")
        for name in ("learner-0", "learner-0", "learner-1")
    ]
    payloads = []
    for side in sides:
        base = some(side, 1)
        side.arrays.put("in/1", side.payload(base))
        side.host("host/1", base + some(side, 2, 0.01))
        work = EncodeFragment(1, 0, "host/1", "out", "in/1")
        payloads.append(side.compression.contribution(work)[0].digest)
    assert payloads[0] == payloads[1] != payloads[2]
