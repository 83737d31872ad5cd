"""Two runs compared: equal ones are equal, and a planted fault is named where it was planted."""

import json

import numpy as np
import pytest

from ddloco.cli.debug import diff
from ddloco.cli.parser import parser
from ddloco.debugger.alignment import AlignedRun, Key
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.run_diff import _kind, compare
from ddloco.replayer.invariants.tape_audit import SAME, Audit
from ddloco.workers.simulated.work import SimulatedWork
from replay import open_tapes
from tests.ddloco.debugger.plants import KINDS, draw

PLANTS = 20
PLANTS_SLOW = 200

SMALL = ("job.steps=96", "job.learners=3", "chaos.fault=[]", "learner={}")


@pytest.fixture(scope="module")
def first(simulate):
    """The execution without a fault."""
    return simulate(*SMALL)


def find(seed, first, simulate, monkeypatch):
    """Plant a fault in a second execution, and check that it is named where it is."""
    plant = draw(seed)
    with monkeypatch.context() as patch:
        plant.hook(patch)
        second = simulate(*SMALL)
    assert plant.where is not None, f"{plant} never had its turn"
    if plant.kind == "effect":
        findings = {each.invariant: each for each in Audit(open_tapes(second)).run()}
        assert findings[SAME].ref == "{}:{}".format(*plant.where)
        return
    found = compare(open_job(first), open_job(second))
    assert not found.same
    if plant.kind == "pace":
        # A slow step near the end may change nothing but how many steps there are.
        assert {each.kind for each in found.first} == ({"timing"} if found.differing else set())
        return
    named = found.first[0]
    key, kind = expected(plant, open_job(second))
    assert (named.what, named.kind) == (str(key), kind)
    assert len(found.first) == 1
    assert named.other == AlignedRun(open_job(second)).items[key].event


def expected(plant, run):
    """The item that a fault must be found at, and the kind of the difference."""
    match plant.kind:
        case "payload":
            learner, digest = plant.where
            items = AlignedRun(run).items.items()
            [key] = [
                key
                for key, item in items
                if key.kind == "contribution" and key.who == learner and item.computed == (digest,)
            ]
            return key, "arithmetic"
        case "weight":
            (t,) = plant.where
            [key] = [key for key in AlignedRun(run).items if key[::2] == ("merge", t)]
            return key, "arithmetic"
        case _:
            return Key("batch", *plant.where), "data"


@pytest.mark.parametrize("seed", range(PLANTS))
def test_a_planted_fault_is_named_at_its_event_with_its_kind(seed, first, simulate, monkeypatch):
    """One fault in the second execution, of any kind, anywhere."""
    find(seed, first, simulate, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(PLANTS, PLANTS + PLANTS_SLOW))
def test_two_hundred_planted_faults_are_named(seed, first, simulate, monkeypatch):
    """The same, two hundred times."""
    find(seed, first, simulate, monkeypatch)


def test_every_kind_is_among_the_plants():
    """No kind of fault is left out of the sample."""
    assert {draw(seed).kind for seed in range(PLANTS)} == set(KINDS)


def test_two_executions_without_a_fault_are_equal(first, simulate):
    """The comparison finds nothing where there is nothing."""
    found = compare(open_job(first), open_job(simulate(*SMALL)))
    assert found.same
    assert found.equal > 300
    assert (found.differing, found.first, found.only) == (0, (), ())


def test_another_setting_is_named_as_what_was_recorded_differently(first, simulate):
    """A difference of arithmetic is put down to the one thing that was recorded differently."""
    found = compare(open_job(first), open_job(simulate(*SMALL, "outer.lr=0.4")))
    assert found.recorded == ("setting: outer.lr = 0.7 and 0.4",)
    assert found.first[0].kind == "configuration"
    assert found.first[0].what.startswith("merge ")
    assert "the result differs, of the same contributions" in found.first[0].detail
    assert found.distances
    assert found.held_out is not None


@pytest.mark.parametrize(("place", "step"), [((0, 0), 1), ((1, 1), 3), ((2, 0), 17)])
def test_the_update_that_differs_is_named_with_its_tensor(
    place, step, first, simulate, monkeypatch
):
    """One element of one tensor after one step, also if no contribution was taken after it."""
    once, plan = SimulatedWork._descend, open_job(first).plan
    at = plan.tensor_offset(*place) // 4 + 3

    def descend(self, number):
        loss = once(self, number)
        if (self._name, number) == ("learner-1.1", step):
            self._params[at] = np.nextafter(self._params[at], np.float32(9.0))
        return loss

    monkeypatch.setattr(SimulatedWork, "_descend", descend)
    [named] = compare(open_job(first), open_job(simulate(*SMALL))).first
    assert (named.what, named.kind) == (
        f"the update of inner step {step} of learner-1.1",
        "arithmetic",
    )
    assert named.detail.startswith(f"differs in {plan.fragments[place[0]][place[1]].name} (")
    assert named.detail.endswith("; its loss, its batch and the parameters before it are equal")


def test_who_comes_back_with_the_state_of_another_differs_because_of_it(simulate, monkeypatch):
    """Without a fault both runs are equal; a donor's update that differs is named, and not what is
    installed by the learner that is given its state."""
    returning = ("learner={}",)
    one, again = simulate(*returning), simulate(*returning)
    run = open_job(one)
    assert compare(run, open_job(again)).same
    installs = [each for key, each in AlignedRun(run).items.items() if key.kind == "install"]
    donors = {
        cause
        for each in installs
        for cause in each.causes
        if cause.kind == "update" and cause.who != each.actor
    }
    assert donors, "the scenario draws another run now"
    donor = min(donors)
    once = SimulatedWork._descend

    def descend(self, number):
        loss = once(self, number)
        if (self._name, number) == (donor.who, donor.number):
            self._params[5] = np.nextafter(self._params[5], np.float32(9.0))
        return loss

    monkeypatch.setattr(SimulatedWork, "_descend", descend)
    [named] = compare(run, open_job(simulate(*returning))).first
    assert named.what == str(donor)


def test_another_seed_of_the_times_is_a_difference_of_timing(first, simulate):
    """Who arrives when decides otherwise; what was computed before is equal."""
    found = compare(open_job(first), open_job(simulate(*SMALL, "scenario.seed=9")))
    assert {each.kind for each in found.first} == {"timing"}
    lines = found.lines()
    assert lines[0].startswith("DIFFERENT TIMING: ")
    assert lines[2].split()[0] in {"took", "trained", "installed"}, lines
    assert "Arrival times or pacing decided otherwise" in " ".join(lines)
    table = lines[: next(n for n, line in enumerate(lines) if line.startswith("cause: "))]
    assert max(map(len, table)) <= 80


def test_a_run_that_ends_early_is_said_to(first, simulate):
    """What only one of the runs has is counted."""
    found = compare(open_job(first), open_job(simulate(*SMALL, "job.steps=48")))
    assert any("merges" in each and str(first) in each for each in found.only)


def test_the_command_says_whether_they_are_equal(first, simulate, capsys):
    """Exit code 0 for equal runs, 1 for others, 2 for what is no run."""
    again, other = simulate(*SMALL), simulate(*SMALL, "outer.lr=0.4")
    assert diff(parser().parse_args(["diff", str(first), str(again)])) == 0
    assert "equal: " in capsys.readouterr().out
    assert diff(parser().parse_args(["diff", str(first), str(other), "--json"])) == 1
    assert json.loads(capsys.readouterr().out)["same"] is False
    assert diff(parser().parse_args(["diff", str(first), str(first.parent)])) == 2
    assert "no tapes here" in capsys.readouterr().err


def test_a_setting_explains_only_what_depends_on_it():
    """Beside other things that were recorded differently, a setting counts where it can matter."""
    merge, step = Key("merge", "fragment 0", 4), Key("step", "a.1", 3)
    recorded = [("configuration", "setting: outer.lr = 1 and 2"), ("code", "code: x and y")]
    assert _kind(merge, recorded) == "configuration"
    assert _kind(step, recorded) == "arithmetic"
    assert _kind(step, recorded[1:]) == "code"
    assert _kind(step, []) == "arithmetic"


def test_runs_whose_steps_were_asked_for_otherwise_are_compared_step_by_step(simulate, opened):
    """Each step is an item, whether it was asked for by itself or with others."""
    kept = ("learner={}", "chaos={}", "job.learners=1", "work.variance=0.0")
    one = simulate(*kept, "sync.quorum=1")
    other = simulate(*kept, "sync.quorum=1", "work.step_s=0.002")
    single, several = AlignedRun(opened(one)), AlignedRun(opened(other))
    batches = [[key for key in run.items if key.kind == "batch"] for run in (single, several)]
    assert [key.number for key in batches[1]] == list(range(1, len(batches[1]) + 1))
    shared = [key for key in batches[0] if key in several.items]
    assert len(shared) > 100
    assert all(single.items[key].content == several.items[key].content for key in shared)
    updates = [key for key in several.items if key.kind == "update"]
    assert 4 * len(updates) < 2 * len(batches[1])
