"""Liars: whatever a peer says, nobody else's contribution, data or life depends on it."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest

from ddloco.job.protocol.messages import Contribution, Progress, RelayReport
from ddloco.job.protocol.work import FragmentMerged
from ddloco.machines.syncer.machine import Syncer
from ddloco.machines.syncer.membership import Membership
from ddloco.machines.syncer.outlier_history import OutlierHistory
from ddloco.machines.syncer.rounds import Rounds
from ddloco.replayer.invariants.base import Violation
from ddloco.stage.actors.effects import Finish, Observe
from tests.lab.hostile_world import draw_lying, happen, run_seed
from tests.lab.lies import RELIED_ON, Liars, OfItselfOnly, lie_in, lies_of

SEEDS = range(7000, 7040)


def test_nobody_else_pays():
    """A few worlds; ``make simulate`` has a thousand."""
    found = {seed: run_seed(seed, lying=True).violation for seed in SEEDS}
    assert {} == {seed: said for seed, said in found.items() if said}


FOUND = [
    (19, "versions that never were outdated the contributions of the others"),
    (64, "one report of too many steps made all later ones too small"),
    (139, "batches that nobody has drawn were left out for good"),
    (767, "a version that it had was sent again, and its steps were too many from then on"),
    (2063, "learners wait for the repetition of a sync, and a later one was chosen"),
    (3284, "a report without any version"),
    (5676, "a version of a global step at which nothing is due"),
]


@pytest.mark.parametrize(("seed", "found"), FOUND)
def test_what_was_found_once_holds(seed, found):
    """Seeds that showed a defect."""
    assert run_seed(seed, lying=True).violation is None, found


def known_versions(monkeypatch):
    """A first syncer believes that learners hold what it never merged."""
    begun = Syncer._rounds_from

    def rounds_from(self, event):
        rounds = begun(self, event)
        rounds.globals.merged_here.clear()
        return rounds

    monkeypatch.setattr(Syncer, "_rounds_from", rounds_from)
    monkeypatch.setattr(Rounds, "beyond", lambda *_: None)


PLANTED = {
    "versions that never were": (known_versions, (19, 147, 213)),
    "batches": (lambda patch: patch.setattr(Membership, "_untrue", lambda *_: None), (65, 115)),
    "tokens": (
        lambda patch: patch.setattr(OutlierHistory, "objections", lambda *_: {}),
        (710, 993),
    ),
}
"""What a syncer might believe, and worlds in which that is seen."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_credulity_is_caught(name, monkeypatch):
    """A syncer that believes one thing more is found out."""
    plant, seeds = PLANTED[name]
    plant(monkeypatch)
    assert any(run_seed(seed, lying=True).violation for seed in (*seeds, *SEEDS))


def test_lies_reach_every_field(monkeypatch):
    """Of what learners say; most of them pass the codec, so that a machine must judge them."""
    all_of_them, begun = [], Liars.__init__

    def init(self, *given):
        begun(self, *given)
        all_of_them.append(self)

    monkeypatch.setattr(Liars, "__init__", init)
    for seed in range(120):
        if draw_lying(seed).lying[0][-1] == 1.0:
            happen(draw_lying(seed))
    told = sum((each.told for each in all_of_them), Counter())
    for kind in (Progress, Contribution):
        lied = {field for what, field in told if what == kind.__name__}
        assert set(kind.__struct_fields__) - set(RELIED_ON.get(kind, ())) == lied
    assert {"clock", "seq", "session"} == {field for what, field in told if what == "header"}
    assert 0 < sum(each.refused for each in all_of_them) < told.total() / 2


def test_a_lie_is_another_value():
    """Of numbers, names, sequences and tables; of a struct, in the one field that is named."""
    rng, said = random.Random(0), RelayReport((4, 2), {"learner-0.1": 3})
    for value in (True, 7, 1.5, "learner-0", b"abc", (1, 2, 3), {"syncer.1": 4}, None):
        assert any(lies_of(value, rng, ["x"]) != value for _ in range(4))
    for _ in range(20):
        field, lied = lie_in(said, rng, ["learner-9.1"])
        others = [each for each in said.__struct_fields__ if each != field]
        assert all(getattr(lied, each) == getattr(said, each) for each in others)


class Named:
    """An actor of a world, by its names."""

    def __init__(self, incarnation):
        self.incarnation, self.actor_name = incarnation, incarnation.partition(".")[0]


def test_of_itself_only_can_fail():
    """Who says the truth is refused, weighs nothing or ends."""
    check, syncer = OfItselfOnly({"learner-0"}), Named("syncer.1")
    reason = "more steps than it has taken: 9 of 3"
    refused = [
        Observe("refused", {"learner": f"learner-{n}.1", "reason": reason}) for n in range(2)
    ]
    check.observed(syncer, refused[0])
    with pytest.raises(Violation, match="which said the truth"):
        check.observed(syncer, refused[1])
    world = SimpleNamespace(job=draw_lying(0).job)
    check.see(world, Named("learner-0.1"), None, [Finish("bad-input", "refused")])
    check.see(world, Named("learner-1.1"), None, [Finish("done", "over")])
    with pytest.raises(Violation, match=r"learner-1\.1 has ended: failed"):
        check.see(world, Named("learner-1.1"), None, [Finish("failed", "this is a bug")])
    accepted = ("learner-0.1", "learner-1.1")
    merged = FragmentMerged(1, accepted, (1.0, 1e-30), (), b"", b"", b"")
    with pytest.raises(Violation, match="weigh"):
        check.see(world, syncer, merged, [])
