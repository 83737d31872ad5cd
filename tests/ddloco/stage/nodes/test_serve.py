"""What an actor in a process of its own checks before it starts."""

from pathlib import Path

import pytest

from ddloco.job.config import job_from
from ddloco.job.keys import with_keys
from ddloco.roles.job_program import program_of
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.serve import Terms, check_bind, refuse_unshared, who_leads
from snapshot import SnapshotError

OPEN = job_from({"job": {"task": "x:y"}, "transport": {"insecure": True}}, "test")
CLOSED = job_from({"job": {"task": "x:y"}}, "test")


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:*", "tcp://[::1]:5555", "tcp://localhost:5555"],
)
def test_loopback_needs_no_word(address):
    """Addresses that only this machine reaches."""
    check_bind(program_of(CLOSED), "--bind", address)


@pytest.mark.parametrize("address", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://10.0.0.7:5555"])
def test_everything_else_does(address):
    """Any process that reaches the address could take part: only with keys or insecure = true."""
    with pytest.raises(ConfigError, match=r"transport\.insecure = true"):
        check_bind(program_of(CLOSED), "--bind", address)
    check_bind(program_of(OPEN), "--bind", address)
    with pytest.raises(ConfigError, match="`ddloco keys DIR`"):
        check_bind(program_of(CLOSED), "--bind", address)
    keyed = program_of(with_keys(CLOSED, Path("anywhere")))
    check_bind(keyed, "--bind", address)


def test_a_syncer_that_has_gone_on_from_a_snapshot_goes_on_from_itself(tmp_path):
    """The same words are typed again after a crash; the snapshot is not even looked for then."""
    snapshot = str(tmp_path / "nowhere" / "latest")
    with pytest.raises(SnapshotError, match="nowhere"):
        who_leads(program_of(OPEN), "syncer", tmp_path, Terms(snapshot=snapshot))
    (tmp_path / "tapes").mkdir()
    (tmp_path / "tapes" / "syncer.3@55.tape").touch()
    assert ("syncer.4", None) == who_leads(
        program_of(OPEN), "syncer", tmp_path, Terms(snapshot=snapshot)
    )
    assert ("syncer.5", None) == who_leads(
        program_of(OPEN), "syncer", tmp_path, Terms(snapshot=snapshot)
    )


def test_a_place_that_is_not_shared_is_refused(tmp_path):
    """Parts that are written in another folder than the lead's make no snapshot."""
    plain = {"job": {"task": "x:y"}, "snapshot": {"every_s": 1.0}}
    job = job_from(plain, "test")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "syncer.address").write_text("tcp://127.0.0.1:5")

    refuse_unshared(program_of(job), tmp_path / "a")
    with pytest.raises(ConfigError, match=r"set snapshot\.place to a folder that all hosts share"):
        refuse_unshared(program_of(job), tmp_path / "b")
    shared = job_from({**plain, "snapshot": {"every_s": 1.0, "place": "/p"}}, "test")
    refuse_unshared(program_of(shared), tmp_path / "b")
    refuse_unshared(program_of(job_from({"job": {"task": "x:y"}}, "test")), tmp_path / "b")
