"""Simulated work: what handles point to, what is kept, and that what is wrong is noticed."""

import numpy as np
import pytest

from ddloco.job.config import job_from
from ddloco.job.protocol.work import (
    EncodeFragment,
    Evaluate,
    MakeParameters,
    MergeFragment,
    Overwrite,
    Recover,
    RunStep,
    SaveModel,
    Share,
)
from ddloco.workers.simulated.work import (
    ELEMENTS,
    TOKENS,
    Content,
    FragmentMemory,
    SimulatedWork,
    leaves_of,
)

P = 3
A, B = "learner-0.1", "learner-1.1"


class Shop:
    """An actor's simulated work, and the contents it works on."""

    def __init__(self, name, fragment_memory=None, arithmetic=True, seed=1):
        table = {"fragments": P, "interval": P, "fragmentation": "tensor"}
        job = {"task": "none:none", "steps": 9, "learners": 2, "seed": seed}
        self.job = job_from({"job": job, "sync": table}, "test")
        plan = self.job.plan(leaves_of(2 * P))
        self.fragment_memory = FragmentMemory() if fragment_memory is None else fragment_memory
        self.simulated_work = SimulatedWork(
            self.job, name, plan, self.fragment_memory, arithmetic=arithmetic
        )
        self.contents = {}

    def do(self, work):
        """One piece of work, and its result is told."""
        result = self.simulated_work.do(work, self.contents)
        self.simulated_work.settle(result)
        return result

    def begin(self, source):
        """The first step, over a syncer's parameters."""
        for p in range(P):
            self.contents[f"in/{p}"] = source.contents[f"wire/{p}/0"]
        overwrites = tuple(Overwrite(p, 0, f"in/{p}") for p in range(P))
        return self.do(RunStep(1, 1, overwrites, "host/1"))

    def encode(self, fragment, step, out):
        """A fragment of the copy of a step."""
        self.do(EncodeFragment(9, fragment, f"host/{step}", out))
        return self.contents[out]


@pytest.fixture(params=[True, False])
def shops(request):
    """A syncer with parameters, two learners after their first step; with and without numbers."""
    syncer = Shop("syncer.1", arithmetic=request.param)
    syncer.do(MakeParameters(1, tuple(range(P))))
    learners = [Shop(name, arithmetic=request.param) for name in (A, B)]
    for each in learners:
        each.begin(syncer)
    return syncer, *learners


def merge(syncer, learners, t=4, fragment=1, spent=None, theta="theta/1/0", state=""):
    """The learners' parts are merged."""
    shares = []
    for index, each in enumerate(learners):
        syncer.contents[f"in/{t}/{index}"] = each.encode(fragment, 1, f"out/{t}")
        shares.append(Share((A, B)[index], f"in/{t}/{index}", 8.0, 0))
    out = tuple(f"{kind}/{fragment}/{t}" for kind in ("theta", "outer", "wire"))
    return syncer.do(
        MergeFragment(5, t, fragment, theta, state, tuple(shares), spent or {}, {}, out)
    )


def test_a_step_counts_for_every_fragment(shops):
    """Its copy says of each fragment the version and the steps since; tokens are a batch's."""
    _, learner, _ = shops
    done = learner.do(RunStep(2, 2, (), "host/2"))
    assert ((0, 2),) * P + (2,) == learner.contents["host/2"].what
    assert (2, 2, TOKENS) == (done.work, done.step, done.tokens)
    assert [0] * P == learner.simulated_work.versions


def test_an_overwrite_restarts_its_fragment(shops):
    """The others continue; with arithmetic, the fragment's numbers follow from the new ones."""
    _, learner, _ = shops
    array = None
    if learner.contents["host/1"].array is not None:
        array = np.full_like(learner.encode(1, 1, "out").array, 100.0)
    learner.contents["in/9"] = Content((1, 7, 0, 0), array)
    learner.do(RunStep(2, 2, (Overwrite(1, 7, "in/9"),), "host/2"))
    assert ((0, 2), (7, 1), (0, 2), 2) == learner.contents["host/2"].what
    if array is not None:
        near = [learner.encode(p, 2, "out").array.min() > 50 for p in range(P)]
        assert [False, True, False] == near


@pytest.mark.parametrize("wrong", [(0, 7, 0, 0), (1, 6, 0, 0), (1, 7, 1, 3)])
def test_another_array_than_was_meant_is_noticed(shops, wrong):
    """Another fragment, another version, or something trained is no global fragment."""
    _, learner, _ = shops
    learner.contents["in/9"] = Content(wrong)
    with pytest.raises(AssertionError, match="another array"):
        learner.do(RunStep(2, 2, (Overwrite(1, 7, "in/9"),), "host/2"))


def test_what_was_freed_is_not_there(shops):
    """Work on a handle without content is an error, not a zero."""
    _, learner, _ = shops
    del learner.contents["host/1"]
    with pytest.raises(KeyError):
        learner.do(EncodeFragment(3, 0, "host/1", "out"))


def test_an_encoded_fragment_is_a_copy(shops):
    """It says fragment, version, steps and step, and does not change with later steps."""
    _, learner, _ = shops
    made = learner.encode(2, 1, "out")
    assert (2, 0, 1, 1) == made.what
    before = made.digest
    learner.do(RunStep(2, 2, (), "host/2"))
    assert before == learner.contents["out"].digest
    assert before != learner.encode(2, 2, "out").digest


def test_parameters_are_made_for_what_is_asked(shops):
    """The same for every incarnation of a job's syncer, others for another seed."""
    syncer, *_ = shops
    numbers = syncer.contents["theta/0/0"].array is not None
    some = Shop("syncer.2", arithmetic=numbers)
    some.do(MakeParameters(1, (0, 2)))
    assert {"theta/0/0", "wire/0/0", "theta/2/0", "wire/2/0"} == set(some.contents)
    for handle, content in some.contents.items():
        assert syncer.contents[handle].digest == content.digest
    if numbers:
        other = Shop("syncer.1", seed=2)
        other.do(MakeParameters(1, (0,)))
        assert other.contents["theta/0/0"].digest != some.contents["theta/0/0"].digest


def test_the_same_work_makes_the_same(shops):
    """Two learners of one name make the same bytes; of another name, others."""
    syncer, learner, other = shops
    again = Shop(A, arithmetic=learner.contents["host/1"].array is not None)
    again.begin(syncer)
    assert learner.encode(0, 1, "out").digest == again.encode(0, 1, "out").digest
    if learner.contents["host/1"].array is not None:
        assert learner.encode(0, 1, "out").digest != other.encode(0, 1, "out").digest


def test_a_merge_is_kept_with_what_it_has_spent(shops):
    """What earlier merges had used up, and its own shares' bases, for the next incarnation."""
    syncer, *learners = shops
    done = merge(syncer, learners, spent={"learner-2.1": 3, A: -5})
    assert ((A, B), (0.5, 0.5), ()) == (done.accepted, done.weights, done.refused)
    assert {(1, 4, 0, 0)} == {syncer.contents[f"{k}/1/4"].what for k in ("theta", "outer", "wire")}

    second = Shop(
        "syncer.2", syncer.fragment_memory, syncer.contents["theta/0/0"].array is not None
    )
    (kept,) = second.do(Recover(1)).kept
    assert (1, 4, {"learner-2.1": 3, A: 0, B: 0}) == (kept.fragment, kept.version, kept.spent)
    for handle in ("theta/1/4", "outer/1/4", "wire/1/4"):
        assert syncer.contents[handle].digest == second.contents[handle].digest


def test_a_merge_that_was_never_told_is_not_kept(shops, monkeypatch):
    """A syncer that dies before its merge is done has not merged."""
    syncer, *learners = shops
    monkeypatch.setattr(syncer.simulated_work, "settle", lambda result: None)
    merge(syncer, learners)
    assert {} == syncer.fragment_memory.kept


def test_only_the_newest_merge_of_a_fragment_is_kept(shops):
    """In order of fragments, whatever the order of merges."""
    syncer, *learners = shops
    merge(syncer, learners, t=6, fragment=0, theta="theta/0/0")
    merge(syncer, learners, t=5, fragment=2, theta="theta/2/0")
    merge(syncer, learners, t=8, fragment=2, theta="theta/2/5", state="outer/2/5")
    kept = Shop("syncer.2", syncer.fragment_memory, syncer.contents["theta/0/0"].array is not None)
    found = kept.do(Recover(1)).kept
    assert [(0, 6), (2, 8)] == [(each.fragment, each.version) for each in found]


def test_at_first_nothing_is_kept():
    """A syncer that merged nothing leaves nothing."""
    assert () == Shop("syncer.1").do(Recover(1)).kept


def test_an_outer_state_of_another_version_is_noticed(shops):
    """Parameters and outer state belong together."""
    syncer, *learners = shops
    merge(syncer, learners, t=5, fragment=2, theta="theta/2/0")
    with pytest.raises(AssertionError, match="another version"):
        merge(syncer, learners, t=8, fragment=2, theta="theta/2/0", state="outer/2/5")


def test_what_is_poisoned_is_refused_and_not_kept():
    """A chip that computes NaN spoils its learner's part and no other."""
    syncer = Shop("syncer.1")
    syncer.do(MakeParameters(1, tuple(range(P))))
    learners = [Shop(name) for name in (A, B)]
    learners[0].simulated_work.poisoned = True
    for each in learners:
        each.begin(syncer)
    done = merge(syncer, learners, fragment=0, theta="theta/0/0")
    assert ((B,), A) == (done.accepted, done.refused[0][0])
    assert {B: 0} == syncer.fragment_memory.kept[0][0].spent
    assert np.isfinite(syncer.contents["theta/0/4"].array).all()
    alone = merge(syncer, learners[:1], t=7, fragment=0, theta="theta/0/4", state="outer/0/4")
    assert () == alone.accepted
    assert 4 == syncer.fragment_memory.kept[0][0].version


def test_steps_lead_towards_the_learners_target():
    """The loss falls with every step, though the target stays far away."""
    syncer = Shop("syncer.1")
    syncer.do(MakeParameters(1, tuple(range(P))))
    learner = Shop(A)
    losses = [learner.begin(syncer).loss]
    losses += [learner.do(RunStep(n, n, (), f"host/{n}")).loss for n in range(2, 30)]
    assert losses == sorted(losses, reverse=True)
    assert 0.9 * losses[0] < losses[-1] < losses[0]


def test_the_model_is_scored_and_saved(shops):
    """The loss is a number where there are numbers; the digest is that of what was saved."""
    syncer, *learners = shops
    thetas = tuple(f"theta/{p}/0" for p in range(P))
    loss = syncer.do(Evaluate(1, thetas)).loss
    assert (loss is None) == (syncer.contents["theta/0/0"].array is None)
    saved = syncer.do(SaveModel(2, thetas, done=True)).digest
    assert saved == syncer.do(SaveModel(3, thetas, done=True)).digest
    merge(syncer, learners)
    assert (
        saved != syncer.do(SaveModel(4, ("theta/0/0", "theta/1/4", "theta/2/0"), done=True)).digest
    )


def test_tensors_are_named_and_of_one_size():
    """The first is an embedding, which is averaged plainly; names are unique."""
    leaves = leaves_of(5)
    assert [(ELEMENTS,)] * 5 == [leaf.shape for leaf in leaves]
    assert [True, False, False, False, False] == ["embed" in leaf.name for leaf in leaves]
    assert 5 == len({leaf.name for leaf in leaves})
