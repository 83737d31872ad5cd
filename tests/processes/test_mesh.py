"""Learners on meshes of devices: a run replays to the bit, and another mesh is named."""

import json
from pathlib import Path

import pytest

from tests.commands import here

ROOT = Path(__file__).parents[2]
STEPS = "--set=job.steps=24"


def ddloco(*args):
    """A command's exit status and all that it said."""
    done = here(*args, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def losses(folder):
    """The losses of each learner's own steps."""
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["event"] == "step"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The example, shorter; one learner divides its data only."""
    folder = tmp_path_factory.mktemp("mesh") / "run"
    other = "--set=learner.learner-1.mesh={data=8}"
    code, said = ddloco("run", "examples/mesh.toml", "--dir", folder, STEPS, other)
    assert code == 0, said
    return folder


@pytest.mark.slow
def test_it_learns_and_replays(run):
    """Each learner on its own mesh."""
    found = losses(run)
    assert sum(found[-8:]) < sum(found[:8])
    code, said = ddloco("replay", run)
    assert code == 0
    assert "identical" in said


@pytest.mark.slow
def test_learners_of_two_processes_replay(tmp_path):
    """The quickstart, smaller, with two learners of two processes; the group is started again."""
    more = ["--set=job.learners=2", "--set=task.size=tiny", "--set=worker.processes=2"]
    folder = tmp_path / "run"
    code, said = ddloco("run", "examples/quickstart.toml", "--dir", folder, STEPS, *more)
    assert code == 0, said
    found = losses(folder)
    assert sum(found[-8:]) < sum(found[:8])
    code, said = ddloco("replay", folder)
    assert code == 0, said
    assert "identical" in said


def test_a_mesh_without_the_devices_says_what_is_missing(tmp_path):
    """The number of devices is in the tape's environment; here that is not believed."""
    text = (ROOT / "examples" / "mesh.toml").read_text()
    job = tmp_path / "short.toml"
    job.write_text(text.replace('JAX_NUM_CPU_DEVICES = "8"', 'JAX_NUM_CPU_DEVICES = "4"'))
    code, said = ddloco("run", job, "--dir", tmp_path / "short", STEPS)
    assert code != 0
    assert "mesh data=2 model=4 needs 8 devices, here are 4" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_stop_of_all_processes_is_no_death(tmp_path):
    """They are stopped and continued together, for longer than one of them may be silent."""
    chaos = tmp_path / "chaos.toml"
    chaos.write_text('[[fault]]\nwhat = "stall"\nwho = "learner-1"\nat_s = 3.0\nfor_s = 6.0\n')
    folder = tmp_path / "run"
    more = [
        "--set=job.learners=2",
        "--set=worker.processes=2",
        "--set=worker.stall_s=2",
        "--set=job.steps=300",
    ]
    words = ["--processes", "--dir", folder, "--chaos", chaos, "--set=task.size=tiny"]
    code, said = ddloco("run", "examples/quickstart.toml", *words, *more)
    assert code == 0, said
    assert not list(folder.glob("**/learner-1.2*")), "the same incarnation goes on"
    code, said = ddloco("replay", folder)
    assert code == 0, said
    assert "identical" in said


@pytest.mark.slow
def test_a_snapshot_continues_in_another_number_of_processes(tmp_path):
    """Of two, in one; and the run that continues replays."""
    job = ("run", "examples/quickstart.toml", "--set=job.learners=2", "--set=task.size=tiny")
    begun, more = tmp_path / "begun", tmp_path / "more"
    several = ["--set=worker.processes=2", "--set=snapshot.every_s=2", "--set=job.steps=48"]
    code, said = ddloco(*job, "--dir", begun, *several)
    assert code == 0, said
    code, said = ddloco(*job, "--dir", more, "--from", begun, "--set=job.steps=72")
    assert code == 0, said
    code, said = ddloco("replay", more)
    assert code == 0, said
    assert "identical" in said
