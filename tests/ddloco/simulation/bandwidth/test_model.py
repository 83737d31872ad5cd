"""What a method's bandwidth is said to be: two models, their limits, and how they move."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ddloco.simulation.bandwidth.model import (
    GRID,
    METHODS,
    TARGETS,
    Setting,
    as_method,
    closed,
    copy_gbit,
    decoupled_sustained,
    decoupled_waiting,
    in_time_gbit_s,
    needed,
    needed_exactly,
    on_grid,
    reduction_copies,
    second_opinion,
    simulated,
    utilisation,
)

LINEAGE = (1.39, 1.68, 2.02, 2.44, 2.95, 86.8, 104.8, 126.5)
"""Values that the published tables have in common (paper 8.2)."""

SETTING = Setting(parameters=10e9, layers=48, step_s=0.8, interval=100, fragments=16, overlap=1)


@st.composite
def settings_(draw):
    """Settings of any kind; at most one fragment a step."""
    interval = draw(st.integers(1, 60))
    return Setting(
        parameters=draw(st.floats(1e8, 1e12)),
        layers=draw(st.integers(1, 40)),
        step_s=draw(st.floats(0.01, 20.0)),
        sites=draw(st.integers(2, 16)),
        interval=interval,
        fragments=draw(st.integers(1, interval)),
        overlap=draw(st.integers(0, interval - 1)),
        bits=draw(st.sampled_from((4, 16))),
    )


@pytest.mark.parametrize("value", LINEAGE)
def test_the_grid_is_the_published_one(value):
    """Every value that the tables share lies on it, to the digits that were printed."""
    assert 50 == len(GRID)
    assert (0.006 if value < 10 else 0.06) > np.min(np.abs(GRID - value))


def test_one_layer_by_hand():
    """One layer, H = 1: forward and backward take 0.5 s each of 1 s, the transfer 3 s, in a row."""
    setting = Setting(
        parameters=1e9, layers=1, step_s=1.0, interval=1, fragments=1, overlap=0, bits=16
    )
    reached = simulated(setting, np.array([copy_gbit(setting) / 3.0]))
    assert pytest.approx(1 / 4) == reached[0]


def test_two_layers_by_hand():
    """Five nodes of 0.2 s; the upper layer's transfer starts at 0.8 s, the lower one's queues."""
    setting = Setting(parameters=1e9, layers=2, step_s=1.0, interval=1, fragments=1, overlap=0)
    reached = simulated(setting, np.array([copy_gbit(setting) / 2.0]))
    assert pytest.approx(1.0 / (0.8 + 1.0 + 1.0)) == reached[0]


@pytest.mark.parametrize(("overlap", "wall_s"), [(0, 13.0), (1, 12.0), (2, 11.0), (3, 10.0)])
def test_each_step_of_overlap_hides_a_step(overlap, wall_s):
    """A transfer of 3 s at the end of ten steps: its wait shrinks by a second a step of overlap."""
    setting = Setting(
        parameters=1e9, layers=1, step_s=1.0, interval=10, fragments=1, overlap=overlap
    )
    (reached,) = simulated(setting, np.array([copy_gbit(setting) / 3.0]))
    drained = 3 * 10.0 / reached
    assert pytest.approx(2 * wall_s + 13.0) == drained


def test_the_closed_forms_constants():
    """As paper 8.2 has them: 13.3 Gbit per 1e9, and what each method hides of a step."""
    gbit_s = np.array([13.3])
    for method, steps in (
        ("data-parallel", 1 / (1 + 10 / 0.8 - 0.65)),
        ("diloco", 100 / (100 + 10 / 0.8 - 0.6)),
        ("streaming", 100 / (100 + 10 / 0.8 - 16 * 0.55)),
    ):
        assert pytest.approx(steps) == closed(as_method(SETTING, method), gbit_s)[0]
    slow = np.array([1.0])
    waited = 133 / 0.8 - 16 * 1.5
    assert pytest.approx(100 / (100 + waited)) == closed(SETTING, slow)[0]


@given(settings_(), st.sampled_from(METHODS))
def test_more_bandwidth_never_hurts(setting, method):
    """CU rises with bandwidth in both models and stays between nothing and one."""
    for model in (utilisation, second_opinion):
        reached = model(setting, method, GRID)
        assert np.all(np.diff(reached) >= -1e-9)
        assert np.all((reached > 0) & (reached <= 1 + 1e-9))


@given(settings_())
def test_no_row_is_more_than_the_link_carries(setting):
    """Bytes over bandwidth bound the wall time from below, whatever is hidden behind what."""
    gbit = copy_gbit(setting) * reduction_copies(setting.sites)
    round_s = setting.interval * setting.step_s
    assert np.all(simulated(setting, GRID) <= round_s * GRID / gbit + 1e-9)


def test_model_a_overestimates_what_the_link_carries():
    """Where P (tau + 0.5) exceeds H, as in the paper's setting; the reason to prefer model (B)."""
    paper = Setting(parameters=5e9, layers=48, step_s=1.0)
    for target in TARGETS:
        a, b = (
            on_grid(model(paper, GRID), target)
            for model in (decoupled_waiting, decoupled_sustained)
        )
        assert a < b


@settings(deadline=None)
@given(settings_(), st.integers(2, 5), st.sampled_from((1, 2, 3, 5)))
def test_a_longer_interval_needs_less(setting, times, which):
    """The same fragments every so many more steps: in both models at most the same bandwidth.

    At H = 1 the closed form has a constant of its own, fitted to data-parallel training.
    """
    assume(setting.interval > 1)
    longer = replace(setting, interval=setting.interval * times)
    method = METHODS[which]
    for model in (utilisation, second_opinion):
        for before, after in zip(
            needed(model, setting, method), needed(model, longer, method), strict=True
        ):
            assert before is None or (after is not None and after <= before)


@given(settings_(), st.floats(1.0, 50.0))
def test_only_volume_over_step_time_matters(setting, times):
    """So many times the parameters at so many times the step time: the same utilisation."""
    larger = replace(setting, parameters=setting.parameters * times, step_s=setting.step_s * times)
    for method in METHODS:
        for model in (utilisation, second_opinion):
            before, after = model(setting, method, GRID), model(larger, method, GRID)
            assert np.allclose(before, after, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_four_bits_need_a_quarter(target):
    """What the link sustains depends on bytes alone."""
    wide, narrow = (
        needed_exactly(utilisation, SETTING, method, target)
        for method in ("decoupled", "decoupled-4bit")
    )
    assert pytest.approx(wide / 4, rel=1e-6) == narrow


def test_all_reduce_copies():
    """2 (M - 1) / M: one copy for two sites, nearly two for many; for Decoupled always one."""
    assert (1.0, 1.5, 1.75) == tuple(reduction_copies(sites) for sites in (2, 4, 8))
    eight = replace(SETTING, sites=8)
    for method, ratio in (("data-parallel", 1.75), ("decoupled", 1.0)):
        two_s, eight_s = (needed_exactly(utilisation, s, method, 0.8) for s in (SETTING, eight))
        assert pytest.approx(ratio, rel=1e-6) == eight_s / two_s


def test_a_fragment_is_back_in_time():
    """``V / (P B)`` twice in ``tau t``: with H = P and tau = 2 that is the sustained rate."""
    paper = Setting(parameters=5e9, layers=48, step_s=1.0)
    sustained = needed_exactly(utilisation, paper, "decoupled", 1.0)
    assert pytest.approx(sustained, rel=1e-6) == in_time_gbit_s(paper, "decoupled")
    assert pytest.approx(2 * 67.25 / (24 * 2)) == in_time_gbit_s(paper, "decoupled")
    assert pytest.approx(67.25 / 4 / 24) == in_time_gbit_s(paper, "decoupled-4bit")
    assert float("inf") == in_time_gbit_s(replace(paper, overlap=0), "decoupled")


def test_nothing_is_enough():
    """A target that no bandwidth of the grid reaches has no answer; one just reached has."""
    assert on_grid(np.full(50, 0.4), 0.5) is None
    assert float(GRID[49]) == on_grid(np.r_[np.full(49, 0.4), 0.5], 0.5)
    huge = replace(SETTING, parameters=1e15)
    assert [None] * 6 == needed(utilisation, huge, "data-parallel")


def test_exact_answers_are_exact():
    """Solved off the grid: the target is met there and missed a millionth below."""
    for method in METHODS:
        gbit_s = needed_exactly(utilisation, SETTING, method, 0.9)
        below, at = utilisation(SETTING, method, np.array([gbit_s * (1 - 1e-6), gbit_s]))
        assert below < 0.9 <= at


def test_streamings_fragments_are_whole_layers():
    """More fragments than layers: each layer is one, and nothing else changes."""
    few = Setting(parameters=1e9, layers=6, step_s=0.1, interval=24, fragments=6)
    many = replace(few, fragments=24)
    assert np.array_equal(simulated(few, GRID), simulated(many, GRID))
