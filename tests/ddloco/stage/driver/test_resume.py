"""Where the snapshots of a run are that was moved."""

import pytest

from ddloco.stage.driver.resume import place_now
from snapshot import Store


@pytest.fixture
def moved(tmp_path):
    """A run and the one that it went on from, both in another folder than its tape says."""
    Store(tmp_path / "now" / "first" / "snapshots").write_bytes(b"x")
    return tmp_path / "now"


@pytest.mark.parametrize("tape", ["next/tapes/a.tape", "runs/next/tapes/a.tape", "next/a.tape"])
def test_a_place_that_moved_with_its_run_is_found(moved, tape):
    """Under the same last parts of its path, however deep the run is beside it."""
    assert place_now("/then/jobs/first/snapshots", moved / tape) == f"{moved}/first/snapshots"


def test_a_place_that_is_there_is_itself(moved, tmp_path):
    """Also where there is one of its name beside the run; a URL is never looked for."""
    Store(tmp_path / "then" / "first" / "snapshots").write_bytes(b"x")
    there = f"{tmp_path}/then/first/snapshots"
    assert place_now(there, moved / "next/tapes/a.tape") == there
    assert place_now("s3://first/snapshots", moved / "next/tapes/a.tape") == "s3://first/snapshots"


@pytest.mark.parametrize("place", ["/then/other/place", "/", "relative"])
def test_a_place_that_is_nowhere_is_what_the_tape_says(moved, place):
    """So that the line about it names that."""
    assert place_now(place, moved / "next/tapes/a.tape") == place
