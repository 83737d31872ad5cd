"""Machines that have too little of something: jobs train on, or end with one line that says so."""

import json
import os
import shlex
import socket
import subprocess
import time

import pytest

from tests.hosts.cluster import free_port


@pytest.fixture
def disk(tmp_path):
    """Give a maker of small file systems, which only root can mount."""
    mounted = []

    def mount(*options):
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(place)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place):
    """Take all the room that is left."""
    with (place / "filler").open("wb", buffering=0) as file:
        for size in (2**16, 2**10, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def lines_of(log):
    """The lines of a log that are whole."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def merges(job):
    """How many merges the log tells of."""
    return sum(line["event"] == "merge" for line in lines_of(job.run_folder / "log.jsonl"))


def until(what, limit_s=60.0):
    """Wait until something is so."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--processes",)])
def test_a_full_disk_costs_the_tape_only(job, disk, how):
    """With ``on_error = "drop"`` a job trains on, and says what was lost once there is room."""
    place = disk("size=4m")
    job.run_folder = place / "run"
    settings = ["--set=job.steps=400", "--set=task.step_s=0.05", "--set=tape.on_error=drop"]
    running = job.start(*how, *settings)
    until(lambda: merges(job) > 5)
    fill(place)
    time.sleep(4.0)
    assert running.poll() is None, running.communicate()[0]
    (place / "filler").unlink()
    output, _ = running.communicate(timeout=120)

    assert 0 == running.returncode, output
    events = {line["event"] for line in lines_of(job.run_folder / "log.jsonl")}
    assert {"log lines lost", "merges are kept again"} <= events


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--processes",)])
def test_a_full_disk_ends_a_job_with_one_line(job, disk, how):
    """With ``on_error = "stop"``: which file, and why."""
    place = disk("size=4m")
    job.run_folder = place / "run"
    running = job.start(*how, "--set=job.steps=2000", "--set=task.step_s=0.05")
    until(lambda: merges(job) > 5)
    fill(place)
    output, _ = running.communicate(timeout=120)

    assert 1 == running.returncode, output
    # A write that was short says only how short it was.
    assert "No space left on device" in output or "(disk full?)" in output, output
    assert str(job.run_folder) in output
    for nothing in ("None", "bug", "Traceback"):
        assert nothing not in output


@pytest.mark.parametrize(
    ("inodes", "how"),
    [
        (6, ()),
        *[
            pytest.param(inodes, how, marks=pytest.mark.slow)
            for inodes in (3, 6, 9)
            for how in ((), ("--processes",))
        ],
    ],
)
def test_no_inodes_are_no_hang(job, disk, inodes, how):
    """No file can be made: one line says so, without a wait."""
    place = disk("size=4m", f"nr_inodes={inodes}")
    job.run_folder = place / "run"
    ended = job.run(*how, "--set=job.steps=20")
    output = ended.stdout + ended.stderr
    assert ended.returncode in (1, 2), output
    assert "No space left on device" in output
    for nothing in ("None", "bug", "Traceback"):
        assert nothing not in output


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--processes",)])
def test_inodes_that_run_out_are_no_hang(job, disk, how):
    """Later no file can be made: the job ends with one line, or trains on, but is not stuck."""
    place = disk("size=8m", "nr_inodes=200")
    job.run_folder = place / "run"
    settings = ["--set=job.steps=200", "--set=task.step_s=0.05"]
    running = job.start(*how, *settings)
    until(lambda: merges(job) > 5)
    for number in range(1000):
        try:
            (place / f"x{number}").touch()
        except OSError:
            break
    output, _ = running.communicate(timeout=120)
    assert running.returncode in (0, 1), output
    for nothing in ("None:", "bug", "Traceback"):
        assert nothing not in output


@pytest.mark.parametrize(
    ("limit", "how", "said"),
    [
        ("-n 40", (), "Too many open files: this process may have 40 (ulimit -n)"),
        pytest.param(
            *("-v 900000", ("--processes",), "0.9 GiB of address space (ulimit -v)"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_limits_are_named(job, tools, limit, how, said):
    """Too few descriptors, too little address space: one line says which limit it is."""
    # With four learners 40 descriptors are sometimes enough for their sockets.
    command = " ".join(job.command(*how, "--set=job.steps=20", "--set=job.learners=8"))
    ended = tools.call(["bash", "-c", f"ulimit {limit} && exec {command}"])
    assert 1 == ended.returncode, ended.stderr
    assert said in ended.stdout + ended.stderr
    assert "bug" not in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_thousand_idle_connections_end_no_process(job, tools):
    """A syncer with 1,024 descriptors, which a thousand foreign connections hold: idle ones make
    room, learners join, and the job comes to its end and replays."""
    address = f"tcp://127.0.0.1:{free_port()}"
    common = [str(job.file), "--dir", str(job.run_folder), "--join", "--with-parent"]
    serve = shlex.join([*tools.DDLOCO, "syncer", *common, "--bind", address])
    limited = ["bash", "-c", f"ulimit -n 1024 && exec {serve}"]
    started, unknown_peers = [start(tools, limited)], []
    try:
        until((job.run_folder / "syncer.address").exists)
        host, port = address.removeprefix("tcp://").split(":")
        unknown_peers += [socket.create_connection((host, int(port)), 10) for _ in range(1000)]
        for number in range(2):
            learner = [*tools.DDLOCO, "learner", *common, "--connect", address]
            started.append(start(tools, [*learner, "--name", f"learner-{number}"]))
        assert [0] * 3 == [each.wait(120) for each in started]
    finally:
        for each in unknown_peers:
            each.close()
        for each in started:
            each.kill()
            each.communicate()
    replayed = tools.replay(job.run_folder)
    assert 0 == replayed.returncode, replayed.stdout + replayed.stderr


def start(tools, command):
    """Start a process that ends with this one."""
    return subprocess.Popen(
        command, cwd=tools.WORK, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
