"""A job on a real Ray of three raylets on this machine."""

import json
import os
import signal
import time

import pytest

import ddloco.ray
from ddloco.cli.parser import main
from ddloco.stage.files.toml import ConfigError

JOB = """
[job]
name = "small"
task = "tests.tasks:regression"
steps = 100000
learners = 4

[task]
step_s = 0.05

[sync]
fragments = 4
interval = 8

[transport]
insecure = true

[tape]
segment_s = 1.0
"""


@pytest.fixture
def cluster():
    """Three raylets; those that are not the head have two CPUs."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes = [made.add_node(num_cpus=3) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False)
    yield ray, made, nodes
    ray.shutdown()
    made.shutdown()


def until(condition, what, seconds=120.0):
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_killed_learner_and_a_lost_raylet(cluster, tmp_path, capsys):
    """Learners come back, elsewhere if need be; the job scales, stops with 0, and replays."""
    ray, made, nodes = cluster
    (tmp_path / "job.toml").write_text(JOB)
    folder = tmp_path / "run"
    job = ddloco.ray.run(tmp_path / "job.toml", folder, learners=2)

    def joined(name):
        path = folder / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(each) for each in lines if each.startswith("{") and each.endswith("}")]
        names = [str(each.get("learner", "")) for each in found if each["event"] == "joined"]
        return sum(each.split(".")[0] == name for each in names)

    until(lambda: joined("learner-0") and joined("learner-1"), "both join")
    os.kill(ray.get(job.keepers["learner-1"].pid.remote()), signal.SIGKILL)
    until(lambda: joined("learner-1") == 2, "a killed learner joins again")

    job = ddloco.ray.attach(tmp_path / "job.toml", folder)
    job.scale(3)
    until(lambda: joined("learner-2"), "a further learner joins")
    before = {f"learner-{n}": joined(f"learner-{n}") for n in range(3)}
    made.remove_node(nodes[1], allow_graceful=False)
    until(lambda: any(joined(name) > times for name, times in before.items()), "it comes back")
    until(lambda: len(job.status()) == 4, "all are known")

    job.scale(1)
    assert list(job.keepers) == ["syncer", "learner-0"]
    assert job.stop() == {"syncer": 0, "learner-0": 0}
    with pytest.raises(SystemExit) as left:
        main(["replay", str(folder)])
    said = capsys.readouterr().out
    assert left.value.code in (0, 1)  # 1 where the lost raylet has left a gap.
    assert "identical: " in said or "identical as far as it was compared: " in said


def test_bad_input_is_one_line(tmp_path):
    """More learners than the job has, and Ray that is missing, are named."""
    (tmp_path / "job.toml").write_text(JOB)
    with pytest.raises(ConfigError, match=r"learners 9: want 1 to 4|ray: not installed"):
        ddloco.ray.run(tmp_path / "job.toml", tmp_path / "run", learners=9)
    with pytest.raises(ConfigError, match=r"no job was started there|ray: not installed"):
        ddloco.ray.attach(tmp_path / "job.toml", tmp_path / "run")
