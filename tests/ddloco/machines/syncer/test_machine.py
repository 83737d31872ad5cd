"""The syncer machine alone: fed events, judged by its effects."""

import pytest
from msgspec.structs import replace

from clocks import actor_of
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import (
    Contribution,
    GlobalFragment,
    Progress,
    Pull,
    Roster,
    ShardReport,
    Stop,
)
from ddloco.job.protocol.timers import LaunchDue, PullDeadline, ShardsDeadline, ShutdownDeadline
from ddloco.job.protocol.work import (
    Evaluate,
    Evaluated,
    FragmentMerged,
    Kept,
    MakeParameters,
    MergeFragment,
    MergeTokens,
    ModelSaved,
    ParametersMade,
    Recover,
    Recovered,
    SaveModel,
)
from ddloco.machines.syncer.machine import Syncer
from ddloco.machines.syncer.members import RESEND_S_MIN
from ddloco.machines.syncer.rounds import ALL_REFUSED
from ddloco.machines.syncer.shutdown import LATE_S
from ddloco.stage.actors.effects import Finish, Observe
from ddloco.stage.actors.events import (
    DismissRequested,
    LeaveRequested,
    Restored,
    StopRequested,
    WorkFailed,
)
from transport import (
    BULK,
    CONTROL,
    Drop,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Retire,
    Send,
    SetTimer,
    TimerFired,
)

P = 3
A, B, C = "learner-0.1", "learner-1.1", "learner-10.1"
A2 = "learner-0.2"


class Harness:
    """A syncer, and the events that can be put before it."""

    def __init__(self, job, leaves, incarnation="syncer.1"):
        self.machine = Syncer(job)
        self.at = 0.0
        self.number = 0
        self.steps = {}
        self.holders = {}
        self.begun = self.tell(Started(incarnation, leaves))

    def open(self, kept=(), **more):
        """What was kept is found, the rest is made; the effects of both."""
        (recover,) = of(Recover, self.begun)
        found = self.tell(Recovered(recover.work, tuple(kept), **more))
        (make,) = of(MakeParameters, found)
        return found, self.tell(ParametersMade(make.work, b"digest"))

    def tell(self, event, after_s=0.0):
        """An event happens; holders of arrays are counted as the actor would."""
        self.at += after_s
        effects = self.machine.handle(self.at, event)
        for effect in effects:
            if isinstance(effect, Keep | Drop):
                step = 1 if isinstance(effect, Keep) else -1
                self.holders[effect.handle] = self.holders.get(effect.handle, 0) + step
                assert self.holders[effect.handle] >= 0, "dropped more than kept"
        self.holders = {handle: n for handle, n in self.holders.items() if n}
        return effects

    def say(self, peer, body, after_s=0.0, handle=None):
        """A learner says something."""
        self.number += 1
        bulk = isinstance(body, Contribution)
        handle = (f"in/{self.number}" if bulk else "") if handle is None else handle
        lane = BULK if bulk else CONTROL
        return self.tell(
            MessageArrived(peer, lane, peer, 1, self.number, {}, body, handle=handle), after_s
        )

    def report(
        self,
        peer,
        after_s=0.0,
        versions=(0,) * P,
        steps=(1,) * P,
        step_s=1.0,
        step=None,
        batches=None,
        **more,
    ):
        """A learner has finished one more step."""
        self.steps[peer] = self.steps.get(peer, 0) + 1 if step is None else step
        tokens = tuple(8 * n for n in steps)
        done = self.steps[peer]
        batches = done if batches is None else batches
        said = Progress(done, step_s, versions, steps, tokens, batches=batches, **more)
        return self.say(peer, said, after_s)

    def contribute(self, peer, t, fragment, base=0, step=None, steps=1, **more):
        """A learner answers a pull."""
        step = max(self.steps.get(peer, 1), steps) if step is None else step
        body = Contribution(t, fragment, base, step, steps, 8 * steps)
        return self.say(peer, body, **more)

    def saved(self, effects):
        """The model is saved, as was asked for; all effects."""
        (saving,) = of(SaveModel, effects)
        return [*effects, *self.tell(ModelSaved(saving.work, b"digest"))]

    def scored(self, effects, loss=1.0):
        """The model is saved and evaluated; the effects of this."""
        (evaluating,) = of(Evaluate, self.saved(effects))
        return self.tell(Evaluated(evaluating.work, loss))

    def merged(self, effects, refused=(), after_s=0.05):
        """The merge that was asked for is done."""
        (merge,) = of(MergeFragment, effects)
        names = [share.name for share in merge.shares]
        accepted = tuple(name for name in names if name not in dict(refused))
        weights = tuple(1 / len(accepted) for _ in accepted)
        done = FragmentMerged(merge.work, accepted, weights, tuple(refused), b"t", b"m", b"w")
        return self.tell(done, after_s)


def of(kind, effects):
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def said(kind, effects):
    """To whom a body of a kind is sent, and the body."""
    return [(e.peer, e.body) for e in of(Send, effects) if isinstance(e.body, kind)]


def pulls(effects):
    """(peer, t, fragment) of the pulls."""
    return [(peer, body.t, body.fragment) for peer, body in said(Pull, effects)]


def observed(event, effects):
    """The fields of the observations of a kind."""
    return [each.fields for each in of(Observe, effects) if each.event == event]


@pytest.fixture
def open_harness(make_job, leaves):
    """Makes a syncer that listens, with learners that have joined and hold everything."""

    def opened(*peers, learners=3, steps=12, interval=P, incarnation="syncer.1", **sync):
        harness = Harness(make_job(learners, P, interval, steps, **sync), leaves, incarnation)
        harness.open()
        for peer in peers:
            harness.tell(PeerJoined(peer, peer))
            harness.report(peer, step=0, versions=(-1,) * P, steps=(0,) * P, step_s=0.0)
        return harness

    return opened


def test_it_listens_once_there_are_parameters(make_job, leaves):
    """No learner is welcomed before stored fragments were looked for and the parameters are
    made."""
    harness = Harness(make_job(fragments=P, interval=P), leaves)
    assert [Recover(1)] == harness.begun
    found, made = harness.open()
    assert [(0, 1, 2)] == [make.fragments for make in of(MakeParameters, found)]
    assert ([], 1) == (of(Listen, found), len(of(Listen, made)))


def test_a_joining_learner_gets_every_fragment_once(open_harness):
    """What a learner lacks is sent when it reports, and not again in the same session."""
    harness = open_harness()
    harness.tell(PeerJoined(A, A))
    lacking = {"versions": (-1,) * P, "steps": (0,) * P, "step": 0}
    effects = harness.report(A, **lacking)
    assert [(p, 0) for p in range(P)] == [
        (body.fragment, body.version) for _, body in said(GlobalFragment, effects)
    ]
    assert [] == said(GlobalFragment, harness.report(A, **lacking))
    harness.tell(PeerLost(A, "gone"))
    harness.tell(PeerJoined(A, A))
    assert P == len(said(GlobalFragment, harness.report(A, **lacking)))


def test_a_quorum_of_two_waits_for_the_second(open_harness):
    """One report launches nothing where K is two; the second does."""
    harness = open_harness(A, B, quorum=2)
    assert [] == pulls(harness.report(A))
    assert [(A, 1, 1), (B, 1, 1)] == pulls(harness.report(B))[:2]


def test_one_launch_a_step_whichever_learner_reports(open_harness):
    """The floor: with K=1 four learners' reports make one sync a step, not four."""
    harness = open_harness(A, B, C, steps=100, interval=4, overlap=3)
    launched = []
    for _ in range(12):
        for peer in (A, B, C):
            effects = harness.report(peer, after_s=1 / 3)
            for timer in [e for e in of(SetTimer, effects) if e.timer == LaunchDue()]:
                if timer.at <= harness.at:
                    effects += harness.tell(TimerFired(LaunchDue()))
            launched += sorted({(harness.at, t, p) for _, t, p in pulls(effects)})
            for _, t, fragment in dict.fromkeys((0, t, p) for _, t, p in pulls(effects)):
                harness.machine.rounds.syncs.pop(t)
                assert fragment < P
    assert len(launched) <= 12 + 1


def test_the_grace_window_opens_and_closes_early(open_harness):
    """With estimates there, the quorum opens a window; the last missing report closes it."""
    harness = open_harness(A, B, overlap=2)
    settle(harness)
    effects = harness.report(A, after_s=0.9)
    (timer,) = [e for e in of(SetTimer, effects) if e.timer == LaunchDue()]
    assert [] == pulls(effects)
    assert 0.4 <= timer.at - harness.at <= 1.0
    assert [A, B] == [peer for peer, *_ in pulls(harness.report(B, after_s=0.2))]


def test_the_grace_window_ends_without_the_missing(open_harness):
    """When the window is over, the sync is launched; only those who finished a step are pulled."""
    harness = open_harness(A, B, overlap=2, pull="fresh")
    settle(harness)
    effects = harness.report(A, after_s=0.9)
    (timer,) = [e for e in of(SetTimer, effects) if e.timer == LaunchDue()]
    assert [A] == [
        peer for peer, *_ in pulls(harness.tell(TimerFired(LaunchDue()), timer.at - harness.at))
    ]


def test_who_has_unmerged_steps_is_pulled_though_no_step_ended(open_harness):
    """A slow learner's steps are in the merge: its answer makes no other learner wait."""
    harness = open_harness(A, B, overlap=2)
    settle(harness)
    effects = harness.report(A, after_s=0.9)
    (timer,) = [e for e in of(SetTimer, effects) if e.timer == LaunchDue()]
    assert [A, B] == [
        peer for peer, *_ in pulls(harness.tell(TimerFired(LaunchDue()), timer.at - harness.at))
    ]


def test_a_slow_learner_is_not_waited_for_in_vain(open_harness):
    """A learner that cannot finish a step within the grace window does not hold the window open."""
    harness = open_harness(A, B, overlap=2)
    settle(harness)
    harness.report(A, after_s=1.0)
    harness.report(B, step_s=10.0, versions=(0, 1, 2))
    close(harness, 3)
    effects = harness.report(A, after_s=1.0, versions=(3, 1, 2))
    assert {(A, 4), (B, 4)} == {(peer, t) for peer, t, _ in pulls(effects)}


def test_who_left_a_pull_unanswered_is_pulled_again_when_it_is_heard(open_harness):
    """A stopped learner delays the syncs that pulled it, not each one until it is back."""
    harness = open_harness(A, B, overlap=1, grace=0.0)
    first = pulls(harness.report(B) + harness.report(A))
    assert [B] == [peer for peer, *_ in first]
    harness.at += 60.0
    timed_out = harness.tell(TimerFired(PullDeadline(1)))
    assert ["sync repeated"] == [each.event for each in of(Observe, timed_out)]
    again = pulls(timed_out + harness.report(A))
    assert [A] == [peer for peer, *_ in again]
    assert [A] == [peer for peer, *_ in pulls(harness.merged(harness.contribute(A, 1, 1)))]
    harness.merged(harness.contribute(A, 2, 2))
    assert {A, B} == {peer for peer, *_ in pulls(harness.report(B, step=5))}


@pytest.mark.parametrize(("incarnation", "restarted"), [("syncer.1", False), ("syncer.2", True)])
def test_numbers_say_that_they_are_since_a_restart(make_job, leaves, incarnation, restarted):
    """What an earlier incarnation has counted is not among them."""
    harness = Harness(make_job(3, P, P, 12), leaves, incarnation)
    harness.open()
    assert restarted is harness.machine.numbers(1.0).restarted
    assert restarted is harness.machine.status(1.0).restarted


def test_a_pull_that_was_lost_with_its_link_is_not_left_unanswered(open_harness):
    """A learner that has joined again has spoken, however often it had over its link before."""
    harness = open_harness(A, B, quorum=2, overlap=1, grace=0.0)
    assert {A, B} == {peer for peer, *_ in pulls(harness.report(B) + harness.report(A))}
    spoken = harness.machine.rounds.membership.members[B].spoken
    harness.tell(PeerLost(B, "reset"))
    harness.tell(PeerJoined(B, B))
    for _ in range(spoken):
        harness.report(B)
    harness.at += 60.0
    harness.tell(TimerFired(PullDeadline(1)))
    unanswered = {m.peer: m.unanswered for m in harness.machine.rounds.membership.members.values()}
    assert {A: True, B: False} == unanswered


def settle(harness):
    """Syncs 1 and 2 are done, by both learners, and every estimate has its first samples."""
    harness.report(A)
    close(harness, 1)
    harness.at += 1.0
    harness.report(B)
    harness.report(A, versions=(0, 1, 0), steps=(2, 1, 2))
    close(harness, 2)
    close(harness, 3)
    assert not harness.machine.rounds.syncs


def close(harness, t):
    """A sync gets every answer, and is merged."""
    sync = harness.machine.rounds.syncs.get(t)
    if sync is None:
        return
    effects = []
    for peer in sync.pulled:
        effects = harness.contribute(peer, t, sync.fragment)
    harness.merged(effects)


def test_shares_are_in_learner_order(open_harness):
    """Names as bytes, whatever the order of arrival: learner-0, learner-1, learner-10."""
    harness = open_harness(A, B, C, quorum=3)
    for peer in (C, B, A):
        effects = harness.report(peer)
    assert [A, B, C] == [peer for peer, t, _ in pulls(effects) if t == 1]
    harness.contribute(C, 1, 1, steps=1)
    harness.contribute(A, 1, 1, steps=2)
    (merge,) = of(MergeFragment, harness.contribute(B, 1, 1, steps=3))
    assert [(A, 128.0), (B, 192.0), (C, 64.0)] == [(s.name, s.weight) for s in merge.shares]


def test_all_are_told_also_those_that_took_no_part(open_harness):
    """A merged fragment goes to all learners, and its old arrays are dropped."""
    harness = open_harness(A, B, C)
    harness.report(A)
    effects = harness.merged(harness.contribute(A, 1, 1))
    assert [(p, 1, 1) for p in (A, B, C)] == [
        (peer, body.fragment, body.version) for peer, body in said(GlobalFragment, effects)
    ]
    assert {"theta/1/1", "outer/1/1", "wire/1/1"} <= set(harness.holders)
    assert not {"theta/1/0", "wire/1/0"} & set(harness.holders)


def test_as_many_syncs_as_the_overlap_allows(open_harness):
    """Two are under way with an overlap of two, of different fragments, and not a third."""
    harness = open_harness(A, B, overlap=2, grace=0.0)
    launched = (
        pulls(harness.report(A)) + pulls(harness.report(B)) + pulls(harness.report(A, after_s=9.0))
    )
    assert [(1, 1), (2, 2)] == sorted({(t, p) for _, t, p in launched})
    harness.report(B)
    later = pulls(harness.merged(harness.contribute(A, 1, 1, after_s=2.0)))
    assert {(3, 0)} == {(t, p) for _, t, p in later}


def test_never_two_syncs_of_one_fragment(make_job, leaves):
    """With a single fragment the overlap has nothing to overlap."""
    harness = Harness(make_job(1, 1, 4, 40, overlap=3), leaves)
    harness.open()
    harness.tell(PeerJoined(A, A))
    assert 1 == len(pulls(harness.report(A, versions=(0,), steps=(1,))))
    for _ in range(9):
        assert [] == pulls(harness.report(A, versions=(0,), steps=(2,), after_s=1.0))


def test_a_late_contribution_is_refused(open_harness):
    """After the deadline the sync continues without the late learners, and names them."""
    harness = open_harness(A, B, quorum=2)
    harness.report(A)
    harness.report(B)
    harness.contribute(A, 1, 1)
    (merge,) = of(MergeFragment, harness.tell(TimerFired(PullDeadline(1)), after_s=10.0))
    assert [A] == [share.name for share in merge.shares]
    (refusal,) = observed("refused", harness.contribute(B, 1, 1))
    assert (B, 1) == (refusal["learner"], refusal["t"])


def test_every_pull_has_a_deadline(open_harness):
    """A launch sets the timer that ends its wait for answers."""
    harness = open_harness(A)
    (deadline,) = [t for t in of(SetTimer, harness.report(A)) if t.timer == PullDeadline(1)]
    assert harness.at < deadline.at <= harness.at + 60.0


def test_a_sync_without_answers_is_repeated(open_harness):
    """With no part at the deadline the same global step is launched again, later."""
    harness = open_harness(A, overlap=1)
    assert [(A, 1, 1)] == pulls(harness.report(A))
    effects = harness.tell(TimerFired(PullDeadline(1)), after_s=10.0)
    assert ([1], []) == ([f["t"] for f in observed("sync repeated", effects)], pulls(effects))
    assert [(A, 1, 1)] == pulls(harness.report(A, after_s=1.0))


def test_a_sync_closes_when_the_missing_learner_is_lost(open_harness):
    """A learner that dies after its pull is not waited for."""
    harness = open_harness(A, B, quorum=2)
    harness.report(A)
    harness.report(B)
    harness.contribute(A, 1, 1)
    assert 1 == len(of(MergeFragment, harness.tell(PeerLost(B, "gone"))))


def test_no_tokens_are_merged_twice(open_harness):
    """A learner that contributed and still reports its old base is not pulled; its contribution is
    refused."""
    harness = open_harness(A, B, steps=40, overlap=1, grace=0.0)
    harness.report(A)
    harness.merged(harness.contribute(A, 1, 1))
    for t, fragment in ((2, 2), (3, 0)):
        harness.report(A, after_s=2.0)
        harness.merged(harness.contribute(A, t, fragment))
    assert [] == pulls(harness.report(A, after_s=2.0)), "fragment 1 is due, and A shows version 0"
    assert [(B, 4, 1)] == pulls(harness.report(B))
    assert "does not answer" not in str(observed("refused", harness.contribute(A, 4, 1)))
    assert [B] == [s.name for s in of(MergeFragment, harness.contribute(B, 4, 1))[0].shares]


def test_nor_after_a_new_handshake(open_harness):
    """What was merged of an incarnation is known across its sessions."""
    harness = open_harness(A, steps=40, overlap=1)
    harness.report(A)
    harness.merged(harness.contribute(A, 1, 1))
    for t, fragment in ((2, 2), (3, 0)):
        harness.report(A, after_s=2.0)
        harness.merged(harness.contribute(A, t, fragment))
    harness.tell(PeerLost(A, "gap"))
    harness.tell(PeerJoined(A, A))
    effects = harness.report(A, after_s=2.0)
    assert [] == pulls(effects)
    assert [(1, 1), (2, 2)] == sorted(
        (b.fragment, b.version) for _, b in said(GlobalFragment, effects) if b.fragment
    )
    assert [(A, 4, 1)] == pulls(harness.report(A, after_s=2.0, versions=(3, 1, 2)))
    (refusal,) = observed("refused", harness.contribute(A, 4, 1, base=0))
    assert "merged already" in refusal["reason"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"base": 7}, "does not exist yet"),
        ({"steps": 0}, "nothing was trained"),
        ({"fragment": 0}, "does not answer"),
        ({"t": 9}, "after its sync was closed"),
        ({"handle": ""}, "does not answer"),
    ],
)
def test_a_contribution_that_cannot_be_is_refused(open_harness, change, reason):
    """It is observed with its learner and the reason, and its array is not kept."""
    harness = open_harness(A)
    harness.report(A)
    held = dict(harness.holders)
    (refusal,) = observed(
        "refused", harness.contribute(**{"peer": A, "t": 1, "fragment": 1, **change})
    )
    assert A == refusal["learner"]
    assert reason in refusal["reason"]
    assert held == harness.holders


def test_a_second_answer_is_refused(open_harness):
    """One pull, one contribution."""
    harness = open_harness(A, B, quorum=2)
    harness.report(A)
    harness.report(B)
    harness.contribute(A, 1, 1)
    assert observed("refused", harness.contribute(A, 1, 1))


def test_what_the_merge_refuses_is_attributed(open_harness):
    """A contribution that the merge refuses is named; the others are merged."""
    harness = open_harness(A, B, quorum=2)
    harness.report(A)
    harness.report(B)
    harness.contribute(A, 1, 1)
    effects = harness.merged(harness.contribute(B, 1, 1), refused=[(B, "not finite")])
    assert [{"learner": B, "t": 1, "fragment": 1, "reason": "not finite"}] == observed(
        "refused", effects
    )
    assert [[A]] == [fields["learners"] for fields in observed("merge", effects)]
    # B gets version 0 first, then 1; of the two it is the newer that would wait for credit.
    told = [(peer, body.version, body.instead) for peer, body in said(GlobalFragment, effects)]
    assert [(B, 0, True), (A, 1, False), (B, 1, False)] == told
    assert not [handle for handle in harness.holders if handle.startswith("in/")]


def test_when_all_are_refused_the_version_stays(open_harness):
    """Nothing is merged, the new arrays are dropped, and the sync is repeated.

    A refused learner gets the newest version instead of its own.
    """
    harness = open_harness(A, overlap=1)
    harness.report(A)
    before = {h: n for h, n in harness.holders.items() if not h.startswith("in/")}
    effects = harness.merged(harness.contribute(A, 1, 1), refused=[(A, "not finite")])
    assert [(A, GlobalFragment(1, 0, instead=True))] == said(GlobalFragment, effects)
    assert [1] == [fields["t"] for fields in observed("sync repeated", effects)]
    assert before == harness.holders
    assert [(A, 1, 1)] == pulls(harness.report(A, after_s=1.0)), "its tokens were not merged"


def refused_whole(harness, times):
    """Whatever A contributes is refused, so often; the effects of the last merge."""
    effects = []
    for _ in range(times):
        pulled = pulls(harness.report(A, after_s=1.0))
        (_, t, p) = pulled[0]
        effects = harness.merged(harness.contribute(A, t, p), refused=[(A, "tensor 0: NaN or Inf")])
    return effects


def test_a_job_of_which_nothing_is_believed_any_more_fails(open_harness, monkeypatch):
    """It would repeat for ever: a model that makes NaN of everything does not come back. The line
    says why; one accepted contribution in between and it is counted again."""
    monkeypatch.setattr("ddloco.machines.syncer.machine.FRUITLESS_MAX", 5)
    harness = open_harness(A, overlap=1)
    refused_whole(harness, 4)
    pulled = pulls(harness.report(A, after_s=1.0))
    assert observed("merge", harness.merged(harness.contribute(A, *pulled[0][1:])))
    assert [] == of(SaveModel, refused_whole(harness, 4))
    effects = harness.saved(refused_whole(harness, 1))
    assert of(Evaluate, effects), "what there is is still scored and kept"
    reason = "nothing was believed in 5 syncs in a row: tensor 0: NaN or Inf"
    assert [(A, reason)] == [(peer, body.reason) for peer, body in said(Stop, effects)]
    assert "failed" == harness.machine.shutdown.status


FALSE = [
    ({"step": 4}, "report of step 4 after step 5"),
    ({"step": 6, "versions": (0,), "steps": (1,)}, "report of [1] fragments, the plan has 3"),
    ({"step": 99_999}, "report of 99999 steps in 0 s, its fastest was 1 s"),
    ({"versions": (0, 1, 0)}, "report of version 1 of fragment 1, which cannot be"),
    ({"batches": 7}, "report of 7 batches after 6 steps, 5 were known"),
    ({"batches": 5}, "report of 5 batches after 6 steps, 5 were known"),
    ({"position": 7}, "report of global step 7 with versions up to 0"),
]


@pytest.mark.parametrize(("false", "reason"), FALSE)
def test_a_false_report_is_refused(open_harness, false, reason):
    """It changes nothing, and its link is made again: the next report may be true."""
    harness = open_harness(A)
    harness.report(A, step=5, steps=(1,) * P)
    effects = harness.report(A, **false)
    assert [{"learner": A, "reason": reason}] == observed("refused", effects)
    assert [Hangup(A, reason)] == of(Hangup, effects)
    assert A not in harness.machine.members
    harness.tell(PeerJoined(A, A))
    assert [] == observed("refused", harness.report(A, step=6))
    batches = harness.machine.rounds.membership.batches["learner-0"]
    assert (6, 6) == (harness.machine.members[A].progress.step, batches)


def test_a_syncer_that_came_back_believes_what_it_may_have_lost(open_harness):
    """Of versions those that were due then, and of batches many; nothing that cannot be."""
    harness = open_harness(A, incarnation="syncer.2")
    assert [] == observed("refused", harness.report(A, versions=(0, 1, 0), batches=999))
    (seen,) = observed("refused", harness.report(A, versions=(0, 2, 0), batches=1000))
    assert "report of version 2 of fragment 1, which cannot be" == seen["reason"]
    harness.tell(PeerJoined(A, A))
    (seen,) = observed("refused", harness.report(A, versions=(0, 10**6, 0), batches=1001))
    assert "report of version 1000000 of fragment 1, which cannot be" == seen["reason"]


def test_a_run_from_a_snapshot_before_any_merge_believes_who_went_on(open_harness):
    """Learners that live may have had merges since, and started again."""
    harness = open_harness(A)
    harness.report(A, step=1)
    harness.tell(Restored("syncer.1-9", (), run="two"))
    harness.tell(PeerJoined(A2, A2))
    effects = harness.report(A2, step=2, versions=(0, 1, 0), batches=50)
    assert [] == observed("refused", effects)


def test_unknown_peers_change_nothing(open_harness):
    """A message from a peer that has not joined has no effect."""
    harness = open_harness()
    assert [] == harness.report(A)
    assert [] == harness.contribute(A, 1, 1)


def test_a_peer_may_go_by_another_name(open_harness):
    """A learner whose lanes carry its name without number is merged like any other."""
    harness = open_harness()
    harness.tell(PeerJoined("learner-0", A))
    harness.report("learner-0")
    effects = harness.merged(harness.contribute("learner-0", 1, 1))
    assert [["learner-0"]] == [fields["learners"] for fields in observed("merge", effects)]


# Staleness and repair.


def behind(open_harness, staleness):
    """A syncer whose fragment 1 is at version 4, merged from B; A still shows version 0."""
    harness = open_harness(A, B, steps=40, overlap=1, grace=0.0, staleness=staleness, pull="fresh")
    for t in (1, 2, 3, 4):
        fragment = t % P
        base = {4: 1}.get(t, 0)
        harness.report(B, after_s=2.0, versions=(0, base, 0), steps=(1,) * P)
        harness.merged(harness.contribute(B, t, fragment, base=base))
    for t in (5, 6):
        harness.report(B, after_s=2.0, versions=(3, 4, 2))
        harness.merged(harness.contribute(B, t, t % P, base={5: 2, 6: 3}[t]))
    return harness


@pytest.mark.parametrize(("staleness", "pulled"), [(1, []), (2, [(A, 7, 1)])])
def test_who_is_too_far_behind_is_not_pulled(open_harness, staleness, pulled):
    """Version 0 lags version 4 by more than one interval of three, and by less than two."""
    harness = behind(open_harness, staleness)
    assert pulled == pulls(harness.report(A, after_s=2.0, step=2))
    assert 1 == len(pulls(harness.report(B, versions=(6, 4, 5)))) + len(pulled)


def test_a_stale_contribution_is_refused(open_harness):
    """A learner that was pulled with a newer base and answers with a stale one is not merged. That
    was its answer: the sync does not wait for another one, and is repeated."""
    harness = behind(open_harness, 1)
    assert [(A, 7, 1)] == pulls(harness.report(A, after_s=2.0, versions=(6, 4, 5), step=2))
    effects = harness.contribute(A, 7, 1, base=0)
    (refusal,) = observed("refused", effects)
    assert "the oldest that is taken is 1" in refusal["reason"]
    (repeated,) = observed("sync repeated", effects)
    assert ALL_REFUSED == repeated["reason"]
    assert [(A, 7, 1)] == pulls(harness.report(A, after_s=0.1, versions=(6, 4, 5), step=3))
    (merge,) = of(MergeFragment, harness.contribute(A, 7, 1, base=1))
    assert [(A, 1)] == [(share.name, share.base) for share in merge.shares]


def test_what_does_not_arrive_is_sent_again(open_harness):
    """A version that a learner does not show for half a minute is sent once more, and once."""
    harness = open_harness(A, B, steps=40)
    harness.report(A)
    harness.merged(harness.contribute(A, 1, 1))
    shown = {"versions": (0, 1, 0), "steps": (2, 1, 2)}
    assert [] == said(GlobalFragment, harness.report(A, after_s=1.0, **shown))
    assert [] == said(GlobalFragment, harness.report(B, after_s=RESEND_S_MIN - 2.0))
    assert [(B, GlobalFragment(1, 1))] == said(GlobalFragment, harness.report(B, after_s=2.0))
    assert [] == said(GlobalFragment, harness.report(B, after_s=1.0))
    assert [] == said(GlobalFragment, harness.report(A, after_s=99.0, **shown))


# Incarnations.


def test_a_newer_incarnation_takes_the_place_of_the_older(open_harness):
    """The older one is refused, its part in a sync is not waited for, and it changes nothing."""
    harness = open_harness(A, B, quorum=2, overlap=1, steps=40)
    harness.report(A)
    assert 2 == len(pulls(harness.report(B)))
    harness.contribute(B, 1, 1)
    effects = harness.tell(PeerJoined(A2, A2))

    assert [(A, True)] == [(each.peer, each.final) for each in of(Hangup, effects)]
    assert [Retire({"learner-0": 2})] == of(Retire, effects)
    floors = {"learner-0": 2}
    assert [(A2, floors), (B, floors)] == [(p, b.floors) for p, b in said(Roster, effects)]
    assert [[B]] == [[share.name for share in merge.shares] for merge in of(MergeFragment, effects)]
    assert [A2] == [fields["learner"] for fields in observed("joined", effects)]
    assert [] == harness.report(A)
    assert [] == harness.contribute(A, 1, 1)
    assert [] == harness.tell(PeerLost(A, "late"))


def test_a_late_older_incarnation_is_refused(open_harness):
    """It is told never to dial again, is observed, and has no part in anything."""
    harness = open_harness(A2, B)
    effects = harness.tell(PeerJoined(A, A))
    assert [(A, True)] == [(each.peer, each.final) for each in of(Hangup, effects)]
    assert [A] == [fields["learner"] for fields in observed("refused", effects)]
    assert [] == of(Send, effects)
    assert [] == harness.report(A)


def test_what_came_before_the_newer_one_is_still_merged(open_harness):
    """A contribution that had arrived counts, even if its learner has been replaced."""
    harness = open_harness(A, B, quorum=2, overlap=1, steps=40)
    harness.report(A)
    harness.report(B)
    harness.contribute(A, 1, 1)
    harness.tell(PeerJoined(A2, A2))
    (merge,) = of(MergeFragment, harness.contribute(B, 1, 1))
    assert [A, B] == [share.name for share in merge.shares]


def test_at_the_end_a_newer_incarnation_is_told_to_stop(open_harness):
    """Also where its older one has been told."""
    harness, effects = stopping(open_harness, A)
    harness.saved(effects)
    effects = harness.tell(PeerJoined(A2, A2))
    assert [A2] == [peer for peer, _ in said(Stop, effects)]
    assert [A] == [each.peer for each in of(Hangup, effects)]


# What is believed.


def refused_in_turn(harness, times):
    """A's contributions are refused by those who merge, B's are not; the effects of each merge."""
    t, told = 1, []
    for _ in range(times):
        p = (t - 1) % P
        versions = harness.machine.status(harness.at).versions
        for peer in (A, B):
            effects = harness.report(peer, versions=tuple(versions), after_s=1.0)
        t = pulls(effects)[0][1]
        p = pulls(effects)[0][2]
        harness.contribute(A, t, p, base=versions[p])
        merge = harness.contribute(B, t, p, base=versions[p])
        told.append(harness.merged(merge, refused=((A, "norm 9, 1 at most"),)))
    return told


def test_three_refusals_in_a_row_and_everything_is_sent(open_harness):
    """To be taken instead of what was trained; the log and the status say of whom and why;
    then it is counted again."""
    harness = open_harness(A, B, quorum=2, overlap=1, steps=40, staleness=30)
    for index, effects in enumerate(refused_in_turn(harness, 6)):
        instead = [
            b.fragment for peer, b in said(GlobalFragment, effects) if peer == A and b.instead
        ]
        over = observed("starts over", effects)
        if index % 3 == 2:
            assert [0, 1, 2] == instead
            reason = "3 in a row refused, the last: norm 9, 1 at most"
            assert [{"learner": A, "reason": reason}] == over
        else:
            assert (1, []) == (len(instead), over)
    (member, _) = harness.machine.status(harness.at).members
    assert (A, 6, "norm 9, 1 at most") == (member.learner, member.refused, member.refused_for)


def test_one_that_is_merged_in_between_is_no_row(open_harness):
    """Two refusals, a merge, two refusals: no learner is given new parameters."""
    harness = open_harness(A, B, quorum=2, overlap=1, steps=40, staleness=30)
    effects = refused_in_turn(harness, 2)
    versions = harness.machine.status(harness.at).versions
    for peer in (A, B):
        pulled = harness.report(peer, versions=tuple(versions), after_s=1.0)
    (_, t, p), _ = pulls(pulled)
    harness.contribute(A, t, p, base=versions[p])
    harness.merged(harness.contribute(B, t, p, base=versions[p]))
    effects += refused_in_turn(harness, 2)
    assert [] == [fields for each in effects for fields in observed("starts over", each)]


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"tokens": 8000}, "more tokens than steps allow: 8000 in 1"),
        ({"steps": 50, "step": 9}, "more steps than it has taken: 50 of 9"),
    ],
)
def test_what_cannot_have_been_trained_is_refused(open_harness, claim, reason):
    """With what is usual, or possible, in the reason; without a band everything is believed."""
    for band in (32.0, 0.0):
        harness = open_harness(A, B, quorum=2, overlap=1, steps=40, staleness=30, band=band)
        for _ in range(3):
            versions = harness.machine.status(harness.at).versions
            for peer in (A, B):
                pulled = harness.report(peer, versions=versions, after_s=1.0)
            (_, t, p), _ = pulls(pulled)
            harness.contribute(A, t, p, base=versions[p])
            harness.merged(harness.contribute(B, t, p, base=versions[p]))
        versions = harness.machine.status(harness.at).versions
        for peer in (A, B):
            pulled = harness.report(peer, versions=versions, after_s=1.0)
        (_, t, p), _ = pulls(pulled)
        plain = {"t": t, "fragment": p, "base": versions[p], "step": 4, "steps": 1, "tokens": 8}
        effects = harness.say(A, Contribution(**{**plain, **claim}))
        refused = observed("refused", effects + harness.contribute(B, t, p, base=versions[p]))
        assert bool(band) == bool(refused)
        assert all(each["learner"] == A and reason in each["reason"] for each in refused)


# Recovery.


KEPT = (Kept(1, 4, {A: 1, C: 1}, {}, b"digest"), Kept(2, 5, {A: 2}, {}, b"digest"))
"""What a syncer had merged of fragments 1 and 2 when it died."""


@pytest.fixture
def recovered(make_job, leaves):
    """A second incarnation that has found what was kept."""

    def made(kept=KEPT, **sync):
        harness = Harness(
            make_job(3, P, P, 40, **{"overlap": 1, "grace": 0.0, **sync}), leaves, "syncer.2"
        )
        harness.found, harness.made = harness.open(kept)
        return harness

    return made


@pytest.fixture
def budget(make_job, leaves):
    """A syncer of three fragments in a job of 24 tokens; one learner with 8 a step."""

    def made(kept=(), tokens=24, incarnation="syncer.1"):
        job = make_job(1, P, P, 500, overlap=1, grace=0.0)
        harness = Harness(replace(job, job=replace(job.job, tokens=tokens)), leaves, incarnation)
        harness.opened = harness.open(kept)
        return harness

    return made


def merge_next(harness, step):
    """The learner's next step is merged: the effects of the merge, and its work."""
    harness.machine.handle(harness.at, PeerJoined(A, A)) if step == 1 else None
    t = step
    versions = tuple(max([0, *(u for u in range(1, t) if u % P == p)]) for p in range(P))
    asked = harness.report(A, 30.0, versions=versions, step=step)
    [(_, t, fragment)] = pulls(asked)
    effects = harness.contribute(A, t, fragment, base=versions[fragment], step=step)
    [merge] = of(MergeFragment, effects)
    return merge, harness.merged(effects)


def test_a_job_ends_when_its_tokens_are_merged(budget):
    """On average over the fragments: 8 in each of three merges of three fragments are 24 in each;
    the merge says what was counted, for the next incarnation."""
    harness = budget()
    for step in range(1, 9):
        merge, effects = merge_next(harness, step)
        before = 8 * ((step - 1) // P)
        assert MergeTokens({A: 8}, before) == merge.tokens
        assert before + 8 == merge.tokens.after([A])
        assert not of(SaveModel, effects)
        assert 8 * step // P == harness.machine.status(harness.at).merged_tokens
    _, effects = merge_next(harness, 9)

    assert of(SaveModel, effects)
    assert "24 merged tokens" in {body.reason for _, body in said(Stop, harness.saved(effects))}


def test_a_small_budget_ends_no_job_with_fragments_as_initialized(budget):
    """Two tokens on average are merged with the first fragment; the job goes on until every
    fragment has been merged, and is done."""
    harness = budget(tokens=2)
    for step in range(1, P):
        _, effects = merge_next(harness, step)
        assert not of(SaveModel, effects)
    _, effects = merge_next(harness, P)
    assert of(SaveModel, effects)
    assert "done" == harness.machine.shutdown.status


def test_without_a_budget_tokens_are_not_kept(make_job, leaves):
    """The merge is on tapes what it always was."""
    harness = Harness(make_job(1, P, P, 500, overlap=1, grace=0.0), leaves)
    harness.open()
    merge, _ = merge_next(harness, 1)

    assert merge.tokens is None
    assert 8 // P == harness.machine.status(harness.at).merged_tokens


def test_a_learner_that_comes_back_continues_its_count(budget):
    """From what was kept with the fragments; a job that was over is over."""
    harness = budget(
        [Kept(p, p + 3, {}, {}, b"digest", 16) for p in range(P)], incarnation="syncer.2"
    )
    assert 16 == harness.machine.status(0.0).merged_tokens
    assert not of(SaveModel, harness.opened[1])
    over = budget([Kept(p, p + 3, {}, {}, b"digest", 24) for p in range(P)], incarnation="syncer.2")

    assert of(SaveModel, over.opened[1])


def test_only_what_was_not_kept_is_made(recovered):
    """Fragment 0 is made again; of the others the arrays that were found are held."""
    harness = recovered()
    assert [(0,)] == [make.fragments for make in of(MakeParameters, harness.found)]
    assert [{"t": 5, "fragments": 2}] == observed("recovered", harness.found)
    parts = {f"{kind}/{p}/{v}" for p, v in ((1, 4), (2, 5)) for kind in ("theta", "outer", "wire")}
    assert dict.fromkeys([*parts, "theta/0/0", "wire/0/0"], 1) == harness.holders
    assert 1 == len(of(Listen, harness.made))


def test_where_all_was_kept_nothing_is_made(recovered):
    """The parameters are asked for all the same, of no fragment, and then it listens."""
    harness = recovered([Kept(p, p + 3, {}, {}, b"digest") for p in range(P)])
    assert [()] == [make.fragments for make in of(MakeParameters, harness.found)]
    assert of(Listen, harness.made)


def test_at_the_first_start_nothing_was_kept(recovered):
    """Nothing is said to be recovered."""
    harness = recovered(())
    assert [] == observed("recovered", harness.found)
    assert {f"{kind}/{p}/0" for p in range(P) for kind in ("theta", "wire")} == set(harness.holders)


def test_learners_get_the_versions_that_were_kept(recovered):
    """A learner that joins is sent those that it lacks."""
    harness = recovered()
    harness.tell(PeerJoined(B, B))
    effects = harness.report(B, versions=(0, 4, 2), step=5)
    assert [(B, GlobalFragment(2, 5))] == said(GlobalFragment, effects)


def test_it_goes_on_after_the_newest_that_was_kept(recovered):
    """Global step 6 comes after 5; what was launched and not merged is due an interval later."""
    harness = recovered()
    harness.tell(PeerJoined(B, B))
    assert [(B, 6, 0)] == pulls(harness.report(B, versions=(0, 4, 5), step=5))
    effects = harness.merged(harness.contribute(B, 6, 0))
    (merge,) = observed("merge", effects)
    assert (6, [B]) == (merge["t"], merge["learners"])
    later = harness.report(B, versions=(6, 4, 5), after_s=3.0)
    assert [(B, 7, 1)] == pulls(later)
    (merge,) = of(MergeFragment, harness.contribute(B, 7, 1, base=4))
    assert ("theta/1/4", "outer/1/4") == (merge.theta, merge.state)


def test_what_was_spent_is_not_merged_again(recovered):
    """Bases that a former syncer merged: not pulled, refused if it comes, and kept on."""
    harness = recovered(staleness=2)
    for peer in (A, B):
        harness.tell(PeerJoined(peer, peer))
    harness.report(B, versions=(0, 4, 5), step=5)
    harness.merged(harness.contribute(B, 6, 0))
    assert [] == pulls(harness.report(A, versions=(6, 1, 5), step=5, after_s=3.0))
    assert [(B, 7, 1)] == pulls(harness.report(B, versions=(6, 4, 5)))
    assert "came after" in observed("refused", harness.contribute(A, 7, 1, base=1))[0]["reason"]
    (merge,) = of(MergeFragment, harness.contribute(B, 7, 1, base=4))
    assert ({A: 1, C: 1}, [(B, 4)]) == (merge.spent, [(s.name, s.base) for s in merge.shares])


def test_who_insists_on_what_was_spent_is_refused(recovered):
    """Pulled with a new base, answered from the spent one."""
    harness = recovered(staleness=2)
    harness.tell(PeerJoined(A, A))
    harness.report(A, versions=(0, 4, 5), step=5)
    harness.merged(harness.contribute(A, 6, 0))
    assert [(A, 7, 1)] == pulls(harness.report(A, versions=(6, 4, 5), step=6, after_s=3.0))
    (refusal,) = observed("refused", harness.contribute(A, 7, 1, base=1))
    assert "merged already" in refusal["reason"]


def test_what_this_syncer_merges_is_spent_too(recovered):
    """The next merge of a fragment names the bases of all before it, per incarnation the last."""
    harness = recovered(staleness=3)
    for peer in (A, B):
        harness.tell(PeerJoined(peer, peer))
    for t in (6, 7, 8, 9):
        bases = (0 if t < 7 else 6, 4, 5)
        harness.report(A, versions=bases, after_s=3.0)
        effects = harness.contribute(A, t, t % P, base=bases[t % P])
        if t < 9:
            harness.merged(effects)
    (merge,) = of(MergeFragment, effects)
    assert (0, {A: 0}) == (merge.fragment, merge.spent)


def test_the_dead_syncer_is_retired(recovered):
    """Learners are told that its former incarnation will not be heard of again."""
    harness = recovered()
    (roster,) = [body for _, body in said(Roster, harness.tell(PeerJoined(B, B)))]
    assert 2 == roster.floors["syncer"]


def test_who_was_retired_before_the_crash_stays_so(recovered):
    """A newer incarnation that is known from a merge keeps its place."""
    harness = recovered([Kept(1, 4, {A2: 1}, {}, b"digest")])
    assert [(A, True)] == [(e.peer, e.final) for e in of(Hangup, harness.tell(PeerJoined(A, A)))]


def test_a_model_with_parts_as_initialized_is_no_success(recovered):
    """All global steps are through, and a fragment that was due was never merged: the model is
    kept, and the job has failed, with the fragment named."""
    harness = recovered([Kept(p, 38 + p, {}, {}, b"digest") for p in range(3) if p != 1])
    [finish] = of(Finish, harness.scored(harness.made))
    assert finish == Finish("failed", "never merged, so as initialized: fragments 1 of 3")


@pytest.mark.parametrize(
    ("version", "reason"),
    [(4, "not merged after global step 4 of 100: fragments 1 of 3"), (52, "global step 100")],
)
def test_a_part_that_stood_still_for_half_of_the_job_is_no_success(
    make_job, leaves, version, reason
):
    """As a shard is that merged once and then no more: named, with where it stopped. One that was
    behind for less is none: its process may have started again."""
    job = make_job(3, P, P, 100, overlap=1, grace=0.0)
    harness = Harness(job, leaves, "syncer.2")
    _, made = harness.open([Kept(p, version if p == 1 else 98 + p, {}, {}, b"d") for p in range(P)])
    harness.scored(made)
    assert harness.machine.shutdown.reason == reason


def test_who_stops_a_job_that_stands_still_is_told_so(open_harness):
    """The end is in good order, the model is kept, and it is no success."""
    harness = open_harness(A, B)
    harness.at += 10_000.0
    effects = harness.tell(StopRequested("enough"))
    ended = [
        *harness.scored(effects),
        *harness.tell(PeerLost(A, "bye")),
        *harness.tell(PeerLost(B, "bye")),
    ]
    [finish] = of(Finish, ended)
    assert "failed" == finish.status
    assert finish.reason.startswith("enough; no merge for 10000 s: waits for ")


def test_a_job_that_was_through_is_told_to_those_who_come_late(recovered):
    """A syncer that is started again after the end stays for a while, says so to learners that
    come, and leaves when its patience is over."""
    last = [Kept(p, 38 + p, {}, {}, b"digest") for p in range(3)]
    harness = recovered(last)
    assert [] == of(Finish, harness.scored(harness.made))

    joined = harness.tell(PeerJoined(A, A), after_s=LATE_S / 2)
    assert [A] == [peer for peer, _ in said(Stop, joined)]
    assert [] == of(Finish, harness.tell(PeerLost(A, "bye")))
    assert ["done"] == [
        each.status for each in of(Finish, harness.tell(TimerFired(ShutdownDeadline())))
    ]


@pytest.mark.parametrize("done", [True, False])
def test_the_lead_of_shards_knows_that_the_job_was_done(make_job, leaves, done):
    """Started again without its shards, it tells who comes late, and it is no failure; unless the
    job was never done."""
    job = make_job(3, P, P, 40, overlap=1, grace=0.0)
    job = replace(job, job=replace(job.job, syncers=2))
    harness = Harness(job, leaves, "syncer-0.2")
    kept = [Kept(p, 38 + p, {}, {}, b"digest") for p in range(0, P, 2)]
    _, made = harness.open(kept, done=done)
    assert [ShardsDeadline()] == [
        e.timer for e in of(SetTimer, made) if e.timer == ShardsDeadline()
    ]
    assert [] == said(Stop, harness.tell(PeerJoined(A, A)))

    alone = harness.tell(TimerFired(ShardsDeadline()), after_s=LATE_S)
    assert [] == of(Evaluate | SaveModel, alone)
    assert [A] == [peer for peer, _ in said(Stop, alone)]
    harness.tell(PeerLost(A, "bye"))
    ended = harness.tell(TimerFired(ShutdownDeadline()), after_s=LATE_S)
    if done:
        assert [Finish("done", "global step 40")] == of(Finish, ended)
    else:
        assert harness.machine.shutdown.status == "failed"


@pytest.mark.parametrize("stopped", [True, False])
def test_a_job_that_was_done_is_done_again_with_its_shards(make_job, leaves, stopped):
    """With all of them there, the model is evaluated and saved as ever; a stop stays a stop."""
    job = make_job(3, P, P, 40, overlap=1, grace=0.0)
    job = replace(job, job=replace(job.job, syncers=2))
    harness = Harness(job, leaves, "syncer-0.2")
    harness.open([Kept(p, 38 + p, {}, {}, b"digest") for p in range(0, P, 2)], done=True)
    if stopped:
        harness.tell(StopRequested("enough"))
        harness.tell(TimerFired(ShardsDeadline()), after_s=LATE_S)
        assert harness.machine.shutdown.status == "failed"
        return
    harness.tell(PeerJoined("syncer-1.2", "syncer-1.2"))
    harness.say("syncer-1.2", GlobalFragment(1, 39), handle="in/final")
    effects = harness.say("syncer-1.2", ShardReport(9, (-1, 39, -1), over=True))
    assert of(SaveModel, effects)


def test_a_stop_before_the_parameters_is_not_lost(make_job, leaves):
    """Asked to end while it looks for what was kept, it ends once it could begin."""
    harness = Harness(make_job(fragments=P, interval=P), leaves)
    assert [] == harness.tell(StopRequested("enough"))
    _, made = harness.open()
    assert of(SaveModel, made)


# The end.


def stopping(open_harness, *peers, **more):
    """A syncer that was asked to stop with nothing under way, and what it did."""
    harness = open_harness(*peers, **more)
    return harness, harness.tell(StopRequested("enough"))


def test_a_stop_lets_running_syncs_end_first(open_harness):
    """What is under way is merged; nothing new begins; then all learners are told."""
    harness = open_harness(A, B, overlap=2)
    assert [(A, 1, 1)] == pulls(harness.report(A))
    assert [] == of(Evaluate | SaveModel | Finish, harness.tell(StopRequested("enough")))
    assert [] == pulls(harness.report(B, after_s=3.0))
    effects = harness.merged(harness.contribute(A, 1, 1))
    assert [A, B] == [peer for peer, _ in said(GlobalFragment, effects)]
    assert [A, B] == [peer for peer, _ in said(Stop, harness.saved(effects))]


def test_a_syncer_that_leaves_ends_no_job(open_harness):
    """It closes the links, whose learners may dial again, and ends without ending the job."""
    harness = open_harness(A, B, overlap=2)
    harness.report(A)
    effects = harness.tell(LeaveRequested("moved"))
    assert {(A, False), (B, False)} == {(e.peer, e.final) for e in of(Hangup, effects)}
    assert [Finish("left", "moved")] == of(Finish, effects)
    assert [] == of(Send | Evaluate | SaveModel, effects)


def test_a_learner_is_told_to_leave_for_good(open_harness):
    """It alone, and the job goes on; one that is not there, and one that there is not, are logged
    as that."""
    harness = open_harness(A, B)
    effects = harness.tell(DismissRequested(actor_of(A)))
    assert [A] == [peer for peer, _ in said(Stop, effects)]
    assert {"learner": actor_of(A), "linked": True} in [e.fields for e in of(Observe, effects)]
    away = harness.tell(DismissRequested("learner-2"))
    assert [("dismissed", False)] == [(e.event, e.fields["linked"]) for e in of(Observe, away)]
    (unknown,) = of(Observe, harness.tell(DismissRequested("learner-99")))
    assert unknown.event == "not dismissed"
    assert "learner-99 is no learner of this job" in unknown.fields["reason"]
    assert [] == of(Finish, effects)


def test_a_stop_belongs_to_its_run(open_harness):
    """A syncer that continues from a snapshot that was taken after it launches syncs again."""
    harness = open_harness(A, B)
    harness.report(A)
    harness.tell(StopRequested("enough"))
    assert [] == pulls(harness.report(B, after_s=3.0))
    harness.tell(Restored("syncer.1-9", ()))
    harness.merged(harness.contribute(A, 1, 1))
    assert pulls(harness.report(A, after_s=5.0) + harness.report(B, after_s=5.0))
    assert [] == of(Evaluate | SaveModel | Finish, harness.tell(TimerFired(LaunchDue())))


def test_a_run_is_settled_by_its_first_merge(open_harness):
    """From then on no members of other runs join; a syncer that continues from a snapshot is
    settled."""
    harness = open_harness(A, B)
    harness.tell(Restored("syncer.1-9", (), run="one"))
    harness.report(A)
    [listen] = of(Listen, harness.merged(harness.contribute(A, 1, 1)))
    assert ("one", True) == (listen.run, listen.settled)
    [again] = of(Listen, harness.tell(Restored("syncer.1-10", (), run="two")))
    assert ("two", True) == (again.run, again.settled)


def test_the_end_in_order(open_harness):
    """Save, then stop to all, and evaluate; finished when all learners have left."""
    harness, effects = stopping(open_harness, A, B)
    assert [] == said(Stop, effects)
    [save] = of(SaveModel, effects)
    told = harness.saved(effects)
    assert [A, B] == [peer for peer, _ in said(Stop, told)]
    [evaluate] = of(Evaluate, told)
    assert evaluate.fragments == save.fragments == ("theta/0/0", "theta/1/0", "theta/2/0")
    assert [] == of(Finish, harness.tell(Evaluated(evaluate.work, 2.5)))
    assert [] == of(Finish, harness.tell(PeerLost(A, "bye")))
    assert [Finish("stopped", "enough")] == of(Finish, harness.tell(PeerLost(B, "bye")))


def test_the_last_global_step_ends_the_job(open_harness):
    """After the merge of the last step the syncer winds up by itself, and is done."""
    harness = open_harness(A, steps=1)
    harness.report(A)
    effects = harness.saved(harness.merged(harness.contribute(A, 1, 1)))
    assert [(A, Stop(1, "global step 1"))] == said(Stop, effects)
    harness.tell(PeerLost(A, "bye"))
    finish = harness.tell(Evaluated(of(Evaluate, effects)[0].work, None))
    assert [Finish("done", "global step 1")] == of(Finish, finish)


def test_a_learner_that_does_not_leave_is_left_behind(open_harness):
    """The shutdown timer bounds how long the syncer waits for goodbyes."""
    harness, effects = stopping(open_harness, A)
    effects = harness.saved(effects)
    (shutdown,) = [timer for timer in of(SetTimer, effects) if timer.timer == ShutdownDeadline()]
    assert 3.0 <= shutdown.at - harness.at <= 60.0
    harness.tell(Evaluated(of(Evaluate, effects)[0].work, None))
    assert of(Finish, harness.tell(TimerFired(ShutdownDeadline()), after_s=shutdown.at))


def test_a_goodbye_after_the_farewell_is_no_surprise(open_harness):
    """A learner that leaves after it was left behind, with the model not scored yet, is fine."""
    harness, effects = stopping(open_harness, A)
    effects = harness.saved(effects)
    harness.tell(TimerFired(ShutdownDeadline()), after_s=60.0)
    harness.tell(PeerLost(A, "bye"))
    harness.tell(PeerJoined(B, B))
    assert of(Finish, harness.tell(Evaluated(of(Evaluate, effects)[0].work, None)))


def test_a_learner_that_joins_at_the_end_is_told(open_harness):
    """A learner that comes (back) while the job winds up is told to stop with the others, or at
    once if they have been told."""
    harness, effects = stopping(open_harness, A)
    harness.tell(PeerLost(A, "gap"))
    assert [] == said(Stop, harness.tell(PeerJoined(A, A)))
    assert [A] == [peer for peer, _ in said(Stop, harness.saved(effects))]
    assert [B] == [peer for peer, _ in said(Stop, harness.tell(PeerJoined(B, B)))]


def test_a_model_that_cannot_be_saved_ends_the_job(open_harness):
    """A failed save is a failure of the job, also when it comes before the evaluation's end."""
    harness, effects = stopping(open_harness, A)
    failed = WorkFailed(of(SaveModel, effects)[0].work, "worker", "disk full")
    assert [Finish("failed", "disk full", again=True)] == of(Finish, harness.tell(failed))


def test_a_model_that_cannot_be_scored_is_still_saved(open_harness):
    """A failed evaluation is observed, and the job ends as it would."""
    harness, effects = stopping(open_harness)
    effects = harness.saved(effects)
    failed = harness.tell(WorkFailed(of(Evaluate, effects)[0].work, "task", "no data"))
    assert [{"reason": "no data"}] == observed("not evaluated", failed)
    assert ["no data"] == [each["not_evaluated"] for each in observed("result", failed)]
    assert ["stopped"] == [finish.status for finish in of(Finish, failed)]


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_syncer_that_must_leave_after_the_end_is_not_started_again(open_harness, is_saved):
    """Once the model is saved and scored it is done; before that another one continues."""
    harness, effects = stopping(open_harness, A)
    if is_saved:
        harness.scored(effects)
    [finish] = of(Finish, harness.tell(LeaveRequested("SIGTERM")))
    assert finish.status == ("stopped" if is_saved else "left")


@pytest.mark.parametrize(("kind", "status"), [("task", "bad-input"), ("worker", "failed")])
def test_failed_work_ends_the_job(open_harness, kind, status):
    """All links are closed, and the finish says what failed."""
    effects = open_harness(B, A).tell(WorkFailed(7, kind, "it broke"))
    assert [A, B] == [each.peer for each in of(Hangup, effects)]
    assert [Finish(status, "it broke", again=kind == "worker")] == of(Finish, effects)


def test_who_was_lost_before_the_end_may_not_know_of_it(open_harness):
    """Not who has left at the end, or was asked to leave for good."""
    harness = open_harness(A, B)
    harness.tell(PeerJoined("learner-2.1", "learner-2.1"))
    harness.tell(DismissRequested("learner-2"))
    harness.tell(PeerLost("learner-2.1", "learner-2 was asked to leave for good"))
    harness.tell(PeerLost(A, "control lane: the peer cannot be reached"))
    assert harness.machine.untold == []  # The job goes on.
    harness.saved(harness.tell(StopRequested("enough")))
    assert harness.machine.untold == ["learner-0", "learner-1"]
    harness.tell(PeerLost(B, "enough"))
    assert harness.machine.untold == ["learner-0"]
