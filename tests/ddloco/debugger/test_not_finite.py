"""``ddloco why RUN nan``: the first number that is not finite, and nothing where all are."""

import math

import pytest
from msgspec import structs

from ddloco.debugger.detectors import detect
from ddloco.debugger.not_finite import not_finite_in
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.why import why_nan
from ddloco.job.protocol.work import Evaluated
from ddloco.workers.simulated.work import SimulatedWork

GUILTY = "learner-1.1"


@pytest.fixture
def planted(simulate, monkeypatch):
    """Runs in which results are changed: those of the guilty learner's steps, or of evaluations."""

    def run(of_step=None, of_evaluation=None):
        run_step, evaluate = SimulatedWork._run_step, SimulatedWork._evaluate
        if of_step is not None:
            monkeypatch.setattr(
                SimulatedWork,
                "_run_step",
                lambda work, *given: (
                    of_step(run_step(work, *given))
                    if work._name == GUILTY
                    else run_step(work, *given)
                ),
            )
        if of_evaluation is not None:
            monkeypatch.setattr(
                SimulatedWork,
                "_evaluate",
                lambda work, *given: of_evaluation(evaluate(work, *given)),
            )
        return open_job(simulate("job.learners=3", "chaos.fault=[]", "learner={}"))

    return run


def test_the_first_loss_of_whom_it_is(planted):
    """With the loss before, how many there are, and from when on they are finite again."""
    run = planted(lambda d: structs.replace(d, loss=math.nan) if 50 <= d.step < 53 else d)
    found = not_finite_in(run)
    [first] = found.firsts
    assert (first.whose, first.learner, found.later) == (GUILTY, True, ())
    for part in ("is nan at inner step 50", "the first of 3 such", "from step 53 on it was finite"):
        assert part in first.what


def test_a_state_counts_where_no_loss_shows_it(planted):
    """With the tensor, and between which steps it came; the detector says it without a question."""
    run = planted(lambda d: structs.replace(d, nan=("optimizer:/1",)) if d.step == 48 else d)
    [first] = not_finite_in(run).firsts
    said = "optimizer:/1 has a NaN after inner step 48, and had none 16 steps before"
    assert (first.whose, first.what) == (GUILTY, said)
    found, quiet = detect(run)
    assert [each.lines[0].partition(" (")[0] for each in found] == [f"{GUILTY}: {said}"]
    assert "losses" in quiet


def test_an_evaluation_counts_too(planted):
    """It comes after what it is of."""
    found = not_finite_in(planted(None, lambda done: Evaluated(done.work, math.inf)))
    assert ["the held-out loss is inf"] == [each.what for each in found.firsts]


def test_nothing_is_said_of_a_sound_run(run):
    """But what was looked at."""
    [line] = why_nan(run)[0]
    assert line.startswith("every number on the tapes is finite: ")


def test_a_refused_contribution_names_its_tensor(simulate, monkeypatch):
    """The merge names it, and the learner's steps do not show it."""
    descend = SimulatedWork._descend

    def planted(work, step):
        loss = descend(work, step)
        if work._name == GUILTY and step == 80:
            work._params[3] = math.nan
        return loss if math.isfinite(loss) else 1.0

    monkeypatch.setattr(SimulatedWork, "_descend", planted)
    run = open_job(simulate("job.learners=3", "chaos.fault=[]", "learner={}"))
    names = [leaf.name for fragment in run.plan.fragments for leaf in fragment]
    [first, *_] = not_finite_in(run).firsts
    assert first.whose == GUILTY
    assert any(f"tensor {name}: NaN or Inf" in first.what for name in names), first
