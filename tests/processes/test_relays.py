"""Learners of a site send their contributions to a relay, and go on when it dies."""

import pytest

SITE = (
    "--processes", "--set=job.learners=3", "--set=sync.quorum=2",
    '--set=relay.relay-0.learners=["learner-0", "learner-1"]',
)  # fmt: skip


COMPRESSED = (
    "--set=compress.up=int8", "--set=compress.down=int8", "--set=compress.feedback=true"
)  # fmt: skip


def replayed(tools, job):
    """The run replays to the bit."""
    found = tools.replay(job.run_folder)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def seen(job, event, actor):
    """What an actor has logged."""
    return [each for each in job.log() if (each["event"], each["actor"]) == (event, actor)]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), COMPRESSED])
def test_a_job_with_a_relay_replays(job, tools, more):
    """Whole and compressed."""
    said = job.run(*SITE, "--set=job.steps=60", "--set=task.step_s=0.02", *more)
    assert said.returncode == 0, said.stderr
    assert len(seen(job, "learner linked", "relay-0")) == 2
    merges = seen(job, "merge", "syncer")
    assert any({"learner-0.1", "learner-1.1", "learner-2.1"} == {*m["learners"]} for m in merges)
    assert (job.run_folder / "tapes" / "relay-0.1.tape").exists()
    replayed(tools, job)


@pytest.mark.slow
def test_a_site_goes_on_when_its_relay_dies(job, tools):
    """What was on its way through it is pulled again; its next incarnation takes over."""
    kill = 'chaos.fault=[{what="crash", who="relay-0", at_s=4.0, for_s=1.0}]'
    said = job.run(*SITE, "--set=job.steps=240", "--set=task.step_s=0.1", "--set", kill)
    assert said.returncode == 0, said.stderr
    [lost] = seen(job, "relay lost", "syncer")[:1]
    after = [each for each in seen(job, "merge", "syncer") if each["at"] > lost["at"]]
    assert {"learner-0.1", "learner-1.1"} <= {name for each in after for name in each["learners"]}
    assert {"relay-0.1", "relay-0.2"} <= {
        each["ref"].partition(":")[0] for each in seen(job, "relaying", "relay-0")
    }
    assert len(seen(job, "learner linked", "relay-0")) == 4
    replayed(tools, job)


@pytest.mark.slow
def test_a_snapshot_has_the_relay_and_a_job_continues_from_it(job, tools, tmp_path):
    """With its links and what it holds."""
    said = job.run(
        *SITE, "--set=job.steps=60", "--set=task.step_s=0.02", "--set=snapshot.every_steps=20"
    )
    assert said.returncode == 0, said.stderr
    taken = seen(job, "snapshot taken", "syncer")
    assert "relay-0.1" in taken[-1]["parts"]
    (tmp_path / "again").mkdir()
    latest, again = job.run_folder / "snapshots" / "latest", type(job)(tmp_path / "again")
    said = again.run(*SITE, "--set=job.steps=90", "--set=task.step_s=0.02", "--from", str(latest))
    assert said.returncode == 0, said.stderr
    assert seen(again, "learner linked", "relay-0") == [], "its links went on"
    replayed(tools, again)
