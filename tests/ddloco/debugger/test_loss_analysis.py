"""``why loss`` against planted faults: the learner at fault is named, and where it began."""

import numpy as np
import pytest

from ddloco.debugger.loss_analysis import analyse_losses
from ddloco.debugger.recorded_run import RecordedRun
from ddloco.workers.simulated.objective import FAR
from ddloco.workers.simulated.work import SimulatedWork

FROM_STEP = 60
GUILTY = "learner-1.1"


def plant_garbage(monkeypatch):
    """The guilty learner's data is garbage from a batch on: its loss and its direction are."""
    descend = SimulatedWork._descend

    def planted(work, step):
        loss = descend(work, step)
        if work._name != GUILTY or step < FROM_STEP:
            return loss
        rng = np.random.default_rng(step)
        work._params += rng.normal(0, 3, work._params.shape).astype(np.float32)
        return loss * 4 + 50

    monkeypatch.setattr(SimulatedWork, "_descend", planted)


def plant_learning_rate(monkeypatch):
    """The guilty learner steps so much too far that it overshoots more and more."""
    descend = SimulatedWork._descend

    def planted(work, step):
        before = work._params.copy()
        loss = descend(work, step)
        if work._name == GUILTY and step >= FROM_STEP:
            work._params = before + np.float32(25 * FAR) * (work._params - before)
        return loss

    monkeypatch.setattr(SimulatedWork, "_descend", planted)


def plant_bit(monkeypatch):
    """One high bit of one contribution of the guilty learner is flipped."""
    encode = SimulatedWork._encode
    turns = []

    def planted(work, request, contents):
        done = encode(work, request, contents)
        if work._name == GUILTY:
            turns.append(1)
        if work._name == GUILTY and len(turns) == 30:
            contents[request.out].array.view(np.uint32)[0] ^= 1 << 29
        return done

    monkeypatch.setattr(SimulatedWork, "_encode", planted)


@pytest.mark.parametrize("learners", [2, 3, 8])
@pytest.mark.parametrize("plant", [plant_garbage, plant_learning_rate])
def test_who_is_at_fault_is_named(learners, plant, simulate, monkeypatch):
    """Among two, three and eight learners: also where two voters could not tell."""
    plant(monkeypatch)
    folder = simulate(
        f"job.learners={learners}",
        "chaos.fault=[]",
        "learner={}",
        "sync.band=0",
        "work.variance=0.1",
    )
    found = analyse_losses(RecordedRun(folder))
    assert found.suspect == GUILTY, found
    assert f"most suspect: {GUILTY}: " in "\n".join(found.lines())
    if plant is plant_garbage:
        assert [each.learner for each in found.breaks if each.first] == [GUILTY]
        assert found.breaks[0].step == FROM_STEP


def test_a_flipped_bit_stands_out_among_the_contributions(simulate, monkeypatch):
    """The loss need not show it; the norm of the contribution does."""
    plant_bit(monkeypatch)
    folder = simulate("job.learners=3", "chaos.fault=[]", "learner={}")
    found = analyse_losses(RecordedRun(folder))
    assert found.outliers[0].learner == GUILTY
    assert found.outliers[0].times > 100


def test_a_sound_run_has_no_break(simulate):
    """No learner is blamed where nothing happened."""
    folder = simulate("job.learners=3", "chaos.fault=[]", "learner={}")
    found = analyse_losses(RecordedRun(folder))
    assert (found.breaks, found.suspect) == ((), "")
