"""Snapshots of real jobs: taken while they train, whole, exported, and gone on from in a replay."""

import json

import pytest
from safetensors.numpy import load_file

PICTURED = (
    "--set=sync.quorum=3",
    "--set=task.step_s=0.02",
    "--set=snapshot.every_steps=15",
    "--set=snapshot.keep=50",
)
FORMS = {
    "one-process": (),
    "processes": ("--processes",),
    "shards": ("--processes", "--set=job.syncers=2"),
}


class Run:
    """A job that took snapshots, to its end."""

    def __init__(self, job, tools):
        self.job, self.tools, self.folder = job, tools, job.run_folder

    def snapshot(self, action, *more):
        """``ddloco snapshot ACTION RUN ...``."""
        return self.tools.call([*self.tools.DDLOCO, "snapshot", action, str(self.folder), *more])

    def listed(self):
        """What ``list`` tells, the oldest first."""
        told = self.snapshot("list", "--json")
        assert 0 == told.returncode, told.stdout + told.stderr
        return json.loads(told.stdout)[::-1]

    def seen(self, event):
        """The lines of the log on one kind of event."""
        return [line for line in self.job.log() if line["event"] == event]

    def replay(self, *more):
        """Code and findings of a replay."""
        done = self.tools.replay(self.folder, "--json", *more)
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


@pytest.fixture(scope="module", params=FORMS)
def run(request, tools, tmp_path_factory):
    """One run of each form; look at it, do not change it."""
    done = Run(tools.Job(tmp_path_factory.mktemp(request.param)), tools)
    ended = done.job.run(*PICTURED, *FORMS[request.param])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    done.whole = None
    return done


@pytest.fixture
def pictures(job, tools):
    """A run that is still to be made."""
    return Run(job, tools)


def test_a_job_takes_snapshots_of_everybody(run):
    """Every so many steps and at the end: all are in, every byte is as it was written."""
    taken = run.seen("snapshot taken")
    actors = {line["actor"] for event in ("step", "merge") for line in run.seen(event)}
    listed = run.listed()

    assert len(taken) >= 3
    assert [line["snapshot"].replace(":", "-") for line in taken] == [each["id"] for each in listed]
    for each in listed:
        assert {} == each["absent"]
        assert actors == {who.rpartition(".")[0] for who in each["participants"]}
        assert each["facts"]["name"] == "small"
    verified = run.snapshot("verify")
    assert 0 == verified.returncode, verified.stdout
    assert f"{len(taken)} of {len(taken)} snapshots intact" in verified.stdout


def test_a_snapshot_is_a_model(run, tmp_path):
    """What is exported has the tensors of the final model; the last one, at the end, is it. With
    shards that of the lead's end, where another may still have had something to merge."""
    model = load_file(run.folder / "model" / "model.safetensors")
    first, *_, last = run.listed()
    found = {}
    for each in (first, last):
        to = tmp_path / f"{each['id']}.safetensors"
        exported = run.snapshot("export", each["id"], "--to", str(to))
        assert 0 == exported.returncode, exported.stderr
        found[each["id"]] = load_file(to)
        assert {n: t.shape for n, t in model.items()} == {
            n: t.shape for n, t in found[each["id"]].items()
        }

    assert any((model[name] != found[first["id"]][name]).any() for name in model)
    shards = sum(who.startswith("syncer") for who in last["participants"])
    assert shards > 1 or all((model[name] == found[last["id"]][name]).all() for name in model)


@pytest.mark.parametrize("which", [0, 1, "latest"])
def test_a_replay_begins_with_a_snapshot(run, which):
    """What comes after it is identical; the later it was taken, the less is played."""
    if run.whole is None:
        code, run.whole = run.replay()
        assert (0, True) == (code, run.whole["identical"]), run.whole
    id_ = which if which == "latest" else run.listed()[which]["id"]
    code, found = run.replay("--from", id_)

    assert (0, True) == (code, found["identical"]), found
    assert (0, []) == (found["unverified"], found["gaps"])
    assert 0 < found["events"] < run.whole["events"]
