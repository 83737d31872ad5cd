"""Driving a real run by a simulation's tapes: what is taken from where, and what cannot be."""

import pytest
from msgspec.structs import replace

from ddloco.config.job import job_from
from ddloco.config.run_folder import open_folder
from ddloco.config.toml import ConfigError
from ddloco.replayer import scheduled_replay
from ddloco.replayer.scheduled_replay import ScheduledRun, job_under
from ddloco.simulation import fuzz
from replay import TapeError

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
        drawn = fuzz.draw(seed, folder)
        open_folder(folder, drawn.job)
        fuzz.happen(drawn)
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
    assert (simulation.job.steps, simulation.job.learners, simulation.sync, {}) == (
        real.job.job.steps,
        real.job.job.learners,
        real.job.sync,
        real.job.learner,
    )
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


def test_a_folder_without_tapes(tmp_path):
    """Says so."""
    with pytest.raises(TapeError):
        drive(tmp_path, tmp_path / "real")
