"""One merge: the identities of the paper, refusals, and the same bits whatever the order."""

from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddloco.job.config import Outer
from ddloco.job.protocol.fragment_plan import Leaf, make_plan
from ddloco.machines.outer import merge
from ddloco.machines.outer.block_kernel import NUMPY, NumpyKernel
from ddloco.machines.outer.merge import (
    REPLACING,
    TensorSegment,
    WeightedFragment,
    fragment_segments,
    merge_fragment,
)
from ddloco.machines.outer.merge_rules import MERGE_RULES
from ddloco.machines.outer.optimizers.optimizer import STEPS, state_digest
from ddloco.machines.outer.optimizers.table import OPTIMIZERS, zero_state
from ddloco.machines.outer.weights import merge_weight
from ddloco.workers.merge_kernel import merge_kernel
from transport import DTYPES, Pieces

SIZES = (1000, 37, 2500)
SIZE = sum(SIZES)


def nesterov(theta, momentum, delta, lr, mu):
    """Theta and momentum after one step."""
    out = (delta.copy(), np.empty_like(theta))
    NumpyKernel().nesterov(theta, momentum, (1.0, lr, mu), out)
    return out


def kept(momentum, steps=0):
    """The state of Nesterov steps."""
    return {"momentum": momentum, STEPS: np.array([steps])}


NESTEROV = Outer(lr=0.7, momentum=0.9)


def segments_of(sizes=SIZES, dtypes=("float32",) * 3, rules=("rda",) * 3):
    """Segments of the given sizes, laid out on cache lines."""
    segments, start, offset = [], 0, 0
    for size, dtype, rule in zip(sizes, dtypes, rules, strict=True):
        segments.append(
            TensorSegment(start, start + size, rule, dtype, offset, name=f"{len(segments)}")
        )
        start += size
        offset += -(-size * np.dtype(DTYPES[dtype]).itemsize // 64) * 64
    return segments


def packed(values, segments):
    """The bytes that a learner with these values would send."""
    end = segments[-1].offset + 8 * (segments[-1].stop - segments[-1].start)
    buffer = np.zeros(-(-end // 64) * 64, np.uint8)
    for s in segments:
        raw = values[s.start : s.stop].astype(DTYPES[s.dtype]).view(np.uint8)
        buffer[s.offset : s.offset + raw.size] = raw
    return buffer


def unpacked(buffer, segments):
    """What a learner's bytes say, in float64."""
    parts = []
    for s in segments:
        dtype = np.dtype(DTYPES[s.dtype])
        raw = buffer[s.offset : s.offset + (s.stop - s.start) * dtype.itemsize]
        parts.append(raw.view(dtype).astype(np.float64))
    return np.concatenate(parts)


def merged(theta, values, weights=None, segments=None, *, outer=REPLACING, **options):
    """Merge learners a, b, ... with these values; the state starts at zero."""
    segments = segments or segments_of()
    weights = weights or [1.0] * len(values)
    contributions = [
        WeightedFragment(chr(97 + i), w, packed(v, segments))
        for i, (v, w) in enumerate(zip(values, weights, strict=True))
    ]
    state = zero_state(outer, theta)
    return merge_fragment(theta, state, contributions, segments, outer=outer, **options)


def oracle(theta, momentum, changes, weights, segments, *, lr, mu):
    """The paper's formulas, in float64 and without any care for speed."""
    weights = np.array(weights) / np.sum(weights)
    delta = np.empty(theta.size)
    for s in segments:
        v = np.array([change[s.start : s.stop] for change in changes])
        average = weights @ v
        norms = np.linalg.norm(v, axis=1)
        units = np.divide(v, norms[:, None], out=np.zeros_like(v), where=norms[:, None] > 0)
        direction = weights @ units
        length = np.linalg.norm(direction)
        if s.rule == "rda" and length >= 1e-12:
            average = (weights @ norms) * direction / length
        if s.rule == "median":
            average = np.median(v, axis=0)
        delta[s.start : s.stop] = average
    momentum = mu * momentum + delta
    return theta - lr * (delta + mu * momentum), momentum


def is_steady(changes, weights, segments):
    """Whether no directions nearly cancel each other: RDA gives their sum a length, however short
    it is, and float32 rounds the weights."""
    shares = np.array(weights) / np.sum(weights)
    for s in segments:
        v = np.array([change[s.start : s.stop] for change in changes])
        norms = np.linalg.norm(v, axis=1)
        units = np.divide(v, norms[:, None], out=np.zeros_like(v), where=norms[:, None] > 0)
        length = np.linalg.norm(shares @ units)
        if s.rule == "rda" and 0 < length < 0.01:
            return False
    return True


def normal(seed, *shape):
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def norm(values):
    """The l2 norm in float64."""
    return np.linalg.norm(values.astype(np.float64))


def test_weight_is_quantity_times_quality():
    """Tokens * tokens / steps, and nothing for a learner that did nothing."""
    assert merge_weight(1000, 10) == 100_000.0
    assert merge_weight(2000, 10) == 4 * merge_weight(1000, 10)
    assert [merge_weight(0, 0), merge_weight(0, 5), merge_weight(5, 0)] == [0.0] * 3


@given(st.integers(1, 9), st.floats(0.125, 8.0))
@settings(deadline=None, max_examples=20)
def test_equal_norms_keep_their_norm(learners, radius):
    """However many learners with changes of norm R, the merged change has norm R."""
    theta, segments = np.zeros(SIZE, np.float32), segments_of()
    values = normal(learners, learners, SIZE)
    for s in segments:
        for v in values:
            v[s.start : s.stop] *= radius / norm(v[s.start : s.stop])

    result = merged(theta, values, segments=segments)

    for s in segments:
        assert norm(result.theta[s.start : s.stop]) == pytest.approx(radius, rel=1e-5)


def test_a_lone_learner_is_taken_as_it_is():
    """M = 1 is the identity, to the last bit."""
    theta, values = normal(0, SIZE), normal(1, 1, SIZE)

    result = merged(theta, values)

    np.testing.assert_array_equal(theta - (theta - values[0]), result.theta)


def test_scaling_the_changes_scales_the_result():
    """RDA commutes with scaling; by a power of two, even in bits."""
    theta, values = np.zeros(SIZE, np.float32), normal(1, 4, SIZE)

    small, large = merged(theta, values), merged(theta, values * np.float32(1024))

    np.testing.assert_array_equal(small.theta * np.float32(1024), large.theta)


@given(st.permutations(range(5)))
@settings(deadline=None, max_examples=10)
def test_order_of_arrival_does_not_matter(order):
    """Permuted contributions give the same bits, weights and names."""
    theta, segments = normal(0, SIZE), segments_of()
    values, momentum = normal(1, 5, SIZE), normal(2, SIZE)
    names = ["b", "a", "é", "z", "A"]
    contributions = [
        WeightedFragment(names[i], i + 1.0, packed(values[i], segments)) for i in range(5)
    ]
    state, shuffled = kept(momentum), [contributions[i] for i in order]

    first = merge_fragment(theta, state, contributions, segments, outer=NESTEROV)
    again = merge_fragment(theta, state, shuffled, segments, outer=NESTEROV)

    assert first.theta.tobytes() == again.theta.tobytes()
    assert state_digest(first.state) == state_digest(again.state)
    assert first[2:] == again[2:]
    assert again.accepted == ("A", "a", "b", "z", "é")


def test_threads_and_adjacent_tensors_do_not_change_a_bit(monkeypatch):
    """A tensor's result depends neither on a thread pool nor on the fragment it lies in."""
    monkeypatch.setattr(merge, "BLOCK_ELEMENTS", 256)
    monkeypatch.setattr(merge, "CHUNK_BLOCKS", 2)
    theta, values = normal(0, SIZE), normal(1, 3, SIZE)

    alone = merged(theta, values)
    with ThreadPoolExecutor(4) as pool:
        pooled = merged(theta, values, map_chunks=pool.map)
    last = segments_of()[-1]
    part = slice(last.start, last.stop)
    single = merged(
        theta[part], values[:, part], segments=segments_of((SIZES[-1],), ("float32",), ("rda",))
    )

    assert alone.theta.tobytes() == pooled.theta.tobytes()
    assert alone.norms == pooled.norms
    assert alone.theta[part].tobytes() == single.theta.tobytes()


def test_embeddings_are_averaged():
    """A segment marked so is the plain weighted average; adjacent ones are not."""
    theta, values = np.zeros(SIZE, np.float32), normal(1, 2, SIZE)
    segments = segments_of(rules=("average", "rda", "rda"))

    result = merged(theta, values, [3.0, 1.0], segments)

    average = 0.75 * values[0] + 0.25 * values[1]
    np.testing.assert_allclose(result.theta[:1000], average[:1000], rtol=1e-5, atol=1e-6)
    assert norm(result.theta[1037:]) > 1.2 * norm(average[1037:])
    assert result.weights == (0.75, 0.25)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_a_value_that_is_not_finite_refuses_the_whole_learner(bad, dtype):
    """One NaN or Inf anywhere, and nothing of that learner is used; the rest continues."""
    theta, values = normal(0, SIZE), normal(1, 3, SIZE)
    segments = segments_of(dtypes=("float32", dtype, "float32"))
    expected = merged(theta, values[[0, 2]], segments=segments)
    values[1, 1010] = bad

    result = merged(theta, values, segments=segments)

    assert result.accepted == ("a", "c")
    assert result.refused == (("b", "tensor 1: NaN or Inf"),)
    np.testing.assert_array_equal(expected.theta, result.theta)


def test_a_change_beyond_float32_is_refused_for_what_it_is():
    """Finite values whose change overflows are not called NaN; large but harmless ones pass."""
    theta, values = np.zeros(SIZE, np.float32), normal(1, 3, SIZE)
    theta[5], values[0, 5], values[1, 5] = -3e38, 3e38, -3e38
    values[2, 5] = -3e38
    segments = segments_of(dtypes=("float32", "float64", "float32"))
    contributions = [
        WeightedFragment(n, 1.0, packed(v, segments)) for n, v in zip("abc", values, strict=True)
    ]
    contributions[2].buffer[segments[1].offset : segments[1].offset + 8] = np.array([1e300]).view(
        "u1"
    )
    state = zero_state(REPLACING, theta)

    result = merge_fragment(theta, state, contributions, segments, outer=REPLACING)

    said = "the change is beyond float32"
    assert result.refused == (("a", f"tensor 0: {said}"), ("c", f"tensor 1: {said}"))
    assert result.accepted == ("b",)

    large = merged(np.zeros(SIZE, np.float32), values[1:2] * 0 + np.float32(1e25))
    assert large.norms[0] == pytest.approx(1e25 * SIZE**0.5)
    huge = merged(np.zeros(SIZE, np.float32), values[1:2] * 0 + np.float32(1e30))
    assert huge.refused == (("a", f"tensor 2: {said}"),)


def test_tiny_changes_keep_their_norm():
    """Squares that underflow float32 are taken in float64."""
    theta, tiny = np.zeros(SIZE, np.float32), np.full((2, SIZE), 1e-25, np.float32)

    result = merged(theta, tiny)

    assert result.norms[0] == pytest.approx(1e-25 * SIZE**0.5, rel=1e-4)
    np.testing.assert_allclose(result.theta, tiny[0], rtol=1e-5)


def test_our_own_fault_is_not_blamed_on_a_learner():
    """A global fragment that is not finite is an error, not a reason to refuse."""
    theta, values = normal(0, SIZE), normal(1, 2, SIZE)
    theta[3] = np.nan

    with pytest.raises(ValueError, match="global fragment itself"):
        merged(theta, values)


def test_unreadable_contributions_are_refused():
    """Too few bytes and impossible weights are said; duplicate names are our own mistake."""
    theta, segments = normal(0, SIZE), segments_of()
    good = packed(normal(1, SIZE), segments)
    contributions = [
        WeightedFragment("short", 1.0, good[:100]),
        WeightedFragment("nan", float("nan"), good),
        WeightedFragment("minus", -1.0, good),
        WeightedFragment("table", 1.0, good.reshape(1, -1)),
        WeightedFragment("good", 2.0, good),
    ]
    state = zero_state(REPLACING, theta)

    result = merge_fragment(theta, state, contributions, segments, outer=REPLACING)

    assert result.accepted == ("good",)
    needed = segments[-1].offset + 4 * SIZES[-1]
    said = (
        ("minus", "weight is -1.0"),
        ("nan", "weight is nan"),
        ("short", f"100 of {needed} bytes"),
        ("table", f"{good.size} of {needed} bytes"),
    )
    assert result.refused == said
    with pytest.raises(ValueError, match="two contributions are named 'good'"):
        merge_fragment(theta, state, contributions[3:] * 2, segments, outer=REPLACING)


def test_without_weight_nothing_happens():
    """No contribution, none accepted, or weights of zero: copies of what there was."""
    theta, momentum, segments = normal(0, SIZE), normal(1, SIZE), segments_of()
    idle = WeightedFragment("idle", 0.0, packed(normal(2, SIZE), segments))
    broken = WeightedFragment("broken", 1.0, packed(normal(3, SIZE) * np.nan, segments))

    for contributions in ([], [idle], [broken], [idle, broken]):
        result = merge_fragment(theta, kept(momentum, 3), contributions, segments, outer=NESTEROV)

        np.testing.assert_array_equal(theta, result.theta)
        np.testing.assert_array_equal(momentum, result.state["momentum"])
        assert [3] == result.state[STEPS]
        assert not np.shares_memory(theta, result.theta)
        assert not np.shares_memory(momentum, result.state["momentum"])
        assert (result.accepted, result.weights, result.norms) == ((), (), ())


def test_an_idle_learner_counts_for_nothing():
    """A weight of zero among others is accepted and leaves no trace."""
    theta, values = normal(0, SIZE), normal(1, 3, SIZE)
    without, result = merged(theta, values[:2]), merged(theta, values, [1.0, 1.0, 0.0])
    assert result.weights == (0.5, 0.5, 0.0)
    np.testing.assert_array_equal(without.theta, result.theta)


def test_opposite_changes_fall_back_to_the_average():
    """Where directions cancel there is none to follow: the weighted average is taken."""
    theta, v = np.zeros(SIZE, np.float32), normal(1, SIZE)

    result = merged(theta, np.stack([v, -3 * v]))

    np.testing.assert_allclose(result.theta, -v, rtol=1e-6)


def test_no_change_is_no_direction():
    """phi(0) = 0: a learner that did not move lowers the norm and leaves the direction."""
    theta, v = np.zeros(SIZE, np.float32), normal(1, SIZE)

    result = merged(theta, np.stack([v, 0 * v]))

    np.testing.assert_allclose(result.theta, 0.5 * v, rtol=1e-5)
    np.testing.assert_array_equal(merged(theta, np.zeros((2, SIZE))).theta, theta)


@pytest.mark.parametrize("kernel", [NUMPY, merge_kernel()], ids=["numpy", "compiled"])
def test_contributions_in_pieces_merge_to_the_same_bits(kernel, monkeypatch):
    """Wherever the pieces end, also within a block or a row of the kernel."""
    monkeypatch.setattr(merge, "BLOCK_ELEMENTS", 2048)
    sizes = (5000, 3, 9000)
    theta, segments = normal(0, sum(sizes)), segments_of(sizes)
    packs = [packed(normal(seed, sum(sizes)), segments) for seed in (1, 2, 3)]
    cuts = ([], [64], [4096, 8192, 12288, 16384], [20032])

    def merged(buffers):
        contributions = [WeightedFragment(f"l{i}", 1.0 + i, each) for i, each in enumerate(buffers)]
        state = kept(np.ones_like(theta))
        return merge_fragment(theta, state, contributions, segments, kernel=kernel, outer=NESTEROV)

    whole = merged(packs)
    for cut in cuts:
        found = merged([Pieces(np.split(each, cut)) for each in packs])
        assert found.theta.tobytes() == whole.theta.tobytes()
        assert state_digest(found.state) == state_digest(whole.state)
        assert (found.accepted, found.norms) == (whole.accepted, whole.norms)


@given(
    st.tuples(*[st.sampled_from(sorted(DTYPES))] * 3),
    st.tuples(*[st.sampled_from(list(MERGE_RULES))] * 3),
    st.lists(st.floats(0.5, 1e6), min_size=1, max_size=5),
    st.sampled_from([0, 1, 100, 4096]),
)
@settings(deadline=None, max_examples=40)
def test_equals_a_plain_float64_oracle(dtypes, rules, weights, last):
    """For mixed wire dtypes, sizes and weights the result is that of the paper's formulas."""
    segments = segments_of((1500, 3, last), dtypes, rules)
    size = segments[-1].stop
    theta, momentum = normal(0, size), normal(1, size)
    buffers = [packed(theta + 0.1 * normal(i + 2, size), segments) for i in range(len(weights))]
    changes = [theta.astype(np.float64) - unpacked(b, segments) for b in buffers]
    assume(is_steady(changes, weights, segments))
    named = [
        WeightedFragment(str(i), w, b)
        for i, (w, b) in enumerate(zip(weights, buffers, strict=True))
    ]

    result = merge_fragment(theta, kept(momentum), named, segments, outer=NESTEROV)

    expected = oracle(theta, momentum, changes, weights, segments, lr=0.7, mu=0.9)
    np.testing.assert_allclose(result.theta, expected[0], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(result.state["momentum"], expected[1], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(result.norms, [np.linalg.norm(c) for c in changes], rtol=1e-4)


def test_nesterov_is_optax_sgd():
    """Several steps agree with optax.sgd(nesterov=True) to one unit in the last place."""
    theta, momentum = normal(0, SIZE), np.zeros(SIZE, np.float32)
    optimizer = optax.sgd(0.7, momentum=0.9, nesterov=True)
    params = jnp.asarray(theta)
    state = optimizer.init(params)

    for step in range(5):
        delta = normal(step + 1, SIZE)
        theta, momentum = nesterov(theta, momentum, delta, 0.7, 0.9)
        updates, state = optimizer.update(jnp.asarray(delta), state)
        params = optax.apply_updates(params, updates)

        np.testing.assert_array_max_ulp(theta, np.asarray(params), maxulp=1)


def test_a_merge_is_the_direction_and_then_nesterov():
    """With one learner the outer step is exactly `nesterov` of its change."""
    theta, momentum, value = normal(0, SIZE), normal(1, SIZE), normal(2, SIZE)
    segments = segments_of()
    one = [WeightedFragment("a", 5.0, packed(value, segments))]

    result = merge_fragment(theta, kept(momentum, 1), one, segments, outer=NESTEROV)

    expected = nesterov(theta, momentum, theta - value, 0.7, 0.9)
    np.testing.assert_array_equal(result.theta, expected[0])
    np.testing.assert_array_equal(result.state["momentum"], expected[1])
    assert [2] == result.state[STEPS]


def test_inputs_are_left_alone():
    """Read-only inputs work: nothing is written to theta, momentum or a buffer."""
    theta, momentum, segments = normal(0, SIZE), normal(1, SIZE), segments_of()
    contributions = [WeightedFragment(n, 1.0, packed(normal(2, SIZE), segments)) for n in "ab"]
    for array in (theta, momentum, *(c.buffer for c in contributions)):
        array.flags.writeable = False

    result = merge_fragment(theta, kept(momentum), contributions, segments, outer=NESTEROV)

    assert result.theta.flags.writeable
    nesterov(theta, momentum, theta, 0.7, 0.9)


def test_segments_follow_the_plan():
    """The segments of a fragment tile it, and point at the plan's tensors."""
    leaves = [Leaf("embed/token", (7, 3), "bfloat16"), Leaf("w", (5,), "float32")]
    plan = make_plan(leaves, fragments=1, interval=4, strategy="balanced")

    segments = fragment_segments(plan, 0, Outer(average=("embed/*",)))

    assert segments == (
        TensorSegment(0, 21, "average", "bfloat16", 0, name="embed/token"),
        TensorSegment(21, 26, "rda", "float32", 64, name="w"),
    )


def test_what_learners_hold_takes_the_place_of_what_was_lost():
    """Their average by weight, whatever theta was; the state of before goes on; NaN is refused."""
    theta = np.full(4, 100.0, np.float32)
    segments = (TensorSegment(0, 4, rule="rda", dtype="float32", offset=0),)
    held = {"a": np.full(4, 1.0), "b": np.full(4, 3.0), "c": np.full(4, np.nan)}
    contributions = [
        WeightedFragment(name, weight, values.astype(np.float32).view(np.uint8))
        for (name, values), weight in zip(held.items(), (1.0, 3.0, 1.0), strict=True)
    ]
    state = kept(theta, 5)
    found = merge_fragment(theta, state, contributions, segments, outer=NESTEROV, adopt=True)
    assert np.allclose(found.theta, 2.5, atol=1e-4)
    assert state_digest(state) == state_digest(found.state)
    assert all(found.state[name] is not state[name] for name in state)
    assert (("a", "b"), ["c"]) == (found.accepted, [name for name, _ in found.refused])


def test_a_state_becomes_the_plain_average():
    """Without learning rate, momentum and radial averaging; and its size is not that of a change of
    the parameters."""
    rng = np.random.default_rng(3)
    segments = segments_of()
    stated = [segments[0], segments[1]._replace(rule="average", state=True), segments[2]]
    state, rest = slice(1000, 1037), np.r_[0:1000, 1037:SIZE]
    theta = rng.standard_normal(SIZE).astype(np.float32)
    values = [theta + 0.01 * rng.standard_normal(SIZE).astype(np.float32) for _ in range(3)]
    for each in values:
        each[state] *= 1e3
    momentum, weights = np.ones_like(theta), (1.0, 2.0, 5.0)
    parts = [
        WeightedFragment(name, weight, packed(value, segments))
        for name, weight, value in zip("abc", weights, values, strict=True)
    ]
    plain = merge_fragment(theta, kept(momentum), parts, segments, outer=NESTEROV)
    found = merge_fragment(theta, kept(momentum), parts, stated, outer=NESTEROV)
    mean = np.average([value[state] for value in values], axis=0, weights=weights)

    assert np.allclose(mean, found.theta[state], rtol=1e-5, atol=1e-3)
    assert not found.state["momentum"][state].any()
    assert np.array_equal(plain.theta[rest], found.theta[rest])
    assert np.array_equal(plain.state["momentum"][rest], found.state["momentum"][rest])
    assert [float(np.linalg.norm((theta - each)[rest])) for each in values] == pytest.approx(
        found.norms, rel=1e-4
    )
    assert min(plain.norms) > 100 * max(found.norms)


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("rule", list(MERGE_RULES))
def test_every_rule_gives_one_result_for_one_set(rule, optimizer):
    """Whatever the order of contributions, the kernel and the threads, over several blocks."""
    sizes = (700_001, 5, 300)
    segments = segments_of(sizes, ("float32", "bfloat16", "float16"), (rule,) * 3)
    theta = normal(1, sum(sizes))
    values = [theta + 0.1 * normal(n, theta.size) for n in range(2, 6)]
    for value in values[1:3]:
        value[::7] = theta[::7]  # Changes of zero, with either sign.
    weights = [1.0, 2.0, 0.0, 4.0]
    outer = Outer(optimizer=optimizer, lr=0.7)
    whole = merged(theta, values, weights, segments, outer=outer)
    with ThreadPoolExecutor(3) as pool:
        others = [merged(theta, values, weights, segments, outer=outer, map_chunks=pool.map)]
    compiled = merge_kernel()
    others.append(merged(theta, values, weights, segments, outer=outer, kernel=compiled))
    parts = [
        WeightedFragment("abcd"[n], weights[n], packed(values[n], segments)) for n in (3, 1, 0, 2)
    ]
    zeros = zero_state(outer, theta)
    others.append(merge_fragment(theta, zeros, parts, segments, outer=outer))
    for other in others:
        assert whole.theta.tobytes() == other.theta.tobytes()
        assert state_digest(whole.state) == state_digest(other.state)


@pytest.mark.parametrize("rule", list(MERGE_RULES))
def test_one_contribution_is_its_own_merge(rule):
    """By every rule, without rounding."""
    theta, value = normal(0, SIZE), normal(1, 1, SIZE)
    segments = segments_of(rules=(rule,) * 3)
    found = merged(theta, value, segments=segments, outer=Outer(lr=1.0, momentum=0.0))
    assert found.state["momentum"].tobytes() == (theta - value[0]).tobytes()


def test_a_plan_says_what_is_state():
    """By name, as the worker gives it."""
    leaves = [Leaf("layer/mean", (3,), "float32"), Leaf("state:/layer/mean", (3,), "float32")]
    plan = make_plan(leaves, fragments=1, interval=1, strategy="tensor")
    first, second = fragment_segments(plan, 0, Outer())

    assert (("rda", False), ("average", True)) == (first[2:6:3], second[2:6:3])
