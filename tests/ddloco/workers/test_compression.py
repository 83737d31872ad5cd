"""Compressed differences of whole fragments: learners and syncer stay in step, to the bit."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from ddloco.job.config import Compress, Outer
from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.work import Differences, EncodeFragment, MergeFragment, Share
from ddloco.machines.outer.merge import REPLACING, merge_fragment
from ddloco.machines.outer.optimizers.table import zero_state
from ddloco.stage.arrays.array_table import ArrayTable, HostCopy
from ddloco.stage.arrays.shared_memory import Region
from ddloco.workers.compression import FragmentCompression
from ddloco.workers.layout import Layouts

LEAVES = (
    Leaf("a/bias", (3,), "float32"),
    Leaf("a/kernel", (300, 2), "float32"),
    Leaf("b/kernel", (40, 5), "bfloat16"),
)


class Side:
    """The compression of one actor of a job with one fragment."""

    def __init__(self, make_job, name="learner-0", leaves=LEAVES, **settings):
        job = replace(make_job(fragments=1, interval=1), compress=Compress(**settings))
        self.layouts = Layouts(job.plan(leaves), job.outer)
        self.arrays = ArrayTable()
        self.compression = FragmentCompression(job, name, self.layouts, self.arrays)
        self.size = self.layouts.segments(0)[-1].stop

    def payload(self, flat):
        """A fragment as it is sent whole."""
        return self.layouts.sent(0, np.asarray(flat, np.float32))

    def host(self, handle, flat):
        """A learner's host copy."""
        data = self.payload(flat).data.copy()
        self.arrays.put(handle, HostCopy(Region(0, data)))


WITH_STATE = (
    *LEAVES,
    Leaf("a/empty", (0, 4), "float32"),
    Leaf("state:/bn/var", (400,), "float32"),
    Leaf("state:/bn/mean", (3,), "bfloat16"),
)


def some(side, seed, scale=1.0):
    """Numbers that bfloat16 can hold."""
    values = np.random.default_rng(seed).normal(size=side.size) * scale
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("up", ["float32", "bfloat16", "int8", "int4", "e3m0", "int2", "int1"])
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
    (contribution,), segments, *_ = syncer.compression.merged(work, base)
    whole = syncer.layouts.decompressed(0, up, payload.data, base)
    buffer, rng = contribution.buffer, np.random.default_rng(5)
    read = np.empty(syncer.size, np.float32)
    for segment in segments:
        edges = sorted({segment.start, segment.stop, *rng.integers(segment.start, segment.stop, 3)})
        for start, stop in pairwise(map(int, edges)):
            read[start:stop] = buffer[4 * start : 4 * stop].view(np.float32)
    assert read.tobytes() == whole.tobytes(), "what is read piece by piece is the whole"
    assert 4 * segments[-1].stop == buffer.size == 4 * syncer.size
    sent = learner.layouts.flat(0, learner.arrays.get("host/1").region.data) - base
    worst = {"float32": 1e-6, "bfloat16": 2e-4, "int8": 2e-4, "int4": 4e-3}.get(up, 6e-2)
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


NARROW = (
    Leaf("a/kernel", (40, 5), "bfloat16"),
    Leaf("b/kernel", (30, 4), "float16"),
    Leaf("c/kernel", (300,), "float32"),
)


def rounds_of(make_job, leaves, count, *, merge="average", momentum=0.0, restart_at=0, **settings):
    """The master's mean move in a job of eight learners that all move by less than a bfloat16.

    Learners train from what they were sent, move by a quarter of a step of bfloat16 on average, and
    hold their parameters in the wire's types.
    """
    job = make_job(fragments=1, interval=1)
    job = replace(job, compress=Compress(**settings), outer=replace(job.outer, merge=merge))
    layouts, arrays = Layouts(job.plan(leaves), job.outer), ArrayTable()
    syncer = FragmentCompression(job, "syncer", layouts, arrays)
    size = layouts.segments(0)[-1].stop
    theta, outer = np.ones(size, np.float32), Outer(lr=1.0, momentum=momentum)
    state = zero_state(outer, theta)
    step, rng = 2.0**-7, np.random.default_rng(0)  # The distance of bfloat16 numbers above 1.
    held, known = layouts.sent(0, theta), False
    for t in range(1, count + 1):
        if t == restart_at:  # A syncer that restarts has the merged parameters, and sends them.
            held, known = layouts.sent(0, theta), False
        name = f"theta/0/{t - 1}"
        arrays.put(name, theta)
        arrays.put("held", held)
        shares, anchors = [], {}
        for n in range(8):
            start = layouts.flat(0, held.data)
            moved = np.where(rng.random(size) < 1 / 4, np.float32(step), np.float32(0))
            own = layouts.sent(0, start + moved)
            arrays.put(f"host/{t}/{n}", HostCopy(Region(0, own.data.copy())))
            who = f"learner-{n}.1"
            if job.compress.up != "float32":
                side = FragmentCompression(job, who, layouts, arrays)
                own, _ = side.contribution(EncodeFragment(1, 0, f"host/{t}/{n}", "out", "held"))
                anchors[who] = name
            arrays.put(f"in/{t}/{n}", own)
            shares.append(Share(who, f"in/{t}/{n}", 1.0, 0))
        down = job.compress.down != "float32"
        more = Differences(anchors, "held" if down and known else "") if anchors or down else None
        work = MergeFragment(
            t, t, 0, name, "", tuple(shares), {}, {}, ("a", "b", "c"), differences=more
        )
        contributions, segments, anchor, _ = syncer.merged(work, theta)
        result = merge_fragment(
            *(theta, state, contributions, segments), outer=outer, anchor=anchor
        )
        assert not result.refused
        if down:
            held, _ = syncer.to_send(work, result.theta, held)
            known = True
        else:
            held = layouts.sent(0, result.theta)
        theta, state = result.theta, result.state
        for handle in arrays.handles():
            arrays.free(handle)
    return [(theta[s.start : s.stop] - 1).mean() / step for s in layouts.segments(0)]


@pytest.mark.parametrize("merge", [pytest.param("average", marks=pytest.mark.slow), "rda"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.2},
        {"restart_at": 100},
        {"up": "int8"},
        {"down": "int8"},
        {"up": "int8", "down": "int8"},
        {"up": "bfloat16", "down": "int8", "restart_at": 100},
    ],
    ids=lambda settings: "-".join(f"{k}={v}" for k, v in settings.items()) or "plain",
)
def test_the_master_moves_by_what_the_learners_moved(make_job, merge, settings):
    """Moves far below a step of the wire's types add up in the float32 master as they do in a job
    whose wire is float32: what the wire rounds off is no part of the outer gradient."""
    wide = tuple(Leaf(leaf.name, leaf.shape, "float32") for leaf in NARROW)
    wanted = rounds_of(make_job, wide, 200, merge=merge, **settings)
    found = rounds_of(make_job, NARROW, 200, merge=merge, **settings)
    assert min(wanted) > 40.0
    assert max(wanted) < 128.0, "above 2 the learners' own steps would be rounded off"
    assert found == pytest.approx(wanted, rel=0.02)


def test_a_difference_that_went_down_is_no_part_of_the_next_merge(make_job):
    """Where only global fragments are compressed, learners that do not move move nothing: what the
    last difference lost stays with the syncer, until a later difference brings it."""
    side = Side(make_job, "syncer", down="int1")
    theta = some(side, 1)
    held = side.payload(theta + some(side, 2, 0.01))
    side.arrays.put("theta/0/0", theta)
    side.arrays.put("held/0/0", held)
    side.arrays.put("in/1", held)
    work = MergeFragment(
        1, 1, 0, "theta/0/0", "", (Share("learner-0.1", "in/1", 1.0, 0),), {}, {},
        ("a", "b", "c"), differences=Differences({}, "held/0/0", ("d", "e")),
    )  # fmt: skip
    contributions, segments, anchor, _ = side.compression.merged(work, theta)
    result = merge_fragment(
        *(theta, zero_state(REPLACING, theta), contributions, segments),
        outer=REPLACING,
        anchor=anchor,
    )
    assert result.theta.tobytes() == theta.tobytes()


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("form", ["bfloat16", "int8", "int4", "e3m0", "int2", "int1"])
def test_task_state_is_never_rounded(make_job, form, rounding):
    """Running variances of 1e-4 to 1e4 come through a compressed payload as they are, both ways,
    and error feedback has nothing to add to them."""
    settings = {"up": form, "down": form, "rounding": rounding, "feedback": True}
    learner = Side(make_job, leaves=WITH_STATE, **settings)
    syncer = Side(make_job, "syncer", leaves=WITH_STATE, **settings)
    base, values = some(learner, 1), some(learner, 2)
    (var,) = (s for s in learner.layouts.segments(0) if s.state and s.stop - s.start == 400)
    values[var.start : var.stop] = np.geomspace(1e-4, 1e4, 400)
    learner.arrays.put("in/1", learner.payload(base))
    learner.host("host/1", values)
    learner.arrays.put("error/0/0", some(learner, 3))
    work = EncodeFragment(1, 0, "host/1", "out", "in/1", "error/0/0", "error/0/1")
    payload, lost = learner.compression.contribution(work)
    read = syncer.layouts.decompressed(0, form, payload.data, base)
    merged = syncer.layouts.on_demand(0, form, payload.pieces, base)
    believed, difference = syncer.compression.to_send(
        MergeFragment(1, 1, 0, "", "", (), {}, {}, ("a", "b", "c")), values, syncer.payload(base)
    )
    held = learner.compression.version(0, syncer.payload(base).data, difference.data)
    assert held.data.tobytes() == believed.data.tobytes()
    for segment in (each for each in learner.layouts.segments(0) if each.state):
        part = slice(segment.start, segment.stop)
        assert read[part].tobytes() == values[part].tobytes()
        in_bytes = slice(4 * segment.start, 4 * segment.stop)
        assert merged[in_bytes].tobytes() == values[part].tobytes()
        assert learner.layouts.flat(0, held.data)[part].tobytes() == values[part].tobytes()
        assert not lost[part].any()
