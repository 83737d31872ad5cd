"""The fragment plan: the same everywhere, complete, balanced, and laid out without overlap."""

from itertools import product

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddloco.job.config import job_from
from ddloco.job.protocol.fragment_plan import INTERVAL_MAX, FragmentPlan, Leaf, make_plan
from ddloco.stage.files.toml import ConfigError
from transport import DTYPES
from transport.payload import ALIGNMENT

STRATEGIES = ("balanced", "layer", "tensor")

MODEL = [
    Leaf("embed/token", (256, 16), "float32"),
    Leaf("embed/position", (8, 16), "float32"),
    Leaf("norm", (16,), "bfloat16"),
    *(
        Leaf(f"blocks/{i}/{name}", shape, "float32")
        for i in (0, 1, 2, 10)
        for name, shape in (("attn/qkv", (16, 48)), ("mlp/w1", (16, 64)), ("norm", (3,)))
    ),
]

leaves_st = st.lists(
    st.builds(
        Leaf,
        st.text("abé0/", min_size=1, max_size=4),
        st.lists(st.integers(0, 9), max_size=2).map(tuple),
        st.sampled_from(sorted(DTYPES)),
    ),
    min_size=1,
    max_size=9,
    unique_by=lambda leaf: leaf.name,
)


@given(leaves_st, st.data(), st.sampled_from(STRATEGIES), st.integers(1, 6))
def test_a_plan_does_not_depend_on_the_order_of_its_input(leaves, data, strategy, count):
    """Parties that list their tensors in different orders derive the same plan."""
    shuffled = data.draw(st.permutations(leaves))

    one = make_plan(leaves, fragments=count, interval=6, strategy=strategy)
    other = make_plan(shuffled, fragments=count, interval=6, strategy=strategy)

    assert one == other
    assert one.digest == other.digest


@given(leaves_st, st.sampled_from(STRATEGIES), st.integers(1, 6))
def test_every_tensor_is_in_one_fragment_and_no_fragment_is_empty(leaves, strategy, count):
    """Each strategy covers every tensor once, in name order within a fragment."""
    plan = make_plan(leaves, fragments=count, interval=6, strategy=strategy)

    names = [leaf.name for fragment in plan.fragments for leaf in fragment]
    assert sorted(leaf.name for leaf in leaves) == sorted(names)
    assert all(plan.fragments)
    for fragment in plan.fragments:
        in_fragment = [leaf.name.encode() for leaf in fragment]
        assert sorted(in_fragment) == in_fragment


@given(leaves_st, st.sampled_from(STRATEGIES), st.integers(1, 6), st.integers(6, 40))
def test_offsets_are_distinct_and_below_the_interval(leaves, strategy, count, interval):
    """At most one fragment is due at any step, and each is due once per interval."""
    plan = make_plan(leaves, fragments=count, interval=interval, strategy=strategy)

    due = [plan.fragment_due(t) for t in range(interval)]
    assert list(range(len(plan.fragments))) == [p for p in due if p is not None]
    assert due == [plan.fragment_due(t + 7 * interval) for t in range(interval)]
    assert plan.offsets == tuple(due.index(p) for p in range(len(plan.fragments)))


@given(leaves_st, st.integers(1, 6), st.integers(6, 40), st.integers(-1, 90), st.integers(-1, 130))
def test_the_next_due_step_is_the_first_at_which_a_fragment_is_due(
    leaves, count, interval, after, last
):
    """As a search finds it: strictly after one step, and up to another one."""
    plan = make_plan(leaves, fragments=count, interval=interval, strategy="tensor")

    steps = range(after + 1, last + 1)
    found = next((t for t in steps if plan.fragment_due(t) is not None), None)
    assert found == plan.next_due(after, last)


@given(leaves_st, st.sampled_from(STRATEGIES), st.integers(1, 6))
def test_the_layout_is_aligned_and_without_overlap(leaves, strategy, count):
    """Tensors start on cache lines, do not overlap, and fragments tile the region."""
    plan = make_plan(leaves, fragments=count, interval=6, strategy=strategy)

    end = 0
    for p, fragment in enumerate(plan.fragments):
        start, stop = plan.fragment_slice(p)
        assert end == start
        for i, leaf in enumerate(fragment):
            offset = plan.tensor_offset(p, i)
            assert offset % ALIGNMENT == 0
            assert offset >= end
            end = offset + leaf.nbytes
        assert 0 <= stop - end < ALIGNMENT
        end = stop
    assert plan.total_bytes == end


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_balanced_is_within_four_thirds_of_the_best_possible(sizes, count):
    """The heaviest fragment obeys the LPT bound, checked against every assignment there is."""
    leaves = [Leaf(f"w{i}", (n,), "float32") for i, n in enumerate(sizes)]

    plan = make_plan(leaves, fragments=count, interval=count, strategy="balanced")

    def heaviest(assignment):
        return max(
            sum(n for n, p in zip(sizes, assignment, strict=True) if p == q) for q in range(count)
        )

    best = min(heaviest(assignment) for assignment in product(range(count), repeat=len(sizes)))
    found = max(sum(leaf.size for leaf in fragment) for fragment in plan.fragments)
    assert 3 * found <= 4 * best


def test_balanced_breaks_ties_by_name_and_lowest_fragment():
    """Equal tensors are dealt in name order, so that the plan is unique."""
    leaves = [Leaf(name, (4,), "float32") for name in "dcba"]

    plan = make_plan(leaves, fragments=3, interval=3, strategy="balanced")

    assert names_of(plan) == [["a", "d"], ["b"], ["c"]]


def test_fewer_pieces_than_fragments_shrink_the_plan():
    """Empty fragments are dropped, and the offsets spread over the interval again."""
    leaves = [Leaf("a", (4,), "float32"), Leaf("b", (4,), "float32")]

    for strategy in STRATEGIES:
        plan = make_plan(leaves, fragments=8, interval=8, strategy=strategy)
        assert names_of(plan) == [["a"], ["b"]]
        assert plan.offsets == (0, 4)


def test_layer_keeps_layers_whole_and_in_natural_order():
    """Layers are not split, and layer 2 comes before layer 10."""
    plan = make_plan(MODEL, fragments=6, interval=24, strategy="layer")

    groups = [sorted({"/".join(n.split("/")[:2]) for n in names}) for names in names_of(plan)]
    blocks = [[f"blocks/{i}"] for i in (0, 1, 2, 10)]
    assert [*blocks, ["embed/position", "embed/token"], ["norm"]] == groups


def test_layer_names_may_carry_their_index():
    """`layer_2/w1` belongs to layer_2, although w1 ends in a digit too."""
    leaves = [Leaf(f"layer_{i}/{w}", (4,), "float32") for i in (2, 10) for w in ("w1", "w2")]

    plan = make_plan(leaves, fragments=2, interval=2, strategy="layer")

    assert names_of(plan) == [["layer_2/w1", "layer_2/w2"], ["layer_10/w1", "layer_10/w2"]]


def test_tensor_deals_contiguous_runs_in_name_order():
    """Runs of tensors, whatever their sizes."""
    plan = make_plan(MODEL, fragments=4, interval=24, strategy="tensor")

    flat = [name for names in names_of(plan) for name in names]
    assert sorted(leaf.name for leaf in MODEL) == flat
    assert {3, 4} == {len(fragment) for fragment in plan.fragments}


def test_the_digest_changes_when_anything_changes():
    """A different name, shape, dtype, count, interval or strategy is seen in the handshake."""
    base = {"fragments": 4, "interval": 24, "strategy": "balanced"}
    first, rest = MODEL[0], MODEL[1:]
    plans = [
        make_plan(MODEL, **base),
        make_plan([msgspec.structs.replace(first, name="embed/tokens"), *rest], **base),
        make_plan([msgspec.structs.replace(first, shape=(16, 256)), *rest], **base),
        make_plan([msgspec.structs.replace(first, dtype="bfloat16"), *rest], **base),
        make_plan(rest, **base),
        make_plan(MODEL, **base | {"fragments": 5}),
        make_plan(MODEL, **base | {"interval": 25}),
        make_plan(MODEL, **base | {"strategy": "layer"}),
        make_plan(MODEL, **base | {"strategy": "tensor"}),
    ]

    assert len(plans) == len({plan.digest for plan in plans})


def test_the_digest_is_pinned():
    """The digest of a fixed plan never changes, as old tapes carry it."""
    plan = make_plan(MODEL, fragments=4, interval=24, strategy="balanced")

    expected = "eb67cc101e51200c815e3d821ebe0c3f5b2c56eae0d415871cc072dc26d423ba"
    assert expected == plan.digest


def test_a_plan_survives_the_wire():
    """A plan read back from msgpack is the same plan."""
    plan = make_plan(MODEL, fragments=4, interval=24, strategy="balanced")

    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=FragmentPlan)

    assert plan == decoded
    assert plan.digest == decoded.digest
    assert plan.total_bytes == decoded.total_bytes


def test_item_sizes_are_those_of_numpy():
    """The table of dtypes agrees with numpy and ml_dtypes."""
    for name, nbytes in {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}.items():
        dtype = ml_dtypes.bfloat16 if name == "bfloat16" else name
        assert np.dtype(dtype).itemsize == nbytes
    assert (Leaf("w", (2, 3), "float16").size, Leaf("w", (2, 3), "float16").nbytes) == (6, 12)


@pytest.mark.parametrize(
    ("leaves", "changes", "said"),
    [
        (MODEL, {"fragments": 25}, "25 fragments need an interval"),
        (MODEL, {"fragments": 0}, "at least one fragment"),
        (MODEL, {"strategy": "random"}, "unknown strategy 'random'"),
        ([], {}, "no tensors"),
        ([MODEL[0], MODEL[0]], {}, "two tensors are named 'embed/token'"),
        ([Leaf("steps", (), "int32")], {}, "'steps' is int32"),
        ([Leaf("w", (-1,), "float32")], {}, "impossible shape"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(leaves, changes, said):
    """Each impossible request raises ValueError with one line naming the trouble."""
    arguments = {"fragments": 4, "interval": 24, "strategy": "balanced"} | changes

    with pytest.raises(ValueError, match=said) as caught:
        make_plan(leaves, **arguments)

    assert "\n" not in str(caught.value)


def names_of(plan):
    """The names in each fragment."""
    return [[leaf.name for leaf in fragment] for fragment in plan.fragments]


def test_an_interval_has_an_end():
    """Two numbers are kept for each of its steps, so it is refused before they are."""
    plan = FragmentPlan(((Leaf("w", (1,), "float32"),),), (0,), INTERVAL_MAX + 1)
    with pytest.raises(ValueError, match="an interval of 1048577 steps; want at most 1048576"):
        plan.next_due(0, 1)
    with pytest.raises(ConfigError, match=r"sync\.interval: 1048577 steps; want at most 1048576"):
        job_from({"job": {"task": "a:b"}, "sync": {"interval": INTERVAL_MAX + 1}}, "test")
