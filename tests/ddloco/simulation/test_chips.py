"""Learners of many chips: how they fail, stop, shrink and grow again."""

import math
import random

import pytest

from ddloco.simulation.chips import ChipPace, Chips
from ddloco.stage.files.toml import ConfigError, convert

DRAWS = 4000
SLICE = 10


class Fixed:
    """A stream in which nothing fails by itself, and every slice takes the longest to return."""

    def expovariate(self, rate):
        """The next failure: never."""
        return math.inf

    def random(self):
        """The share of slices that are back sooner."""
        return 1.0


def learner(slices=4, step_s=10.0, fails=(), **chips):
    """A learner of so many slices whose failures come at given times; slices return after 100 s."""
    details = {"downscale_s": 2.0, "upscale_s": 3.0, "patience_s": 50.0, "restart_s": 7.0}
    more = {"back_max_s": 100.0, **details, **chips}
    stream = Fixed()
    gaps = iter([*[b - a for a, b in zip([0.0, *fails], fails, strict=False)], *[math.inf] * 99])
    stream.expovariate = lambda rate: next(gaps)
    return ChipPace(
        Chips(total=slices * SLICE, slice=SLICE, **more), slices * SLICE, step_s, 0.0, stream
    )


def cdf(x, chips):
    """The exponentiated Weibull distribution, as the documentation has it."""
    return (1 - math.exp(-((x / chips.back_scale_s) ** chips.back_shape))) ** chips.back_power


def distance(chips, seed=3):
    """Kolmogorov's distance between draws and the distribution, below the longest time."""
    rng = random.Random(seed)
    drawn = sorted(chips.back_s(rng) for _ in range(DRAWS))
    worst = 0.0
    for index, x in enumerate(drawn):
        if x < chips.back_max_s:
            worst = max(
                worst, abs(cdf(x, chips) - index / DRAWS), abs(cdf(x, chips) - (index + 1) / DRAWS)
            )
    return worst


KOLMOGOROV = 1.95 / math.sqrt(DRAWS)
"""Exceeded by chance in one of a thousand samples: 2 exp(-2 * 1.95^2)."""


@pytest.mark.parametrize(
    ("scale", "shape", "power"), [(500.0, 0.9, 1.2), (60.0, 1.0, 1.0), (10.0, 2.5, 0.4)]
)
def test_slices_return_by_the_exponentiated_weibull(scale, shape, power):
    """The draws have the distribution that is documented, and not one that is a little off."""
    make = lambda **more: Chips(  # noqa: E731
        total=1, **{"back_scale_s": scale, "back_shape": shape, "back_power": power, **more}
    )
    chips = make(back_max_s=1e9)
    assert distance(chips) < KOLMOGOROV
    for other in (
        make(back_scale_s=1.3 * scale),
        make(back_shape=1.3 * shape),
        make(back_power=1.5 * power),
    ):
        rng = random.Random(3)
        off = [other.back_s(rng) for _ in range(DRAWS)]
        worst = max(abs(cdf(x, chips) - i / DRAWS) for i, x in enumerate(sorted(off)))
        assert worst > KOLMOGOROV


def test_a_slice_that_takes_too_long_is_replaced():
    """As many as the distribution has beyond the longest time are cut to it, four sigma aside."""
    chips = Chips(total=1, back_max_s=600.0)
    assert distance(chips) < KOLMOGOROV
    rng = random.Random(4)
    cut = sum(chips.back_s(rng) == 600.0 for _ in range(DRAWS)) / DRAWS
    share = 1 - cdf(600.0, chips)
    assert share == pytest.approx(cut, abs=4 * math.sqrt(share * (1 - share) / DRAWS))
    assert 600.0 == chips.back_s(Fixed())


def test_without_failures_steps_take_their_time():
    """Nothing stops; a slow learner is as many times slower."""
    pace = learner()
    assert [10.0, 25.0] == [pace.step(0.0, 1.0), pace.step(10.0, 2.5)]
    assert (0, []) == (pace.stops, pace.stopped)


def test_a_failure_stops_and_then_slows():
    """3 s of work, 2 s of standing, the other 7 s with three slices of four."""
    pace = learner(fails=[3.0])
    assert pytest.approx(3.0 + 2.0 + 7.0 / 0.75) == pace.step(0.0, 1.0)
    assert [(3.0, 5.0)] == pace.stopped
    assert pytest.approx(10.0 / 0.75) == pace.step(20.0, 1.0)


def test_a_slice_that_is_back_waits_and_is_taken_in():
    """Back after 100 s, taken in 50 s later, at the price of a stop; then all is as before."""
    pace = learner(fails=[3.0], step_s=300.0)
    worked = 3.0 + (153.0 - 5.0) * 0.75
    assert pytest.approx(153.0 + 3.0 + (300.0 - worked)) == pace.step(0.0, 1.0)
    assert [(3.0, 5.0), (153.0, 156.0)] == pace.stopped
    assert 300.0 == pace.step(999.0, 1.0)


def test_a_stop_that_is_due_anyway_takes_it_in():
    """The next failure comes while a slice waits: one leaves, one joins, in one short stop."""
    pace = learner(fails=[3.0, 120.0], step_s=300.0)
    worked = 3.0 + (120.0 - 5.0) * 0.75
    second_back = 120.0 + 100.0 + 50.0
    worked += (second_back - 122.0) * 0.75
    assert pytest.approx(second_back + 3.0 + 300.0 - worked) == pace.step(0.0, 1.0)
    assert [(3.0, 5.0), (120.0, 122.0), (270.0, 273.0)] == pace.stopped


def test_without_slices_it_waits_for_one():
    """A learner that has lost all stands until the first is back and taken in."""
    pace = learner(slices=1, fails=[4.0])
    assert pytest.approx(4.0 + 100.0 + 50.0 + 3.0 + 6.0) == pace.step(0.0, 1.0)
    assert 2 == pace.stops


def test_what_fails_in_a_stop_is_part_of_it():
    """Two failures in a stop: one stop, as long as one, and two more slices gone."""
    pace = learner(fails=[3.0, 3.5, 4.5])
    assert pytest.approx(5.0 + 7.0 / 0.25) == pace.step(0.0, 1.0)
    assert [(3.0, 5.0)] == pace.stopped


def test_what_is_not_elastic_stops_for_longer_and_loses_nothing():
    """Every failure costs a restart; in between all slices work."""
    pace = learner(fails=[3.0, 14.0], elastic=False)
    assert 3.0 + 7.0 + 4.0 + 7.0 + 3.0 == pytest.approx(pace.step(0.0, 1.0))
    assert [(3.0, 10.0), (14.0, 21.0)] == pace.stopped
    assert 10.0 == pace.step(50.0, 1.0)


def test_steps_after_each_other_are_one_history():
    """A failure between two steps is met by the second; what was lost in the first stays lost."""
    pace = learner(fails=[3.0, 21.0])
    end = pace.step(0.0, 1.0)
    assert end == pytest.approx(5.0 + 7.0 / 0.75)
    later = pace.step(end, 1.0)
    done = (21.0 - end) * 0.75
    assert pytest.approx(21.0 + 2.0 + (10.0 - done) / 0.5) == end + later


def test_the_useful_time_of_a_step_is_that_of_all_slices():
    """However long it took, however often it stopped, and however slow the learner was."""
    pace = learner(fails=[3.0])
    pace.done(pace.step(0.0, 3.0))
    assert (1, 10.0) == (pace.steps, pace.useful_s)


@pytest.mark.parametrize("elastic", [True, False])
def test_failures_come_at_the_rate_of_the_chips(elastic):
    """A Poisson process: chips over the mean time between interruptions, four sigma aside."""
    nothing = {"downscale_s": 0.0, "upscale_s": 0.0, "restart_s": 0.0, "patience_s": 0.0}
    chips = Chips(total=5000, slice=50, mtbi_s=1e6, elastic=elastic, back_scale_s=1e-9, **nothing)
    failures = []
    pace = ChipPace(chips, 5000, 10.0, 0.0, random.Random(6))
    fail = pace._fail
    pace._fail = lambda at: (failures.append(at), fail(at))[1]
    now = 0.0
    for _ in range(10_000):
        now += pace.step(now, 1.0)
    expected = 5000 / 1e6 * now
    assert expected == pytest.approx(len(failures), abs=4 * math.sqrt(expected))


def test_a_learner_has_its_share_of_the_chips():
    """Half of the chips fail half as often, and the loss of a slice costs twice as much."""
    chips = Chips(total=80, slice=SLICE, mtbi_s=1e3)
    half, whole = (ChipPace(chips, count, 1.0, 0.0, random.Random(1)) for count in (40, 80))
    assert 2 * whole._failure == pytest.approx(half._failure)
    assert (4, 8) == (half._slices, whole._slices)


@pytest.mark.parametrize(
    ("plain", "said"),
    [({}, "missing key `total`"), ({"total": 0}, "total"), ({"total": 1, "mtbi_s": 0.0}, "mtbi_s")],
)
def test_what_cannot_be_is_refused(plain, said):
    """No chips, and chips that always fail."""
    with pytest.raises(ConfigError, match=said):
        convert(plain, Chips, "x.toml")
