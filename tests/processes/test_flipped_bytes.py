"""Bits flip between a learner and its syncer, without keys: wherever they fall, the job ends, every
merge is of what was said, and the replay is identical, or names what was refused."""

import json
import socket
import subprocess

import pytest

from tests.flipping_proxy import FlippingProxy

SETTINGS = (
    "--set=job.learners=2", "--set=job.steps=240", "--set=task.step_s=0.01", "--set=sync.quorum=1",
    "--set=transport.shared_memory=false",
)  # fmt: skip
FLIPS = [(5, 300_000), (6, 150_000), (8, 150_000)]
"""Seeds, and after how many bytes a bit flips, on average: a learner sends 300,000 here."""

TAPES_AWAY = {"learner-0.1", "learner-1.1"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "every_bytes"), [(5, 300_000), (6, 150_000), (8, 150_000)])
def test_a_job_over_connections_that_flip_bits(job, tools, tmp_path, seed, every_bytes):
    """The model is as good, whoever was refused is named, and all of them end with 0."""
    port = free_port()
    proxies = [FlippingProxy(port, seed * 10 + n, every_bytes) for n in range(2)]
    at = f"tcp://127.0.0.1:{port}"
    begun = [("syncer", "--bind", at, "--dir", tmp_path / "syncer")]
    for n, proxy in enumerate(proxies):
        through = f"tcp://127.0.0.1:{proxy.port}"
        begun.append(
            ("learner", "--connect", through, "--name", f"learner-{n}", "--dir", tmp_path / f"l{n}")
        )
    running = [
        subprocess.Popen(
            [*tools.DDLOCO, command, job.file, *SETTINGS, *map(str, more)], cwd=tools.WORK,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for command, *more in begun
    ]  # fmt: skip
    try:
        said = [each.communicate(timeout=200)[0] for each in running]
    finally:
        for each in running:
            each.kill()
        for proxy in proxies:
            proxy.close()
    assert [0, 0, 0] == [each.returncode for each in running], "\n".join(said)
    assert sum(proxy.flipped for proxy in proxies) > 0

    replayed = tools.replay(tmp_path / "syncer", "--json")
    found = json.loads(replayed.stdout)
    assert not found["divergence"], replayed.stdout
    named = {gap["incarnation"] for gap in found["gaps"]}
    assert named <= TAPES_AWAY
    assert (replayed.returncode == 0) == (not named)
    verified = tools.call_here("tape", "verify", tmp_path / "syncer")
    assert "VIOLATED" not in verified.stdout + verified.stderr
