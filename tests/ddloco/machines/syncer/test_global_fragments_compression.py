"""Compressed differences in the syncer machine: what it keeps, asks for and sends."""

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from ddloco.job.config import Compress
from ddloco.job.protocol.messages import GlobalFragment, Pull
from ddloco.job.protocol.work import Kept, MergeFragment
from tests.ddloco.machines.syncer.test_machine import (
    A,
    B,
    Contribution,
    Harness,
    P,
    observed,
    of,
    said,
)
from transport import PeerJoined, Send


@pytest.fixture
def open_harness(make_job, leaves):
    """Makes a syncer with two learners that hold everything, with ``[compress]`` settings."""

    def made(kept=(), **settings):
        job = replace(make_job(2, P, P, 60, quorum=2), compress=Compress(**settings))
        harness = Harness(job, leaves)
        harness.open(kept)
        for peer in (A, B):
            harness.tell(PeerJoined(peer, peer))
            harness.report(peer, step=0, versions=(-1,) * P, steps=(0,) * P, step_s=0.0)
        return harness

    return made


def launched(harness, versions=(0,) * P):
    """Both learners report; the pulls of the sync that this launches, by learner."""
    effects = [*harness.report(A, 1.0, versions), *harness.report(B, 0.0, versions)]
    t = min((body.t for _, body in said(Pull, effects)), default=None)
    return {peer: body for peer, body in said(Pull, effects) if body.t == t}


def contribute(harness, peer, pull, base=0, form="int4"):
    """A learner answers a pull."""
    step = harness.steps[peer]
    body = Contribution(pull.t, pull.fragment, base, step, 1, 8, UNSET if form is None else form)
    return harness.say(peer, body)


def merge(harness, base=0, versions=(0,) * P, form="int4"):
    """One whole sync: the work, and what is sent of the result, by learner."""
    pulls = launched(harness, versions)
    for peer, pull in sorted(pulls.items()):
        effects = contribute(harness, peer, pull, base, form)
    (work,) = of(MergeFragment, effects)
    sent = [e for e in of(Send, harness.merged(effects)) if isinstance(e.body, GlobalFragment)]
    return work, {each.peer: each for each in sent}


def test_without_compression_merges_are_as_ever(open_harness):
    """No field says anything, so that old tapes replay."""
    work, sent = merge(open_harness(), form=None)
    assert work.differences is None
    assert {send.body.form for send in sent.values()} == {UNSET}


def test_a_merge_knows_what_its_shares_are_differences_to(open_harness):
    """The parameters of the version that they were trained from."""
    harness = open_harness(up="int4")
    work, sent = merge(harness)
    theta = f"theta/{work.fragment}/0"
    assert work.differences.anchors == {A: theta, B: theta}
    assert (work.differences.held, work.differences.out) == ("", ())
    assert sent[A].payload == f"wire/{work.fragment}/{work.t}"


def test_an_older_version_is_kept_for_those_who_trained_from_it(open_harness):
    """A slow learner's difference is to the version before; the one before that is released."""
    harness = open_harness(up="int4")
    first, _ = merge(harness)
    p, theta = first.fragment, f"theta/{first.fragment}/0"
    assert theta in harness.holders
    assert harness.machine.rounds.globals.anchor(p, 0) == theta
    for _ in range(2 * P):
        versions = harness.machine.rounds.globals.versions
        pulls = launched(harness, versions)
        for peer, pull in sorted(pulls.items()):
            effects = contribute(harness, peer, pull, versions[pull.fragment])
        harness.merged(effects)
    assert theta not in harness.holders
    assert harness.machine.rounds.globals.anchor(p, 0) == ""


def test_who_trained_from_a_version_that_is_not_here_is_asked_for_the_whole(open_harness):
    """After a restart only the newest kept versions are here; a race is refused by name."""
    kept = [Kept(p, p + 4, {}, {}, b"digest") for p in range(2)]
    harness = open_harness(kept, up="int4")
    held = tuple(max(each, 1) for each in harness.machine.rounds.globals.versions)
    pulls = launched(harness, (3, 5, 2))
    assert pulls
    fragment = pulls[A].fragment
    assert held[fragment] >= 1
    assert (3, 5, 2)[fragment] != held[fragment], "the learners hold what this syncer lost"
    assert pulls[A].whole is True
    effects = contribute(harness, A, pulls[A], base=(3, 5, 2)[fragment])
    (refused,) = observed("refused", effects)
    assert "which this syncer does not have" in refused["reason"]


def test_another_format_is_refused_by_name(open_harness):
    """As from a run that continued from a snapshot with other settings."""
    harness = open_harness(up="int4")
    pulls = launched(harness)
    (refused,) = observed("refused", contribute(harness, A, pulls[A], form="int8"))
    assert refused["reason"] == "compressed as int8, this job has int4"


def test_a_version_is_sent_as_a_difference_to_what_learners_hold(open_harness):
    """To a learner that was sent the version before and reports it; to others whole."""
    harness = open_harness(up="int4", down="int8")
    work, sent = merge(harness)
    p, t = work.fragment, work.t
    assert work.differences.held == f"wire/{p}/0"
    assert work.differences.out == (f"held/{p}/{t}", f"difference/{p}/{t}")
    for send in sent.values():
        assert (send.body.form, send.body.base) == ("int8", 0)
        assert send.payload == f"difference/{p}/{t}"
    harness.tell(PeerJoined("learner-2.1", "learner-2.1"))
    report = {"versions": (-1,) * P, "steps": (0,) * P, "step": 0}
    whole = {e.body.fragment: e for e in of(Send, harness.report("learner-2.1", **report))
             if isinstance(e.body, GlobalFragment)}  # fmt: skip
    assert (whole[p].body.form, whole[p].payload) == (UNSET, f"held/{p}/{t}")


def test_a_donors_version_was_not_sent_here(open_harness):
    """A learner that reports the version of its donor has nothing to add a difference to.

    Found by the hostile worlds: it was sent the same useless difference for ever.
    """
    harness = open_harness(up="int4", down="int8")
    member = harness.machine.rounds.membership.members[B]
    member.sent = [-1] * P
    _, sent = merge(harness)
    assert (sent[A].body.form, sent[B].body.form) == ("int8", UNSET)


def test_after_a_restart_the_first_version_is_sent_whole(open_harness):
    """It is unknown what learners made of the differences of the last incarnation."""
    kept = [Kept(p, p + 1, {}, {}, b"digest") for p in range(P - 1)]
    harness = open_harness(kept, up="int4", down="int8")
    versions = harness.machine.rounds.globals.versions
    pulls = launched(harness, versions)
    for peer, pull in sorted(pulls.items()):
        effects = contribute(harness, peer, pull, versions[pull.fragment])
    (work,) = of(MergeFragment, effects)
    sent = [e for e in of(Send, harness.merged(effects)) if isinstance(e.body, GlobalFragment)]
    restored = work.fragment < P - 1
    assert (work.differences.held == "") is restored
    assert {each.body.form for each in sent} == {UNSET if restored else "int8"}
