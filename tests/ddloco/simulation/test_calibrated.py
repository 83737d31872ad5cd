"""A run's own speeds: its steps in order, then on the whole; what is no run is said in one line."""

import json
import random

import pytest

from ddloco.simulation.calibrated import RecordedPace, Recording
from ddloco.stage.files.toml import ConfigError

JOB = '[job]\ntask = "none:none"\n[sync]\nfragments = 3\ninterval = 3\n'


def test_steps_take_what_they_took():
    """First the recorded durations in order, then their median; slower ones are slower."""
    pace = RecordedPace([3.0, 1.0, 2.0], random.Random(0))

    assert [3.0, 1.0, 4.0] == [pace.step(0.0, slow) for slow in (1.0, 1.0, 2.0)]
    assert [2.0, 2.0] == [pace.step(0.0, 1.0) for _ in range(2)]
    pace.done(9.0)
    assert 2.0 == pace.useful_s


def test_a_learner_that_never_stepped_has_a_pace():
    """A learner that joined and did nothing else can still be simulated."""
    assert RecordedPace([], random.Random(0)).step(0.0, 1.0) == 1.0


def folder_with(tmp_path, *lines):
    """A run folder with a job file and these lines of log."""
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_a_folder_without_a_log_is_named(tmp_path):
    """The file that is missing, in one line."""
    (tmp_path / "job.toml").write_text(JOB)
    with pytest.raises(ConfigError, match=r"log\.jsonl: No such file"):
        Recording(tmp_path).resolved("")


def test_a_run_whose_syncer_never_listened_is_refused(tmp_path):
    """There is nothing to go by."""
    with pytest.raises(ConfigError, match="its syncer never listened"):
        Recording(folder_with(tmp_path)).resolved("")


def test_the_jobs_schedule_is_kept_and_can_be_changed(tmp_path):
    """As many fragments as the run had; the rest as its job file says, or an override."""
    listening = {"event": "listening", "actor": "syncer", "at": 1.5, "fragments": 3}
    folder = folder_with(tmp_path, listening)

    job = Recording(folder, ("sync.quorum=2",)).resolved("")

    assert (3, 2) == (job.task["tensors"], job.sync.quorum)
    assert "simulated:tensors" == job.job.task
