"""``why loss`` against planted faults: the learner at fault is named, and where it began."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec import structs

from ddloco.debugger import loss_analysis
from ddloco.debugger.loss_analysis import (
    BEYOND_DOUBT,
    Break,
    LossStep,
    Outlier,
    analyse_losses,
    find_leap,
)
from ddloco.debugger.recorded_job import open_job
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
    """One bit in the exponent of one contribution of the guilty learner is flipped."""
    encode = SimulatedWork._encode
    turns = []

    def planted(work, request, contents):
        done = encode(work, request, contents)
        if work._name == GUILTY:
            turns.append(1)
        if work._name == GUILTY and len(turns) == 12:
            made = contents[request.out].array
            made[np.argmax(np.abs(made))] *= np.float32(2.0**64)
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
    found = analyse_losses(open_job(folder))
    assert found.suspect == GUILTY, found
    assert f"most suspect: {GUILTY}: " in "\n".join(found.lines())
    if plant is plant_garbage:
        assert [each.learner for each in found.breaks if each.first] == [GUILTY]
        assert found.breaks[0].step == FROM_STEP


def test_a_flipped_bit_stands_out_among_the_contributions(simulate, monkeypatch):
    """The loss need not show it; the norm of the contribution does."""
    plant_bit(monkeypatch)
    folder = simulate("job.learners=3", "chaos.fault=[]", "learner={}")
    found = analyse_losses(open_job(folder))
    assert found.outliers[0].learner == GUILTY
    assert found.outliers[0].times > 100


def test_what_did_no_harm_to_others_is_no_cause(simulate, monkeypatch):
    """A long contribution is merged before one learner's loss breaks, and all others go on."""
    plant_garbage(monkeypatch)
    encode = SimulatedWork._encode

    def longer(work, request, contents):
        done = encode(work, request, contents)
        made, (_, base) = contents[request.out], work._bases[request.fragment]
        if work._name == "learner-0.1" and FROM_STEP - 12 <= made.what[-1] < FROM_STEP:
            made.array[:] = base + 8 * (made.array - base)
        return done

    monkeypatch.setattr(SimulatedWork, "_encode", longer)
    settings = "job.learners=3", "chaos.fault=[]", "learner={}", "sync.band=1000"
    found = analyse_losses(open_job(simulate(*settings)))
    assert "learner-0.1" in dict(found.doubted)
    assert found.suspect == GUILTY, found


def losses_of(*values):
    return [LossStep(i + 1, i + 1, value) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([2.0] * 6 + [0.1] * 30 + [30.0, 0.1], 37),
        ([2.0] * 6 + [0.1] * 30 + [15.0, 0.1], None),
        ([2.0] * 6 + [1.0] * 30 + [30.0, 1.0], None),
        ([2.0] * 5 + [300.0] + [0.1] * 9, None),
        ([0.0] * 6 + [0.1] * 30 + [30.0], None),
        ([2.0] * 6 + [0.1] * 30 + [float("nan"), 0.1], None),
        ([], None),
    ],
)
def test_one_loss_beyond_all_beginnings_is_a_leap(losses, step):
    """One step is enough; beside what was usual, and a first loss that is none at all."""
    found = find_leap(losses_of(*losses))
    assert (found[0].step if found else None) == step


@pytest.mark.parametrize(
    ("usual", "after", "began", "large"),
    [
        (0.0235, 0.04, 0.52, False),
        (0.0235, 0.06, 0.52, True),
        (0.004, 0.018, 0.8, False),
        (0.0004, 0.009, 0.8, True),
        (2.0, 2.1, 11.0, False),
        (2.0, 2.8, 11.0, True),
        (2.0, float("nan"), 11.0, True),
        (2.0, float("inf"), 11.0, True),
    ],
)
def test_a_loss_that_rises_by_little_makes_nobody_suspect(usual, after, began, large):
    """Beside what it began with; losses of one learner drift by themselves."""
    found = Break("learner-0.1", "learner-0.1:9", 9, after, usual, after=after, began=began)
    assert found.is_large == large


def plant_larger_steps(monkeypatch):
    """The guilty learner's contributions are six times as long from some merge on."""
    encode = SimulatedWork._encode

    def longer(work, request, contents):
        done = encode(work, request, contents)
        made, (_, base) = contents[request.out], work._bases[request.fragment]
        if work._name == GUILTY and made.what[-1] >= FROM_STEP:
            made.array[:] = base + 12 * (made.array - base)
        return done

    monkeypatch.setattr(SimulatedWork, "_encode", longer)


def test_who_stands_out_merge_after_merge_is_suspect(simulate, monkeypatch):
    """Though no contribution is beyond doubt, and no loss broke."""
    plant_larger_steps(monkeypatch)
    settings = "job.learners=3", "chaos.fault=[]", "learner={}", "sync.band=1000", "outer.lr=0.05"
    found = analyse_losses(open_job(simulate(*settings)))
    assert not any(each.times >= BEYOND_DOUBT for each in found.outliers)
    assert found.suspect == GUILTY, found.lines()


def test_a_sound_run_has_no_break(simulate):
    """No learner is blamed where nothing happened."""
    folder = simulate("job.learners=3", "chaos.fault=[]", "learner={}")
    found = analyse_losses(open_job(folder))
    assert (found.breaks, found.suspect) == ((), "")


def plant_tokens(monkeypatch):
    """The guilty learner counts ten times the tokens of its batches."""
    run_step = SimulatedWork._run_step

    def planted(work, request, contents):
        done = run_step(work, request, contents)
        return structs.replace(done, tokens=done.tokens * 10) if work._name == GUILTY else done

    monkeypatch.setattr(SimulatedWork, "_run_step", planted)


PLANTS = {
    "garbage": plant_garbage,
    "rate": plant_learning_rate,
    "bit": plant_bit,
    "tokens": plant_tokens,
}
SEEDS, SEEDS_SLOW = 8, 42


@pytest.mark.parametrize("own", [set(), {"learner-1"}])
def test_batches_that_the_job_file_gives_make_nobody_suspect(own, simulate, monkeypatch):
    """Ten times the tokens are a mistake, unless somebody asked for them."""
    run = open_job(simulate("job.learners=3", "job.steps=60", "chaos.fault=[]", "learner={}"))
    for who in run.learners:
        times = 10 if who == "learner-1.1" else 1
        for n, (record, step, each) in enumerate(run.steps_of(who)):
            run.steps_of(who)[n] = record, step, structs.replace(each, tokens=times * each.tokens)
    monkeypatch.setattr(loss_analysis, "own_batches", lambda _: own)
    assert analyse_losses(run).suspect == ("" if own else "learner-1.1")


def test_a_contribution_of_many_steps_does_not_stand_out_for_them(simulate):
    """One learner is four times slower, so the others' contributions are of more steps."""
    slow = ("sync.quorum=1", "sync.grace=0.0", "learner={'learner-0' = {factor = 4.0}}")
    run = open_job(simulate("job.learners=3", "chaos.fault=[]", "work.variance=0.1", *slow))
    steps = [[each.steps for each in merge.contributions] for merge in run.merges()]
    assert any(max(each) >= 3 * min(each) for each in steps if each)
    assert analyse_losses(run).outliers == ()


def drawn(seed, *, least=2):
    """Settings of a job, drawn at random: who is how slow, who crashes, how they meet."""
    rng = random.Random(f"loss {seed}")
    learners = rng.randint(least, 6)
    fragments = rng.choice((2, 3, 6))
    slow = rng.randrange(learners) if rng.random() < 0.6 else -1
    settings = [
        f"scenario.seed={seed}",
        f"job.learners={learners}",
        "job.steps=180",
        f"sync.fragments={fragments}",
        f"sync.interval={fragments * rng.choice((2, 4))}",
        f"sync.quorum={rng.randint(1, learners)}",
        f"sync.grace={rng.choice((0.0, 0.5))}",
        f"sync.band={rng.choice((0, 32))}",
        f"outer.momentum={rng.choice((0.0, 0.6))}",
        f"work.variance={rng.choice((0.0, 0.1, 0.5))}",
        "learner={}" if slow < 0 else f"learner={{'learner-{slow}' = {{factor = 4.0}}}}",
    ]
    return [*settings, *(["chaos.fault=[]"] if rng.random() < 0.5 else [])]


def check_clean(seed, simulate):
    """Nobody is named, and no contribution stands out."""
    found = analyse_losses(open_job(simulate(*drawn(seed))))
    assert (found.suspect, found.outliers) == ("", ()), (drawn(seed), found.lines())


def check_planted(seed, simulate, monkeypatch):
    """Who is at fault is named, or nobody if the evidence does not suffice: never another."""
    plant = list(PLANTS)[seed % len(PLANTS)]
    PLANTS[plant](monkeypatch)
    settings = [*drawn(seed, least=3), "chaos.fault=[]", "learner={}"]
    # Without a band nothing measures norms.
    settings += ["sync.band=32"] if plant == "bit" else []
    found = analyse_losses(open_job(simulate(*settings)))
    assert found.suspect == GUILTY, (plant, settings, found.lines())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_in_a_sound_job_nobody_is_suspected(seed, simulate):
    """Whoever is slow, crashes, or contributes many steps at once."""
    check_clean(seed, simulate)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SEEDS_SLOW))
def test_in_many_sound_jobs_nobody_is_suspected(seed, simulate):
    """The same, with more."""
    check_clean(seed, simulate)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_planted_fault_is_put_down_to_its_learner(seed, simulate, monkeypatch):
    """Garbage, a learning rate, a flipped bit, and tokens that are counted wrongly."""
    check_planted(seed, simulate, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SEEDS_SLOW))
def test_many_planted_faults_are_put_down_to_their_learners(seed, simulate, monkeypatch):
    """The same, with more."""
    check_planted(seed, simulate, monkeypatch)


def standing_out(learner, t, times):
    """A contribution that stands out."""
    return Outlier(learner, t, 0, f"syncer.1:{t}", 1.0, times, None, True)


def test_the_first_contribution_beyond_doubt_is_the_cause():
    """Those of others that follow may be far larger: they were trained from what it did."""
    found = [standing_out("learner-2.1", 42, 9e4), standing_out("learner-3.1", 6, 1600.0)]
    who, said = loss_analysis._suspect(None, (), found, {}, ())
    assert who == "learner-3.1"
    assert said == "its contribution to merge 6 has 1.6e+03 times the usual norm"


@pytest.mark.parametrize("twins", [[], [("learner-0.1", "learner-2.1", 9, 9)]])
def test_beside_twins_whoever_has_other_data_is_not_suspect(twins, monkeypatch):
    """Two with the same data weigh twice, so the third is far from the mean in every merge."""
    told = "learner-1.1", "10 of its 19 contributions"
    monkeypatch.setattr(loss_analysis, "_stands_out_for_long", lambda *_: told)
    monkeypatch.setattr(loss_analysis, "twins_of", lambda _: iter(twins))
    run = SimpleNamespace(is_simulated=False)
    assert loss_analysis._suspect(run, (), [], {}, ()) == (("", "") if twins else told)
