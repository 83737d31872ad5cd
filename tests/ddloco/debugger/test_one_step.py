"""``ddloco why RUN step``: what tapes say of an inner step, and no more than is so."""

import json

import pytest
from msgspec import structs

from ddloco.cli.debug import why
from ddloco.cli.parser import parser
from ddloco.debugger.loss_analysis import BEFORE_STEPS
from ddloco.debugger.one_step import step_of
from ddloco.debugger.recorded_job import open_job
from ddloco.job.protocol.work import RunStep
from ddloco.workers.simulated.work import SimulatedWork


def test_each_step_is_told_as_it_was(run):
    """Its loss and event, the losses before, what was installed, and merges that have it."""
    merges = {each.t: each for each in run.merges()}
    for learner in run.learners:
        steps = list(run.steps_of(learner))
        for place in range(0, len(steps), 23):
            record, step, each = steps[place]
            found = step_of(run, learner, step)
            assert (found.event, found.loss, found.tokens) == (
                f"{learner}:{record.n}", each.loss, each.tokens,
            )  # fmt: skip
            assert len(found.before) == min(place, BEFORE_STEPS)
            for t, at, weight in found.merges:
                [own] = [c for c in merges[t].contributions if c.learner == learner]
                assert (own.step, own.weight) == (at, weight)
                assert own.step - own.steps < step <= own.step
            assert found.time.took_s > 0
            assert max(map(len, found.lines())) < 120


def test_what_was_installed_before_it(run):
    """Is what its request said."""
    learner, installed = "learner-0.1", {}
    for step in run.stepper(learner).steps():
        for effect in step.effects:
            if isinstance(effect, RunStep) and effect.overwrites:
                told = [(each.fragment, each.version) for each in effect.overwrites]
                installed[effect.step] = told
    assert len(installed) > 9
    for step, versions in installed.items():
        found = step_of(run, learner, step)
        assert [*found.installed] == versions
        newest = max(version for _, version in versions)
        assert f"{newest} of " in found.lines()[4]


def test_tensors_that_an_update_leaves_are_named(simulate, monkeypatch):
    """Those of a step that moves nothing."""
    descend = SimulatedWork._descend

    def planted(work, step):
        before, loss = work._params.copy(), descend(work, step)
        if work._name == "learner-1.1" and step >= 60:
            work._params = before
        return loss

    monkeypatch.setattr(SimulatedWork, "_descend", planted)
    run = open_job(simulate("job.learners=3", "chaos.fault=[]", "learner={}"))
    names = {leaf.name for fragment in run.plan.fragments for leaf in fragment}
    found = [step_of(run, "learner-1.1", step) for step in (40, 61, 62, 63, 64)]
    assert all({*each.moved, *each.still} == names for each in found)
    assert not found[0].still
    still = [each for each in found[1:] if not each.installed]
    assert still
    assert all(not each.moved and "; it left " in each.lines()[5] for each in still)


def test_a_step_that_was_asked_for_before_the_tape_begins(run):
    """Neither how long it took is said, nor what was installed."""
    found = step_of(run, "learner-0.1", 20)
    before = structs.replace(found, time=structs.replace(found.time, took_s=None), installed=())
    said = "\n".join(before.lines())
    assert "it was asked for before the tape begins" in said
    assert "took" not in said
    assert "installed" not in said


def test_steps_that_were_asked_for_together(run):
    """Their time is of all of them, and only the first one installs."""
    found = step_of(run, "learner-0.1", 20)
    together = structs.replace(
        found, first=18, time=structs.replace(found.time, count=4, usual_s=None)
    )
    assert together.lines()[3].startswith("  4 steps from 18 on took ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("step bob 4", "no tape of bob; there are learner-0.1, "),
        ("step learner-1 99999", "step:learner-1:99999: no such step; it has 1 to "),
        ("step learner-1 0", "step:learner-1:0: no such step; it has 1 to "),
    ],
)
def test_what_is_not_there_is_said_in_one_line(folder, capsys, line, said):
    """With what there is."""
    assert why(parser().parse_args(["why", str(folder), *line.split()])) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_as_data(folder, capsys):
    """The same, for programs."""
    assert why(parser().parse_args(["why", str(folder), "step", "learner-0", "7", "--json"])) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["learner"], told["step"]) == ("learner-0.1", 7)
