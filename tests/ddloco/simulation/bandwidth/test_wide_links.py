"""Wall time over links between regions and sites, in the setting of the published figures."""

from dataclasses import replace

import numpy as np
import pytest

from ddloco.simulation.bandwidth.model import needed_exactly, utilisation
from ddloco.simulation.bandwidth.wide_links import HEADLINE, REGIONS, wall_clock


def test_four_regions_are_over_twenty_times_faster():
    """12B across 4 regions at 2 to 5 Gbit/s, also where Decoupled keeps its interval at 4 bits."""
    links = wall_clock(REGIONS, np.array([2.0, 5.0]))
    assert [76.0, 30.6] == [round(link.faster, 1) for link in links]
    assert all(link.faster_holding > 20 for link in links)
    assert [24.0, 24.0] == [link.interval_4bit for link in links]


def test_eight_sites_are_ten_to_twenty_times_faster():
    """The same model over 8 sites, on links of 10 Gbit/s; from 9.0 to 18.3 in all."""
    (link,) = wall_clock(HEADLINE, np.array([10.0]))
    assert 18.0 == round(link.faster, 1)
    edges = [needed_exactly(utilisation, HEADLINE, "data-parallel", 1 / n) for n in (20, 10)]
    assert [9.0, 18.3] == [round(edge, 1) for edge in edges]


def test_a_ratio_depends_on_the_step_time():
    """Four times the step time, a quarter of the ratio less what computing hides."""
    short, long = (
        wall_clock(replace(REGIONS, step_s=each), np.array([5.0]))[0].faster for each in (1.6, 6.4)
    )
    assert (30.6, 7.9) == (round(short, 1), round(long, 1))


def test_starved_links_stretch_the_interval():
    """A learner never waits: half the sustained rate is twice the interval, the same step time."""
    enough, half = wall_clock(REGIONS, np.array([5.0, 4.203125 / 2]))
    assert (24.0, 1.6) == (enough.interval, enough.decoupled_s)
    assert pytest.approx(48.0) == half.interval
    assert 1.6 == half.decoupled_s
    (starved,) = wall_clock(REGIONS, np.array([0.1]))
    assert pytest.approx(starved.faster / starved.faster_holding) == starved.interval_4bit / 24
