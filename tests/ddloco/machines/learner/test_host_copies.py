"""Host copies of fragments: made for the pulls that come next, and for those that wait."""

import pytest
from msgspec import UNSET

from ddloco.job.protocol.messages import Contribution, GlobalFragment, Pull
from ddloco.job.protocol.work import EncodeFragment, FragmentEncoded, RunStep
from ddloco.machines.learner.host_copies import host_copies
from tests.ddloco.machines.learner.test_machine import Harness, P, of, said
from transport import PeerLost

SYNCER = "syncer"
LINKED = {SYNCER: True}


@pytest.fixture
def make_copies(make_job, leaves):
    """Makes the copies of a job with P fragments, one due every ``interval / P`` global steps."""

    def made(interval):
        job = make_job(fragments=P, interval=interval)
        return Planned(job.plan(leaves), job.syncer_of)

    return made


class Planned:
    """Host copies, and the plan that they are given."""

    def __init__(self, plan, syncer_of):
        self.plan, self.machine = plan, host_copies(plan, syncer_of)

    def __getattr__(self, name):
        return getattr(self.machine, name)


def copied(copies, step, linked=LINKED):
    """The fragments that are copied after ``step`` steps."""
    return [each.fragment for each in copies.between_steps(step, linked, copies.plan)]


def test_nothing_is_copied_before_the_first_step(make_copies):
    """There is nothing trained to contribute."""
    assert [] == copied(make_copies(P), 0)


def test_a_fragment_is_copied_shortly_before_it_is_due(make_copies):
    """One of three, due every ten global steps; the pull after step 10 finds its copy."""
    copies = make_copies(10 * P)
    copies.see(SYNCER, 10, 10)
    assert [[]] * 8 == [copied(copies, step) for step in range(11, 19)]
    assert [[2], [2]] == [copied(copies, step) for step in (19, 20)]
    assert "host/20/2" == copies.of(2)
    copies.see(SYNCER, 20, 20)
    assert [] == copied(copies, 21)


def test_a_late_syncer_is_expected_at_the_next_fragment_only(make_copies):
    """While the syncer waits for its quorum, not all fragments are copied again and again."""
    copies = make_copies(10 * P)
    copies.see(SYNCER, 10, 10)
    assert [[2]] * 3 == [copied(copies, step) for step in (20, 40, 400)]


def test_a_slow_learner_copies_all_that_is_pulled_in_one_of_its_steps(make_copies):
    """At twenty global steps a step two of three fragments are due; the pace is soon known."""
    copies = make_copies(10 * P)
    copies.see(SYNCER, 0, 0)
    copies.see(SYNCER, 10, 1)
    copies.see(SYNCER, 20, 1)
    assert {0, 1} <= set(copied(copies, 2))


def test_without_a_link_nothing_is_expected(make_copies):
    """A syncer without a link cannot pull."""
    copies = make_copies(P)
    copies.see(SYNCER, 4, 4)
    assert [] == copied(copies, 5, {SYNCER: False})
    assert copied(copies, 6)


def test_a_fragment_that_was_pulled_is_copied_at_the_next_boundary(make_copies):
    """And the pull is answered once; a newer pull of the same fragment replaces the older."""
    copies = make_copies(10 * P)
    copies.see(SYNCER, 10, 10)
    copies.wait(SYNCER, Pull(10, 1))
    copies.wait(SYNCER, Pull(40, 1))
    assert [] == copies.answerable()
    assert [1] == copied(copies, 11)
    assert [(SYNCER, Pull(40, 1))] == copies.answerable()
    assert [] == copies.answerable()
    assert ["host/11/1"] == copies.release()
    assert "" == copies.of(1)


def test_a_lost_link_ends_its_pulls(make_copies):
    """The syncer has forgotten them, too."""
    copies = make_copies(10 * P)
    copies.wait(SYNCER, Pull(10, 1))
    copies.lost(SYNCER)
    assert [] == copied(copies, 11, {SYNCER: False})


@pytest.fixture
def training(make_job, leaves):
    """A learner in the middle of its third step, whose fragments are due every ten steps."""
    harness = Harness(make_job(fragments=P, interval=10 * P), leaves, copies=True)
    harness.join()
    harness.parameters()
    harness.finish_step()
    harness.finish_step()
    return harness


def test_a_step_copies_what_was_pulled(training):
    """It is copied before the next step overwrites it, and encoded while that step runs."""
    assert [] == training.say(Pull(10, 1, UNSET))
    training.say(GlobalFragment(1, 10))
    effects = training.finish_step()
    (run,) = of(RunStep, effects)
    (encode,) = of(EncodeFragment, effects)
    assert ("", ()) == (run.out, run.makes)
    assert (1, "host/3/1") in [(each.fragment, each.handle) for each in run.copies]
    assert [1] == [each.fragment for each in run.overwrites]
    assert effects.index(run) < effects.index(encode)
    assert "host/3/1" == encode.source

    training.finish_step()
    assert 1 == training.holders["host/3/1"], "the encoding holds it"
    (body,) = said(Contribution, training.tell(FragmentEncoded(encode.work, b"digest")))
    assert (10, 0, 3, 3, 24) == (body.t, body.base, body.step, body.steps, body.tokens)
    assert "host/3/1" not in training.holders


def test_a_pull_with_a_copy_is_answered_at_once(training):
    """Twice in one step, too."""
    for _ in range(6):
        training.finish_step()
    training.say(Pull(10, 1))
    for _ in range(10):
        (run,) = of(RunStep, training.finish_step())
    assert [2] == [each.fragment for each in run.copies]
    for _ in range(2):
        (encode,) = of(EncodeFragment, training.say(Pull(20, 2)))
        assert "host/18/2" == encode.source


def test_a_learner_that_loses_its_syncer_makes_no_copies(training):
    """Arrays are balanced: only the encoding still holds its copy."""
    training.say(Pull(10, 1))
    training.finish_step()
    assert {"host/3/1", "host/3/2"} <= training.holders.keys()
    training.tell(PeerLost(SYNCER, "gone"))
    training.finish_step()
    assert ["host/3/1"] == [each for each in training.holders if each.startswith("host/")]
