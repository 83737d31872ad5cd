"""What `ddloco run` says at the end of a job."""

import pytest

from ddloco.cli.run_job import _conclude_with


@pytest.mark.parametrize(
    ("status", "merges", "warned"), [("done", 0, True), ("done", 3, False), ("stopped", 0, False)]
)
def test_a_job_that_merges_nothing_says_why(status, merges, warned, tmp_path):
    """A job of fewer steps than the first fragment's is done at once, and trains nothing."""
    said = []
    result = {"status": status, "merges": merges, "t": 0, "held_out_loss": None}

    assert _conclude_with(tmp_path, result, said.append) == 0
    assert warned == any("nothing was merged" in line for line in said)
