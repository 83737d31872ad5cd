"""What `ddloco run` says at the end of a job."""

import pytest

from ddloco.cli.run_job import say_result
from ddloco.debugger.wording import body_phrase
from ddloco.job.config import job_from
from ddloco.job.protocol.messages import Contribution

JOB = job_from({"job": {"task": "a:b"}}, "test")


def test_counts_are_written_with_separators(tmp_path):
    """As everywhere in what is printed for people, so that two lines can be compared."""
    said = []
    result = {"status": "done", "merges": 8955, "t": 8960, "held_out_loss": 1.0}
    say_result(tmp_path, JOB, result, said.append)
    assert said[0] == "held-out loss 1.0000 at global step 8960, 8,955 merges"
    body = Contribution(8960, 3, 8950, 1200, 1200, 8955000)
    assert "1,200 steps, 8,955,000 tokens" in body_phrase(body)


@pytest.mark.parametrize(
    ("status", "merges", "warned"), [("done", 0, True), ("done", 3, False), ("stopped", 0, False)]
)
def test_a_job_that_merges_nothing_says_why(status, merges, warned, tmp_path):
    """A job of fewer steps than the first fragment's is done at once, and trains nothing."""
    said = []
    result = {"status": status, "merges": merges, "t": 0, "held_out_loss": None}

    say_result(tmp_path, JOB, result, said.append)
    assert warned == any("nothing was merged" in line for line in said)
