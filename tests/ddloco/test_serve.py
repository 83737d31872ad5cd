"""What an actor in a process of its own checks before it starts."""

from pathlib import Path

import pytest

from ddloco.config import job_from
from ddloco.keys import with_keys
from ddloco.sections import ConfigError
from ddloco.serve import check_bind, next_incarnation, who_begins
from snapshot import SnapshotError

OPEN = job_from({"job": {"task": "x:y"}, "transport": {"insecure": True}}, "test")
CLOSED = job_from({"job": {"task": "x:y"}}, "test")


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:*", "tcp://[::1]:5555", "tcp://localhost:5555"],
)
def test_loopback_needs_no_word(address):
    """Addresses that only this machine reaches."""
    check_bind(CLOSED, address)


@pytest.mark.parametrize("address", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://10.0.0.7:5555"])
def test_everything_else_does(address):
    """Whoever reaches the address could take part: only with keys or insecure = true."""
    with pytest.raises(ConfigError, match=r"transport\.insecure = true"):
        check_bind(CLOSED, address)
    check_bind(OPEN, address)
    with pytest.raises(ConfigError, match="`ddloco keys DIR`"):
        check_bind(CLOSED, address)
    check_bind(with_keys(CLOSED, Path("anywhere")), address)


def test_incarnations_are_numbered_by_their_tapes(tmp_path):
    """An actor that comes back in the same folder is the next incarnation."""
    assert next_incarnation(tmp_path, "learner-1") == "learner-1.1"
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "learner-1.1.tape").touch()
    assert next_incarnation(tmp_path, "learner-1") == "learner-1.2"
    assert next_incarnation(tmp_path, "learner-10") == "learner-10.1"
    (tmp_path / "tapes" / "learner-10.7.tape").touch()
    assert next_incarnation(tmp_path, "learner-10") == "learner-10.8"


def test_whoever_has_gone_on_from_a_snapshot_goes_on_from_itself(tmp_path):
    """The same words are typed again after a crash; the snapshot is not even looked for then."""
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "learner-1.3@55.tape").touch()
    who = who_begins(OPEN, tmp_path, "learner-1", str(tmp_path / "nowhere" / "latest"))
    assert ("learner-1.4", None) == who
    with pytest.raises(SnapshotError, match="nowhere"):
        who_begins(OPEN, tmp_path, "learner-2", str(tmp_path / "nowhere" / "latest"))
