"""Whole jobs with keys: they run, they replay, and processes without a key stay outside."""

import subprocess
import time

import pytest


@pytest.fixture
def keys(tools, tmp_path):
    """A folder of keys for three learners."""
    made = tools.call_here("keys", str(tmp_path / "keys"))
    assert made.returncode == 0, made.stderr
    return tmp_path / "keys"


@pytest.mark.parametrize(
    "how", ["--processes", pytest.param("--set=transport.kind=tcp", marks=pytest.mark.slow)]
)
def test_a_job_with_keys_runs_and_replays(job, tools, keys, how):
    """Over tcp, in one process or in many; where the keys were is no matter to a replay."""
    few = ("--set=job.steps=12", "--set=job.learners=1")
    ran = job.run(f"--set=transport.keys={keys}", *few, how)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    keys.rename(keys.with_name("elsewhere"))

    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout


@pytest.mark.parametrize("how", ["--processes", "--set=transport.kind=tcp"])
def test_bad_keys_are_found_before_there_is_a_run(job, keys, how):
    """One line names the file, and no run folder is made."""
    (keys / "learner-1.key").chmod(0o644)
    ended = job.run(f"--set=transport.keys={keys}", how)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.strip().endswith(f"chmod 600 {keys / 'learner-1.key'}")
    assert ended.stderr.count("\n") == 1
    assert not job.run_folder.exists()


@pytest.mark.slow
def test_a_foreign_key_keeps_its_holder_waiting(job, tools, keys, tmp_path):
    """The learner says that it waits; the syncer says whom it refused, and trains with others."""
    other = tmp_path / "other"
    tools.call_here("keys", str(other))
    ours, theirs = ((each / "public.toml").read_text() for each in (keys, other))
    (other / "public.toml").write_text(theirs.replace(line_of(theirs), line_of(ours)))

    common = [
        str(job.file),
        "--set=job.steps=12",
        "--set=job.learners=3",
        "--dir",
        str(job.run_folder),
        "--join",
    ]
    running = []

    def start(role, *words, folder=keys):
        command = [*tools.DDLOCO, role, *common, *words, "--keys", str(folder)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running.append(subprocess.Popen(command, cwd=tools.WORK, **quiet))
        return running[-1]

    try:
        # Every address, which needs keys; only this machine is asked to take part.
        syncer = start("syncer", "--bind", "tcp://*:*")
        port = until(job.run_folder / "syncer.address").rpartition(":")[2]
        address = f"tcp://127.0.0.1:{port}"
        unknown_peer = start("learner", "--connect", address, "--name", "learner-2", folder=other)
        job.wait_for("handshake refused", 1)
        job.wait_for("waiting", 1)
        refused = next(line for line in job.log() if line["event"] == "handshake refused")
        assert (refused["actor"], refused["address"]) == ("syncer", "127.0.0.1")
        assert refused["count"] >= 1
        assert "the public key" in refused["reason"]

        for name in ("learner-0", "learner-1"):
            start("learner", "--connect", address, "--name", name)
        assert syncer.wait(timeout=120) == 0
        assert unknown_peer.poll() is None
        assert {line["actor"] for line in job.log() if line["event"] == "step"} <= {
            "learner-0",
            "learner-1",
        }
    finally:
        for process in running:
            process.terminate()
            process.wait(timeout=60)


def line_of(public):
    """What a public.toml says of the syncer."""
    return next(line for line in public.splitlines() if line.startswith("syncer"))


def until(path):
    """What a file says, once it is there."""
    for _ in range(1200):
        if path.exists():
            return path.read_text()
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")
