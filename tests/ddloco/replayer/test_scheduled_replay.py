"""Driving a real run by a simulation's tapes: what is taken from where, and what cannot be."""

import pytest
from msgspec.structs import replace

from ddloco.job.config import Job, LearnerTable, job_from
from ddloco.replayer import scheduled_replay
from ddloco.replayer.scheduled_replay import ScheduledRun, job_under, overridden
from ddloco.stage.files.run_folder import open_folder
from ddloco.stage.files.toml import ConfigError
from replay import TapeError
from tests.lab.hostile_world import draw, happen

JOB = {
    "job": {"task": "none:none", "name": "real", "steps": 500, "learners": 7, "seed": 3},
    "sync": {"quorum": 7},
    "learner": {"learner-6": {"factor": 2.0}},
}


@pytest.fixture
def simulated(tmp_path):
    """Makes the run folder of a hostile world."""

    def made(seed):
        folder = tmp_path / f"simulated-{seed}"
        drawn = draw(seed, folder)
        open_folder(folder, drawn.job)
        happen(drawn)
        return folder, drawn.job

    return made


def drive(schedule, folder):
    """A drive that is not run."""
    return ScheduledRun(schedule, job_from(JOB, "test"), folder, lambda events: None)


def test_what_is_trained_and_who_trains_it(simulated, tmp_path):
    """The task, its seed and its name are the job's; learners, steps and syncs the schedule's."""
    schedule, simulation = simulated(16)
    real = drive(schedule, tmp_path / "real")
    assert job_under(job_from(JOB, "test"), simulation) == real.job
    assert ("none:none", "real", 3) == (real.job.job.task, real.job.job.name, real.job.job.seed)
    assert (simulation.job.steps, simulation.job.learners, simulation.sync) == (
        real.job.job.steps,
        real.job.job.learners,
        real.job.sync,
    )
    assert {each.factor for each in real.job.learner.values()} == {1.0}
    assert (tmp_path / "real" / "job.toml").exists()


def test_tapes_without_their_beginnings_are_no_schedule(simulated, tmp_path, monkeypatch):
    """What a snapshot had of the run is not on them."""
    schedule, _ = simulated(16)
    opened = scheduled_replay.open_recording

    def late(path, *, salvage=False):
        tapes = opened(path, salvage=salvage)
        tapes[0].header = replace(tapes[0].header, after=7)
        return tapes

    monkeypatch.setattr(scheduled_replay, "open_recording", late)
    with pytest.raises(ConfigError, match="want tapes from their beginnings"):
        drive(schedule, tmp_path / "real")


FOLLOWED = {"task", "inner", "outer", "worker", "job.task", "job.name", "job.seed"}
WHOLE = job_from(JOB, "test")
SETTINGS = [
    (table, field)
    for table in Job.__struct_fields__
    if table not in {"task", "learner", "relay"}
    for field in getattr(WHOLE, table).__struct_fields__
]


@pytest.mark.parametrize(("table", "field"), SETTINGS)
def test_every_setting_is_followed_or_named(table, field):
    """Whatever a machine may decide by; also a setting that is added later."""
    job = job_from(JOB, "test")
    changed = replace(job, **{table: replace(getattr(job, table), **{field: "another"})})
    under = job_under(changed, job)
    if FOLLOWED & {table, f"{table}.{field}"}:
        assert getattr(getattr(under, table), field) == "another"
        assert not overridden(changed, job)
    else:
        assert under == job_under(job, job)
        assert list(overridden(changed, job)) == [f"{table}.{field}"]


def test_of_a_learner_its_data_and_its_worker_are_followed_and_its_pace_is_named():
    """Who is how slow is on the tapes."""
    job = job_from(JOB, "test")
    tables = {"learner-6": {"factor": 3.0, "shard": 2, "env": {"A": "1"}}}
    changed = job_from({**JOB, "learner": tables}, "test")
    assert overridden(changed, job) == {"learner.learner-6.factor": (3.0, 2.0)}
    assert job_under(changed, job).learner["learner-6"] == LearnerTable(
        factor=1.0, shard=2, env={"A": "1"}
    )
    assert not overridden(job, job)


def test_what_is_asked_for_is_refused_if_it_is_not_followed(simulated, tmp_path):
    """Of a simulated schedule; the settings of the job's file are named, and not followed."""
    schedule, simulation = simulated(16)
    job = job_from(JOB, "test")
    made = ScheduledRun(schedule, job, tmp_path / "real", print, asked=["outer.lr=0.3"])
    assert made.overridden["sync.quorum"] == (7, simulation.sync.quorum)
    with pytest.raises(
        ConfigError, match=r"those of the schedule: sync.quorum = \d+, not 7; a run"
    ):
        ScheduledRun(schedule, job, tmp_path / "other", print, asked=["sync.quorum=7"])
    assert not (tmp_path / "other").exists()


def test_a_schedule_is_not_overwritten_and_another_run_is(simulated, tmp_path):
    """``--overwrite`` deletes what is in ``--dir``, unless that is what is followed."""
    schedule, _ = simulated(16)
    job = job_from(JOB, "test")
    (tmp_path / "real" / "tapes").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds a run already"):
        ScheduledRun(schedule, job, tmp_path / "real", print)
    ScheduledRun(schedule, job, tmp_path / "real", print, overwrite=True)
    with pytest.raises(ConfigError, match="is the schedule"):
        ScheduledRun(schedule, job, schedule, print, overwrite=True)


def test_a_folder_without_tapes(tmp_path):
    """Says so."""
    with pytest.raises(TapeError):
        drive(tmp_path, tmp_path / "real")


def test_clients_drawn_by_another_seed_are_refused(simulated, tmp_path):
    """Other learners would train in a round than the schedule has steps of."""
    seed = next(seed for seed in range(28, 37 * 40, 37) if draw(seed).job.sync.clients != 1.0)
    schedule, _ = simulated(seed)
    with pytest.raises(ConfigError, match=rf"drawn by seed {seed}; want job.seed = {seed}"):
        drive(schedule, tmp_path / "real")
