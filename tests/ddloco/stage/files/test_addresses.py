"""The files in which actors find each other's addresses, and that their job has ended."""

import pytest

from ddloco.stage.files.addresses import check_dial, end_at, end_file, write_address, write_end
from transport.zeromq import _written_in


@pytest.mark.parametrize(
    ("bound", "advertised", "written"),
    [
        ("tcp://127.0.0.1:5555", "", "tcp://127.0.0.1:5555"),
        ("tcp://0.0.0.0:5555", "", "tcp://127.0.0.1:5555"),
        ("tcp://[::]:5555", "", "tcp://[::1]:5555"),
        ("tcp://0.0.0.0:5555", "tcp://node7:*", "tcp://node7:5555"),
        ("tcp://0.0.0.0:5555", "tcp://node7", "tcp://node7:5555"),
        ("tcp://0.0.0.0:5555", "tcp://gate:7000", "tcp://gate:7000"),
        ("ipc:///tmp/x", "", "ipc:///tmp/x"),
    ],
)
def test_the_address_file_names_what_can_be_dialled(tmp_path, bound, advertised, written):
    """Never the address of all interfaces; with --advertise what others use."""
    write_address(tmp_path, "syncer", bound, advertised)
    assert written == (tmp_path / "syncer.address").read_text()


@pytest.mark.parametrize(
    "reason", ["done: 40 of 40 steps", "stopped: 停\nof two lines", "x" * 9000]
)
def test_the_end_of_a_job_stands_beside_the_address(tmp_path, reason):
    """Who dials reads the address as before; who asks in vain learns that the job has ended."""
    write_address(tmp_path, "syncer", "tcp://127.0.0.1:5555")
    where = f"file:{tmp_path}/syncer.address"
    assert "" == end_at(where, "job-1")
    write_end(tmp_path, "syncer", "job-1", reason)
    assert reason[:6] == end_at(where, "job-1")[:6]
    assert "" == end_at(where, "job-2"), "another job in the same folder"
    assert "tcp://127.0.0.1:5555" == _written_in(where)
    check_dial("--connect", where)
    write_address(tmp_path, "syncer", "tcp://127.0.0.1:6666")
    assert "" == end_at(where, "job-1"), "it has begun again"


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"job-1", b"job-10 done"])
def test_a_file_that_says_nothing_of_an_end(tmp_path, content):
    """Whatever is wrong with it is reported by who dials it."""
    path = tmp_path / "syncer.address"
    if content is not None:
        end_file(path).write_bytes(content)
    assert "" == end_at(f"file:{path}", "job-1")
    assert "" == end_at("tcp://127.0.0.1:5555", "job-1")
