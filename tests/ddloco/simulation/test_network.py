"""Simulated links: order, bandwidth, what is held back and what is lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ddloco.simulation.network import WAYS, Card, Line, Wire
from ddloco.stage.actors.effects import Finish
from ddloco.stage.files.faults import Fault

LANES = ("control", "bulk")
UP, DOWN = WAYS


def fault(what, **more):
    """A fault of some learner's link."""
    return Fault(what=what, who="learner-0", **more)


def line(seed=0, **wire):
    """A link, as it is when nothing is wrong."""
    return Line(Wire(**wire), random.Random(seed))


wires_st = st.fixed_dictionaries({
    "delay_s": st.sampled_from([0.0, 0.01, 1.0]),
    "jitter_s": st.sampled_from([0.0, 0.5, 5.0]),
    "bytes_per_s": st.sampled_from([float("inf"), 1e3, 10.0]),
})  # fmt: skip
sends_st = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.sampled_from(WAYS),
        st.sampled_from(LANES),
        st.integers(0, 5000),
        st.sampled_from([None, None, "delay", "bandwidth"]),
    ),
    max_size=30,
)


@given(wires_st, sends_st, st.integers(0, 9))
def test_nothing_overtakes_in_its_lane(wire, sends, seed):
    """Jitter, delay that ends and bandwidth that grows never put a later message first."""
    link, now, last, strained = line(seed, **wire), 0.0, {}, None
    for gap, way, lane, nbytes, change in sends:
        now += gap
        if strained is not None:
            link.end(strained)
            strained = None
        if change is not None:
            strained = fault(change, delay_s=2.0, mbit=0.001)
            link.begin(strained)
        _, at = link.carry(way, lane, now, nbytes)
        assert at >= max(now + wire["delay_s"], last.get((way, lane), 0.0))
        last[way, lane] = at


def test_a_delay_is_what_it_says():
    """Without jitter or a limit a message takes the delay, however large it is."""
    link = line(delay_s=0.25)
    assert [3.25, 4.25] == [link.carry(UP, "bulk", at, 10**9)[1] for at in (3.0, 4.0)]


def test_a_card_is_shared_by_all_links():
    """With one learner the line is the limit, with many the card; each direction for itself, and
    short messages wait for no long ones."""

    def last(count, way="to-syncer", lane="bulk"):
        card = Card(bytes_per_s=1000.0)
        wire = Wire(delay_s=0.0, bytes_per_s=250.0)
        lines = [Line(wire, random.Random(n), card) for n in range(count)]
        for each in lines:
            each.carry("from-syncer", "bulk", 0.0, 500)
        return max(each.carry(way, lane, 0.0, 500)[1] for each in lines)

    assert [2.0, 2.0, 4.0, 32.0] == [last(count) for count in (1, 4, 8, 64)]
    assert 2.0 == last(64, lane="control")
    assert 64.0 == last(64, way="from-syncer")
    line = Line(Wire(delay_s=0.0), random.Random(0), Card(bytes_per_s=1000.0))
    assert [1.0, 2.0] == [line.carry(UP, "bulk", 0.0, 1000)[1] for _ in range(2)]


def test_bandwidth_is_shared_by_the_messages_of_a_lane():
    """One after the other, each as long as its bytes take; an idle link saves nothing up."""
    link = line(delay_s=1.0, bytes_per_s=100.0)
    sent = [link.carry(UP, "bulk", 0.0, nbytes) for nbytes in (200, 200, 100)]
    assert [(1.0, 3.0), (3.0, 5.0), (5.0, 6.0)] == sent
    assert (51.0, 52.0) == link.carry(UP, "bulk", 50.0, 100)


def test_lanes_and_directions_do_not_wait_for_each_other():
    """A large message in one of them changes nothing for the other three."""
    link = line(bytes_per_s=100.0, delay_s=0.0)
    link.carry(UP, "bulk", 0.0, 100_000)
    others = [(UP, "control"), (DOWN, "control"), (DOWN, "bulk")]
    assert [1.0] * 3 == [link.carry(way, lane, 0.0, 100)[1] for way, lane in others]


def test_jitter_is_drawn_within_its_bounds_and_from_its_own_stream():
    """Up to the jitter, spread over it, and the same for the same seed whatever else draws."""
    one, other = line(7, jitter_s=0.5, delay_s=1.0), line(7, jitter_s=0.5, delay_s=1.0)
    extras = [one.carry(UP, "control", at, 1)[1] - at - 1.0 for at in range(400)]
    random.random()
    again = [other.carry(UP, "control", at, 1)[1] - at - 1.0 for at in range(400)]
    assert extras == again
    assert 0.0 <= min(extras) < 0.05
    assert 0.45 < max(extras) <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("direction", "strained"), [("both", WAYS), ("to-syncer", (UP,)), ("from-syncer", (DOWN,))]
)
def test_faults_have_a_direction(direction, strained):
    """What is cut, delayed or narrowed one way is as before the other way, and after."""
    link = line(delay_s=1.0)
    faults = [
        fault("delay", delay_s=2.0, direction=direction),
        fault("bandwidth", mbit=8e-6, direction=direction),
        fault("cut", direction=direction),
    ]
    for each in faults:
        link.begin(each)
    assert [way in strained for way in WAYS] == [link.ways[way].held for way in WAYS]
    assert [8.0 if way in strained else 1.0 for way in WAYS] == [
        link.carry(way, "bulk", 0.0, 5)[1] for way in WAYS
    ]
    for each in faults:
        link.end(each)
    assert [False, False] == [link.ways[way].held for way in WAYS]
    assert [101.0] * 2 == [link.carry(way, "bulk", 100.0, 5)[1] for way in WAYS]


def test_what_a_cut_held_back_is_freed_in_order():
    """Each direction in its own order, once."""
    link, cut = line(), fault("cut")
    link.begin(cut)
    for number in range(5):
        link.ways[WAYS[number % 2]].waiting.append((number,))
    freed = [number for (number,) in link.end(cut)]
    assert ([0, 2, 4], [1, 3]) == ([n for n in freed if n % 2 == 0], [n for n in freed if n % 2])
    link.begin(cut)
    assert [] == link.end(cut)


OVERLAPPING = st.lists(
    st.builds(
        fault,
        st.sampled_from(["cut", "delay", "bandwidth"]),
        delay_s=st.sampled_from([0.5, 2.0]),
        mbit=st.sampled_from([8e-6, 8e-3]),
        direction=st.sampled_from(["both", *WAYS]),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(OVERLAPPING, st.randoms(use_true_random=False))
def test_faults_that_overlap_add_up(faults, rng):
    """In whatever order they end: held while any cut lasts, delays added, the lowest bandwidth."""
    link, active = line(delay_s=1.0, bytes_per_s=500.0), list(faults)
    for each in faults:
        link.begin(each)
    while True:
        for way in WAYS:
            mine = [each for each in active if each.direction in {"both", way}]
            direct = link.ways[way]
            assert direct.held == any(each.what == "cut" for each in mine)
            assert direct.delay_s == 1.0 + sum(e.delay_s for e in mine if e.what == "delay")
            rates = [each.mbit * 1e6 / 8 for each in mine if each.what == "bandwidth"]
            assert direct.bytes_per_s == min(rates, default=500.0)
        if not active:
            break
        link.end(active.pop(rng.randrange(len(active))))


def test_the_first_of_two_cuts_frees_nothing():
    """What one holds back the other still holds back."""
    link = line()
    one, other = fault("cut", direction=UP), fault("cut")
    link.begin(one)
    link.begin(other)
    for way in WAYS:
        link.ways[way].waiting.append((way,))
    assert [] == link.end(one)
    assert [(UP,), (DOWN,)] == link.end(other)


def test_a_reset_begins_a_new_generation():
    """So that what was sent under an older one is known; nothing else does."""
    link = line()
    for what in ("cut", "delay", "bandwidth"):
        link.begin(fault(what))
        link.end(fault(what))
    assert 0 == link.generation
    link.begin(fault("reset"))
    assert link.generation > 0


# In a world.


def befallen(World, make_job, *faults):
    """A world to which something happens at its sixth second."""
    world = World(make_job(learners=2, fragments=3, interval=3, steps=18, overlap=2))
    for each in faults:
        world.call(6.2, world._befall, each)
    world.run(99.0)
    assert world.over
    assert {"done"} == {node.finish.status for node in world.nodes.values()}
    return world


def test_what_was_held_back_is_not_overtaken(World, make_job):
    """A cut that ends at the very time at which the lane's next message is due: order holds."""
    world = World(make_job(learners=1, steps=18, overlap=2))
    world.run(4.0)
    ends = world.learning.steps["learner-0.1"][-1]
    cut, held = fault("cut", direction="to-syncer"), world.switch.lines["learner-0.1", "syncer"]
    world.call(ends + 0.5, held.begin, cut)
    world.run(ends + 1.2)
    assert held.ways["to-syncer"].waiting
    world.call(ends + 2.0 + world.physics.wire.delay_s, world._relieve, held, cut)
    world.run(99.0)
    assert ["global step 18"] == [fields["reason"] for _, fields in world.observed("lost")]


@pytest.mark.parametrize("frozen", ["learner-1", "syncer"])
def test_what_waited_for_a_thaw_is_not_overtaken(World, make_job, frozen):
    """Nor by what is due at the very time of a thaw."""
    world = World(make_job(steps=18, overlap=2))
    world.run(4.0)
    ends = world.learning.steps["learner-0.1"][-1]
    world.call(ends + 0.5, world.freeze, frozen)
    world.run(ends + 0.6)
    for at in (0.0, world.physics.wire.delay_s, 2 * world.physics.wire.delay_s):
        world.call(ends + 2.0 + at, world.thaw, world.nodes[frozen])
        world.call(ends + 2.0 + at, world.freeze, frozen)
    world.call(ends + 2.5, world.thaw, world.nodes[frozen])
    world.run(99.0)
    assert {"global step 18"} == {fields["reason"] for _, fields in world.observed("lost")}


def test_stalls_and_slowness_that_overlap_add_up(World, make_job):
    """Stalled until the last stall is over; factors multiply, and each ends with its fault."""
    world = World(make_job(steps=60))
    node = world.nodes["learner-1"]
    faults = [("stall", 3, 5, 1), ("stall", 4, 10, 1), ("slow", 5, 4, 3), ("slow", 6, 12, 2)]
    for what, at_s, for_s, factor in faults:
        hit = fault(what, at_s=at_s, for_s=for_s, factor=factor)
        world.call(at_s, world._befall, replace(hit, who="learner-1"))
    seen = []
    for at in (3.5, 4.5, 6.5, 8.5, 9.5, 13.5, 14.5, 18.5):
        world.run(at)
        seen.append((node.frozen, node.slow))
    stalled = [(True, 1), (True, 1), (True, 6), (True, 6), (True, 2), (True, 2)]
    assert [*stalled, (False, 2), (False, 1)] == seen


@pytest.mark.parametrize("direction", ["both", "to-syncer", "from-syncer"])
def test_a_cut_loses_nothing(World, make_job, direction):
    """No link is lost: everything comes later, in order; the other learner does not wait."""
    world = befallen(World, make_job, fault("cut", for_s=4.0, direction=direction))
    assert ["global step 18"] * 2 == [fields["reason"] for _, fields in world.observed("lost")]
    assert 2 == len(world.observed("joined"))
    assert 18 == len(world.merging.merges)


def test_a_reset_loses_what_is_on_the_way(World, make_job):
    """Both sides notice, and shake hands again; the job continues."""
    world = befallen(World, make_job, fault("reset"))
    assert ["learner-0.1"] == [fields["learner"] for _, fields in world.observed("lost")][:1]
    assert 3 == len(world.observed("joined"))
    assert isinstance(world.nodes["syncer"].finish, Finish)
