"""What a syncer that was started by hand says of the losses of learners on other hosts."""

import json
import re
from types import SimpleNamespace

import pytest

from ddloco.job.config import job_from
from ddloco.monitoring.live_display import Board
from ddloco.roles.loss_log import LossLog
from ddloco.stage.files.run_folder import LOSS_FILE
from ddloco.stage.process.log_tail import LogTail

JOB = job_from({"job": {"task": "a:b", "learners": 2, "steps": 40}}, "test")


class Syncer:
    """A syncer that is hosted in a folder, and what its learners have reported."""

    def __init__(self, folder):
        self.folder, self.job = folder, JOB
        self.members = {}
        self.driver = SimpleNamespace(status=self.status)
        (folder / "log.jsonl").write_text("")

    def status(self):
        """As observers get it."""
        members = [
            {"learner": f"{who}.1", "step": step, "loss": loss}
            for who, (step, loss) in self.members.items()
        ]
        return {"t": 1, "members": members}

    def note(self, event, fields):
        """A line of the log."""
        line = {"event": event, "actor": "syncer", "at": 1.0, **fields}
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(f"{json.dumps(line)}\n")

    def lines(self):
        """All lines of the log."""
        return LogTail(self.folder).new_lines()


@pytest.fixture
def syncer(tmp_path):
    """A syncer and its folder."""
    return Syncer(tmp_path)


def merge(t):
    """A line of a merge."""
    return {"t": t, "fragment": 0, "live": 2, "taking_part": 2, "averaged": 2}


def test_only_what_is_new_is_logged(syncer):
    """One line for all learners that have done a step; none if there is no such learner."""
    losses = LossLog(JOB, syncer.folder)
    syncer.members = {"learner-0": (3, 4.5), "learner-1": (0, None)}
    losses.note(syncer)
    losses.note(syncer)
    syncer.members["learner-1"] = (2, 4.0)
    losses.note(syncer)

    said = [line["learners"] for line in syncer.lines()]
    assert said == [{"learner-0": [3, 4.5]}, {"learner-1": [2, 4.0]}]


def test_the_figure_has_every_learner(syncer):
    """Over the global steps of the log, those of an earlier incarnation of the syncer included."""
    syncer.members = {"learner-0": (3, 4.5), "learner-1": (2, 4.0)}
    LossLog(JOB, syncer.folder).note(syncer)
    syncer.note("merge", merge(20))
    again = LossLog(JOB, syncer.folder)
    syncer.members = {"learner-0": (9, 2.5), "learner-1": (8, None)}
    again.note(syncer)
    again.draw()

    drawn = (syncer.folder / LOSS_FILE).read_text()
    lines = re.findall('<polyline points="([^"]+)"', drawn)
    assert [2, 1] == [len(line.split()) for line in lines]
    assert "learner-0" in drawn
    assert "learner-1" in drawn


def test_without_losses_there_is_no_figure(syncer):
    """No learner trained, or none has begun."""
    syncer.driver = None
    losses = LossLog(JOB, syncer.folder)
    losses.note(syncer)
    losses.draw()

    assert not (syncer.folder / LOSS_FILE).exists()
    assert not syncer.lines()


def test_steps_of_a_shared_folder_are_not_counted_twice(syncer):
    """A learner whose own lines are in the log is drawn from them."""
    syncer.note("step", {"actor": "learner-0", "step": 3, "loss": 9.0, "tokens": 1, "step_s": 0.1})
    syncer.members = {"learner-0": (3, 4.5)}
    LossLog(JOB, syncer.folder).note(syncer)
    board = Board(JOB)
    for line in syncer.lines():
        board.take(line)

    assert board.learners["learner-0"].losses == [9.0]
