"""Settings for machines, line and model."""

import math
import re
from pathlib import Path

import pytest

from ddloco.job.advice import LINE_SHARE, advice, advised_tables, bits_of
from ddloco.job.config import job_from


def test_a_fast_line_needs_nothing():
    """Within one machine, and for small models, the defaults are kept."""
    for found in (advice(3, math.inf, 1e9), advice(3, 1000.0, 4e5)):
        assert (24, 2, "float32", True) == (found.interval, found.overlap, found.wire, found.enough)


def test_first_fewer_bits_then_longer_intervals():
    """As the line gets slower; the interval is what costs quality."""
    found = [advice(8, mbit, 1e9) for mbit in (3000, 2000, 1000, 400, 200, 100, 50, 20, 10)]
    order = [(each.interval, -bits_of(each.wire)) for each in found]
    assert order == sorted(order)
    assert ["float32", "bfloat16", "int8", "int4"] == list(dict.fromkeys(e.wire for e in found))
    assert all(each.mbit <= LINE_SHARE * mbit for each, mbit in zip(found[:7], (
        3000, 2000, 1000, 400, 200, 100, 50), strict=True))  # fmt: skip
    assert "which is more than half of the line" in advice(8, 1.0, 1e9).reason


@pytest.mark.parametrize("mbit", [1.0, 30.0, 1000.0])
@pytest.mark.parametrize("parameters", [1e6, 1e9, 1e11])
def test_what_is_advised_is_a_job(mbit, parameters):
    """It fits together whatever is asked for."""
    found = advice(8, mbit, parameters, step_s=0.3)
    job = job_from(
        {**advised_tables(found), "job": {"task": "a:b", **advised_tables(found)["job"]}}, "test"
    )
    assert found.interval == job.sync.interval
    assert 2 <= found.overlap < found.interval


def test_the_page_shows_what_is_advised():
    """The examples in docs/which-settings.md."""
    page = (Path(__file__).parents[3] / "docs" / "which-settings.md").read_text()
    cells = r"(\d+) \| ([\d,]+) Mbit/s \| (\d+) (\w+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) Mbit/s"
    rows = re.findall(rf"^\| {cells} \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for learners, line, number, unit, *said in rows:
        parameters = int(number) * {"million": 1e6, "billion": 1e9}[unit]
        found = advice(int(learners), float(line.replace(",", "")), parameters)
        bits = int(bits_of(found.wire))
        assert said == [
            str(each) for each in (found.interval, found.overlap, bits, round(found.mbit))
        ]
