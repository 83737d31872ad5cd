"""Membership: who takes part, who has lost its place for good, and what must be remembered."""

import pytest

from ddloco.job.protocol.messages import Progress, Roster
from ddloco.machines.syncer.membership import (
    SILENCE_S_MIN,
    SILENCE_S_UNKNOWN,
    SILENCE_STEPS,
    Membership,
)
from transport import CONTROL, Hangup, Retire, Send

A1, A2, A3, B1, C1 = "learner-0.1", "learner-0.2", "learner-0.3", "learner-1.1", "learner-10.1"


@pytest.fixture
def membership():
    """No members yet; two fragments."""
    return Membership(2)


@pytest.fixture
def three(membership):
    """Three learners that have never come back."""
    for n, peer in enumerate([C1, B1, A1]):
        assert [] == join(membership, peer, n / 8)
    return membership


def join(membership, peer, at=0.0):
    """A learner joins; what follows."""
    return membership.join(at, peer, peer)[1]


def report(membership, peer, at=1.0, step=1, step_s=1.0, versions=(0, 0), steps=(1, 1)):
    """A learner's report is taken."""
    tokens = tuple(8 * n for n in steps)
    said = Progress(step, step_s, versions, steps, tokens, batches=step)
    assert membership.report(at, membership.members[peer], said) is None


def of(kind, effects):
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def test_who_joins_is_a_member(membership):
    """By its link, with its name, nothing merged and nothing sent; the epoch is one higher."""
    member, effects = membership.join(3.0, "learner-0", A1)
    assert membership.members == {"learner-0": member}
    assert (A1, "learner-0", 3.0) == (member.incarnation, member.peer, member.heard_at)
    assert ([-1, -1], [-1, -1]) == (membership.merged[A1], member.sent)
    assert ([], 1) == (effects, membership.epoch)


def test_members_are_in_order_of_names_as_bytes(three):
    """Whatever the order in which they came: learner-0, learner-1, learner-10."""
    assert [A1, B1, C1] == list(three.members)


def test_a_newer_incarnation_takes_the_place(three):
    """The older one is refused for good, its tokens are forgotten, and its entries in clocks."""
    three.merged[A1][0] = 5
    _, effects = three.join(9.0, A2, A2)

    (hangup,) = of(Hangup, effects)
    assert (A1, True) == (hangup.peer, hangup.final)
    assert "learner-0.2" in hangup.reason
    assert [Retire({"learner-0": 2})] == of(Retire, effects)
    assert [A2, B1, C1] == list(three.members)
    assert [-1, -1] == three.merged[A2]
    assert A1 not in three.merged
    assert 4 == three.epoch


def test_all_learners_are_told_which_have_gone(three):
    """The roster goes to all members, over the control lane, the newest word in place of older."""
    effects = join(three, A2)
    roster = Roster(4, {"learner-0": 2})
    assert [Send(peer, CONTROL, roster, key="roster") for peer in (A2, B1, C1)] == of(Send, effects)


def test_who_comes_later_is_told_as_well(three):
    """A newcomer hears who has gone before its time; the others have heard it."""
    join(three, A2)
    assert [Send(B1, CONTROL, Roster(5, {"learner-0": 2}), key="roster")] == join(three, B1)


def test_a_learner_first_heard_of_late_retires_its_former_selves(membership):
    """Not heard of here, but perhaps by a syncer before this one, and so by those who tell."""
    join(membership, B1)
    effects = join(membership, A3)
    assert [Retire({"learner-0": 3})] == of(Retire, effects)
    sends = of(Send, effects)
    assert ([A3, B1], 2 * [Roster(2, {"learner-0": 3})]) == (
        [send.peer for send in sends],
        [send.body for send in sends],
    )
    member, _ = membership.join(1.0, A2, A2)
    assert member is None


@pytest.mark.parametrize("linked", [True, False])
def test_an_older_incarnation_is_refused_for_good(three, linked):
    """However late it comes, whether the newer one is there or gone, and however often."""
    join(three, A2)
    if not linked:
        three.lose(A2)
    before = dict(three.members), three.epoch, dict(three.newest)
    for _ in range(2):
        member, (seen, hangup) = three.join(9.0, A1, A1)
        assert ("refused", A1) == (seen.event, seen.fields["learner"])
        assert member is None
        assert (A1, True) == (hangup.peer, hangup.final)
        assert "learner-0.2" in hangup.reason
    assert before == (three.members, three.epoch, three.newest)


def test_incarnations_are_compared_as_numbers(membership):
    """The tenth is newer than the ninth."""
    join(membership, "learner-0.9")
    (hangup,) = of(Hangup, join(membership, "learner-0.10"))
    assert "learner-0.9" == hangup.peer
    assert ["learner-0.10"] == list(membership.members)


def test_the_same_incarnation_may_come_back(three):
    """A new session of a link: what was merged of it is remembered, what was sent is not."""
    three.merged[A1][1] = 7
    three.members[A1].tell(1.0, 1, 7)
    assert three.lose(A1) is not None
    effects = join(three, A1, 5.0)
    assert [] == effects
    assert ([-1, 7], [-1, -1]) == (three.merged[A1], three.members[A1].sent)


def test_a_loss_changes_the_epoch_once(three):
    """A peer that is not a member cannot be lost."""
    assert three.lose(B1).peer == B1
    assert 4 == three.epoch
    assert three.lose(B1) is None
    assert (4, [A1, C1]) == (three.epoch, list(three.members))


def test_what_is_spent_is_said_by_fragment(three):
    """Bases whose tokens are merged, of all learners that have any, linked or not."""
    three.merged[A1][1] = 0
    three.merged[B1][1] = 4
    three.merged[B1][0] = 3
    three.lose(B1)
    assert ({B1: 3}, {A1: 0, B1: 4}) == (three.spent(0), three.spent(1))


def test_what_an_earlier_syncer_merged_stays_spent(membership):
    """It is as if this one had merged it; learners that it knew are known."""
    membership.recover(0, {A1: 3, B1: 1}, {})
    membership.recover(1, {A1: 2}, {})
    assert ({A1: 3, B1: 1}, {A1: 2}) == (membership.spent(0), membership.spent(1))
    _, effects = membership.join(0.0, A1, A1)
    assert ([3, 2], []) == (membership.merged[A1], effects)


def test_who_was_retired_before_is_refused_after(membership):
    """An older incarnation that is kept for one fragment, and its newer one for another."""
    membership.recover(0, {A1: 3}, {})
    membership.recover(1, {A2: 5}, {})
    assert {"learner-0": 2} == membership.newest
    assert membership.join(0.0, A1, A1)[0] is None
    membership.join(0.0, A2, A2)
    assert [-1, 5] == membership.merged[A2]
    membership.recover(0, {A1: 3}, {})
    assert {"learner-0": 2} == membership.newest


def test_what_is_recovered_of_former_selves_is_forgotten(membership):
    """Of each actor the newest incarnation is remembered; the older ones leave the clock here."""
    membership.recover(0, {A1: 3, B1: 1}, {})
    membership.recover(1, {A2: 5}, {})
    assert [Retire({"learner-0": 2})] == membership.recovered()
    assert {A2: [-1, 5], B1: [1, -1]} == membership.merged


def test_nothing_is_retired_where_no_learner_came_back(membership):
    """A first syncer's start, and a later one's over learners that never died."""
    assert [] == membership.recovered()
    membership.recover(0, {A1: 3, B1: 1}, {})
    assert [] == membership.recovered()


def test_who_is_able_is_in_order(three):
    """Fresh members with something new of that fragment, in order of names as bytes."""
    for peer in (C1, A1):
        report(three, peer, versions=(4, 0))
    assert [A1, C1] == [member.peer for member in three.able(0, 4)]
    assert [] == three.able(0, 5)
    three.merged[A1][0] = 4
    three.members[C1].fresh = False
    assert [] == three.able(0, 4)
    assert [A1] == [member.peer for member in three.able(1, 0)]


def test_who_is_missing_is_linked_heard_of_and_not_fresh(three):
    """A learner that has reported, is lost or is silent is not waited for."""
    for peer in (A1, B1):
        report(three, peer, at=1.0)
    assert three.missing(1.0, 9.0), "learner-10 has joined and said nothing yet"
    report(three, C1, at=1.0)
    assert not three.missing(1.0, 9.0)
    three.launched(1)
    for peer in (A1, C1):
        report(three, peer, at=1.0, step=2)
    assert three.missing(1.0, 9.0)
    assert not three.missing(99.0, 99.0), "it has been silent for too long"
    three.lose(B1)
    assert not three.missing(1.0, 9.0)


def test_who_cannot_finish_a_step_in_time_is_not_missing(three):
    """By its own pace its next step ends after the window."""
    for peer in (A1, B1, C1):
        report(three, peer, at=1.0)
    three.launched(1)
    for peer in (A1, C1):
        report(three, peer, at=1.0, step=2)
    due = three.members[B1].due_at
    assert three.missing(1.0, due)
    assert not three.missing(1.0, due - 0.01)


@pytest.mark.parametrize(
    ("step_s", "patience"),
    [(0.0, SILENCE_S_UNKNOWN), (0.1, SILENCE_S_MIN), (60.0, 60.0 * SILENCE_STEPS)],
)
def test_silence_is_measured_in_ones_own_steps(three, step_s, patience):
    """Ten steps, five seconds at least; before a step was timed, as long as one may compile."""
    report(three, A1, at=1.0, step_s=step_s)
    member = three.members[A1]
    assert (False, True) == (
        three.silent(1.0 + patience, member),
        three.silent(1.001 + patience, member),
    )


def test_a_replaced_incarnation_is_known_after_a_restart(three):
    """A fragment that is stored after learner-0.2 joined, and before it contributed, still says
    that learner-0.1 is replaced: it lives, would join again, and its tokens would be merged again,
    because what it contributed to this fragment is forgotten."""
    three.merged[A1] = [4, 4]
    kept_before = three.spent(0)
    join(three, A2)
    kept_after = three.spent(1)
    assert (4, -1) == (kept_before[A1], kept_after[A2])

    again = Membership(2)
    again.recover(0, kept_before, {})
    again.recover(1, kept_after, {})
    again.recovered()
    member, (seen, hangup) = again.join(1.0, A1, A1)
    assert (None, True) == (member, hangup.final)
    assert "newer incarnation" in seen.fields["reason"]
    again.join(2.0, A2, A2)
    assert [-1, -1] == again.merged[A2]


def test_the_counters_of_whoever_has_drawn_most_are_kept(three):
    """They outlive its link; a report without any says nothing."""
    for peer, batches, counters in ((A1, 5, (5,)), (B1, 9, (8,)), (C1, 7, (7,)), (A1, 20, ())):
        said = Progress(batches, 1.0, (0, 0), (1, 1), (8, 8), batches=batches, counters=counters)
        assert three.report(1.0, three.members[peer], said) is None
    three.lose(B1)
    assert three.counters == (9, (8,))
