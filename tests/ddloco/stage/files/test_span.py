"""How much of its tapes a job keeps: what may be said, and what has to be so for that."""

import pytest

from ddloco.job.config import job_from
from ddloco.stage.files.span import snapshots_said, unbounded
from ddloco.stage.files.toml import ConfigError

BOUND = {"every_s": 60.0}


def job(keep, snapshot=None, **tape):
    """A job with so much of its tapes kept."""
    tables = {"snapshot": BOUND if snapshot is None else snapshot}
    return job_from(
        {"job": {"task": "none:none"}, "tape": {"keep": keep, "ship": False, **tape}, **tables},
        "job.toml",
    )


@pytest.mark.parametrize(
    ("said", "count"),
    [("", 0), ("1 snapshot", 1), ("1 snapshots", 1), ("2 snapshots", 2), ("12 snapshots", 12)],
)
def test_what_may_be_said(said, count):
    """A number of snapshots, or nothing for everything."""
    assert count == snapshots_said(said)
    assert count == job(said, {"every_s": 60.0, "keep": 12}).tape.bound


@pytest.mark.parametrize(
    "said",
    ["2", "two snapshots", "0 snapshots", "-1 snapshots", "2  snapshots", "2 snapshots ", "all",
     "2 Snapshots", "1.5 snapshots", "²  snapshots", "2 days", "2 snapshots\n", "9" * 20],
)  # fmt: skip
def test_anything_else_is_refused(said):
    """In one line that says what would be right."""
    with pytest.raises(ConfigError) as refused:
        job(said)
    line = str(refused.value)
    assert line.startswith("job.toml: tape.keep: ")
    assert line.endswith('want "2 snapshots", or "" to keep everything')
    assert "\n" not in line


def test_what_has_to_be_so():
    """Snapshots that are taken, as many that stay, and tapes that do not travel; else one line
    says what to set."""
    with pytest.raises(
        ConfigError, match=r"the job takes none; set snapshot\.every_s or snapshot\.ev"
    ):
        job("2 snapshots", {})
    with pytest.raises(ConfigError, match=r"snapshot\.keep retains only 2; set it to at least 3"):
        job("3 snapshots", {"every_steps": 10, "keep": 2})
    with pytest.raises(ConfigError, match=r"shipped tapes are kept whole; set tape\.ship = false"):
        job("2 snapshots", ship=True)
    assert 2 == job("2 snapshots", {"every_steps": 10, "keep": 2}).tape.bound
    assert 2 == job("2 snapshots", ship=True, level="off").tape.bound
    assert 0 == job("", {}, ship=True).tape.bound
    assert job("1 snapshot").id != job("2 snapshots").id
    assert unbounded("", wanted=False, stay=1, ships=True) is None
