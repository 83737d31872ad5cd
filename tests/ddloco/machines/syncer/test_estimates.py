"""The grace window: Eq. 3, clamped from both sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddloco.machines.syncer.estimates import SAMPLES, Recent, grace_window

seconds_st = st.floats(0, 1e6)


def window(**changes):
    """Give the window of an ordinary case, with changes."""
    ordinary = {
        "step_s": 1.0,
        "quorum_s": 0.25,
        "sync_s": 0.5,
        "overlap": 2,
        "safety": 0.5,
        "steps_max": 1.0,
    }
    return grace_window(**{**ordinary, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.5 * (2 * 1.0 - 0.75)),
        ({"overlap": 1}, 0.5 * 0.25),
        ({"safety": 0.0}, 0.0),
        ({"overlap": 4}, 1.0),
        ({"overlap": 4, "steps_max": 3.0}, 0.5 * 3.25),
        ({"overlap": 4, "steps_max": 0.0}, 0.0),
        ({"sync_s": 5.0}, 0.0),
        ({"quorum_s": 1.75, "sync_s": 0.25}, 0.0),
    ],
)
def test_the_window_is_what_equation_3_says(changes, expected):
    """Gamma times what the overlap hides, not below zero, not above the bound in steps."""
    assert window(**changes) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("missing", ["step_s", "quorum_s", "sync_s"])
def test_the_window_is_zero_while_an_estimate_is_missing(missing):
    """Merges do not wait because of a guess."""
    assert window(**{missing: None}) == 0.0


@given(
    step_s=seconds_st,
    quorum_s=seconds_st,
    sync_s=seconds_st,
    overlap=st.integers(1, 100),
    safety=st.floats(0, 1, exclude_max=True),
    steps_max=st.floats(0, 10),
)
def test_the_window_is_always_within_its_bounds(**case):
    """Never negative, never more than so many steps, never more than the slack itself."""
    got = grace_window(**case)

    slack = case["overlap"] * case["step_s"] - (case["quorum_s"] + case["sync_s"])
    assert 0.0 <= got <= case["steps_max"] * case["step_s"]
    assert got <= max(slack, 0.0)


def test_the_first_sample_is_the_estimate():
    """There is no estimate before the first sample, and no zero pulls it down after it."""
    recent = Recent()
    assert recent.value is None

    recent.add(8.0)
    assert recent.value == 8.0


@given(
    usual=st.lists(st.floats(1.0, 2.0), min_size=SAMPLES, max_size=30),
    slow=st.lists(st.floats(100.0, 1e6), max_size=SAMPLES // 2),
)
def test_stalls_change_nothing_until_they_are_the_rule(usual, slow):
    """Up to half of the newest samples may be stalls."""
    recent = Recent()
    for sample in [*usual, *slow]:
        recent.add(sample)
    assert 1.0 <= recent.value <= 2.0


def test_a_slow_first_and_second_step_do_not_count():
    """They are outvoted as soon as as many usual ones have come."""
    recent = Recent()
    for sample in (12.0, 9.0, 0.001, 0.001):
        recent.add(sample)
    assert recent.value == 0.001


def test_a_change_of_pace_shows_after_half_of_the_samples():
    """A learner that is four times slower from now on is known to be after five steps."""
    recent = Recent()
    for sample in [1.0] * 20 + [4.0] * (SAMPLES // 2 + 1):
        recent.add(sample)
    assert recent.value == 4.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_the_estimate_is_one_of_the_newest_samples(samples):
    """It is never outside of what was measured lately."""
    recent = Recent()
    for sample in samples:
        recent.add(sample)
    assert recent.value in samples[-SAMPLES:]
