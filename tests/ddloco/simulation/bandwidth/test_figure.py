"""The pictures: bars where the numbers are, and a drawing that any viewer reads."""

from dataclasses import replace
from xml.etree import ElementTree as ET

from ddloco.simulation.bandwidth.figure import BLOCK, LABEL_CHARS, range_bars, ratio_bars, svg
from ddloco.simulation.bandwidth.model import LABELS, METHODS
from ddloco.simulation.bandwidth.wide_links import HEADLINE, wall_clock

SVG = "{http://www.w3.org/2000/svg}"


def test_a_bar_spans_the_targets():
    """One column a step of the grid: data-parallel from 126.5 to 569 Gbit/s is columns 38 to 46."""
    scale, first, *others = range_bars(HEADLINE)
    assert 6 == len(others)
    assert "Data-parallel" == first[:LABEL_CHARS].strip()
    columns = [n for n, char in enumerate(first[LABEL_CHARS:]) if char == BLOCK]
    assert list(range(38, 47)) == columns
    assert 38 == scale[LABEL_CHARS:].index("100 ") + 1


def test_what_no_link_carries_is_beyond_the_scale():
    """A method that the largest bandwidth does not satisfy ends in an arrow, or is only that."""
    bars = range_bars(replace(HEADLINE, parameters=1e15))[1:]
    assert all(line.endswith(">") and BLOCK not in line for line in bars)
    assert range_bars(replace(HEADLINE, parameters=24e9))[1].endswith(f"{BLOCK}>")


def test_ratios_are_drawn_to_a_logarithmic_scale():
    """The longest has fifty characters, a ratio of its square root half of that, one none."""
    links = wall_clock(HEADLINE)
    some = [replace(links[0], faster=ratio) for ratio in (10_000.0, 100.0, 1.0)]
    assert [50, 25, 0] == [line.count(BLOCK) for line in ratio_bars(some)]
    assert [0] == [line.count(BLOCK) for line in ratio_bars(some[2:])]


def test_the_drawing_has_every_curve():
    """Seven curves of fifty points inside the frame, each method named."""
    root = ET.fromstring(svg(HEADLINE))  # noqa: S314, our own text
    curves = root.findall(f"{SVG}polyline")
    assert len(METHODS) == len(curves)
    for curve in curves:
        points = [tuple(map(float, point.split(","))) for point in curve.get("points").split()]
        assert 50 == len(points)
        assert all(60 <= x <= 520 and 20 <= y <= 360 for x, y in points)
        assert sorted((y for _, y in points), reverse=True) == [y for _, y in points]
    said = {text.text for text in root.findall(f"{SVG}text")}
    assert set(LABELS.values()) <= said
