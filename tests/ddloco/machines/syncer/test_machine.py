"""The syncer machine alone: fed events, judged by its effects."""

import pytest
from msgspec.structs import replace

from ddloco.actors.effects import Finish, Observe
from ddloco.actors.events import LeaveRequested, Restored, StopRequested, WorkFailed
from ddloco.machines.syncer.machine import SHUTDOWN, Syncer
from ddloco.machines.syncer.members import RESEND_S_MIN
from ddloco.machines.syncer.rounds import LAUNCH
from ddloco.machines.syncer.shards import SHARDS
from ddloco.machines.syncer.shutdown import LATE_S
from ddloco.protocol.effects import (
    Evaluate,
    MakeParameters,
    MergeFragment,
    MergeTokens,
    Recover,
    SaveModel,
)
from ddloco.protocol.events import (
    Evaluated,
    FragmentMerged,
    Kept,
    ModelSaved,
    ParametersMade,
    Recovered,
    Started,
)
from ddloco.protocol.messages import (
    Contribution,
    GlobalFragment,
    Progress,
    Pull,
    Roster,
    ShardReport,
    Stop,
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


class Desk:
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

    def report(self, peer, after_s=0.0, versions=(0,) * P, steps=(1,) * P, step_s=1.0, step=None):
        """A learner has finished one more step."""
        self.steps[peer] = self.steps.get(peer, 0) + 1 if step is None else step
        tokens = tuple(8 * n for n in steps)
        return self.say(peer, Progress(self.steps[peer], step_s, versions, steps, tokens), after_s)

    def contribute(self, peer, t, fragment, base=0, step=None, steps=1, **more):
        """A learner answers a pull."""
        step = max(self.steps.get(peer, 1), steps) if step is None else step
        body = Contribution(t, fragment, base, step, steps, 8 * steps)
        return self.say(peer, body, **more)

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
def open_desk(make_job, leaves):
    """Makes a syncer that listens, with learners that have joined and hold everything."""

    def opened(*peers, learners=3, steps=12, interval=P, **sync):
        desk = Desk(make_job(learners, P, interval, steps, **sync), leaves)
        desk.open()
        for peer in peers:
            desk.tell(PeerJoined(peer, peer))
            desk.report(peer, step=0, versions=(-1,) * P, steps=(0,) * P, step_s=0.0)
        return desk

    return opened


def test_it_listens_once_there_are_parameters(make_job, leaves):
    """Nobody is welcomed before what was kept was looked for, and the parameters stand."""
    desk = Desk(make_job(fragments=P, interval=P), leaves)
    assert [Recover(1)] == desk.begun
    found, made = desk.open()
    assert [(0, 1, 2)] == [make.fragments for make in of(MakeParameters, found)]
    assert ([], 1) == (of(Listen, found), len(of(Listen, made)))


def test_a_joining_learner_gets_every_fragment_once(open_desk):
    """What a learner lacks is sent when it reports, and not again in the same session."""
    desk = open_desk()
    desk.tell(PeerJoined(A, A))
    lacking = {"versions": (-1,) * P, "steps": (0,) * P, "step": 0}
    effects = desk.report(A, **lacking)
    assert [(p, 0) for p in range(P)] == [
        (body.fragment, body.version) for _, body in said(GlobalFragment, effects)
    ]
    assert [] == said(GlobalFragment, desk.report(A, **lacking))
    desk.tell(PeerLost(A, "gone"))
    desk.tell(PeerJoined(A, A))
    assert P == len(said(GlobalFragment, desk.report(A, **lacking)))


def test_a_quorum_of_two_waits_for_the_second(open_desk):
    """One report launches nothing where K is two; the second does."""
    desk = open_desk(A, B, quorum=2)
    assert [] == pulls(desk.report(A))
    assert [(A, 1, 1), (B, 1, 1)] == pulls(desk.report(B))[:2]


def test_one_launch_a_step_whoever_reports(open_desk):
    """The floor: with K=1 four learners' reports make one sync a step, not four."""
    desk = open_desk(A, B, C, steps=100, interval=4, overlap=3)
    launched = []
    for _ in range(12):
        for peer in (A, B, C):
            effects = desk.report(peer, after_s=1 / 3)
            for timer in [e for e in of(SetTimer, effects) if e.timer == LAUNCH]:
                if timer.at <= desk.at:
                    effects += desk.tell(TimerFired(LAUNCH))
            launched += sorted({(desk.at, t, p) for _, t, p in pulls(effects)})
            for _, t, fragment in dict.fromkeys((0, t, p) for _, t, p in pulls(effects)):
                desk.machine._under_way.syncs.pop(t)
                assert fragment < P
    assert len(launched) <= 12 + 1


def test_the_grace_window_opens_and_closes_early(open_desk):
    """With estimates there, the quorum opens a window; the last missing report closes it."""
    desk = open_desk(A, B, overlap=2)
    settle(desk)
    effects = desk.report(A, after_s=0.9)
    (timer,) = [e for e in of(SetTimer, effects) if e.timer == LAUNCH]
    assert [] == pulls(effects)
    assert 0.4 <= timer.at - desk.at <= 1.0
    assert [A, B] == [peer for peer, *_ in pulls(desk.report(B, after_s=0.2))]


def test_the_grace_window_ends_without_the_missing(open_desk):
    """When the window is over, the sync is launched; only those who finished a step are pulled."""
    desk = open_desk(A, B, overlap=2, pull="fresh")
    settle(desk)
    effects = desk.report(A, after_s=0.9)
    (timer,) = [e for e in of(SetTimer, effects) if e.timer == LAUNCH]
    assert [A] == [peer for peer, *_ in pulls(desk.tell(TimerFired(LAUNCH), timer.at - desk.at))]


def test_who_has_unmerged_steps_is_pulled_though_no_step_ended(open_desk):
    """A slow learner's trained steps are in the merge: its answer costs nobody a wait."""
    desk = open_desk(A, B, overlap=2)
    settle(desk)
    effects = desk.report(A, after_s=0.9)
    (timer,) = [e for e in of(SetTimer, effects) if e.timer == LAUNCH]
    assert [A, B] == [peer for peer, *_ in pulls(desk.tell(TimerFired(LAUNCH), timer.at - desk.at))]


def test_a_slow_learner_is_not_waited_for_in_vain(open_desk):
    """Whoever cannot finish a step within the grace window does not hold the window open."""
    desk = open_desk(A, B, overlap=2)
    settle(desk)
    desk.report(A, after_s=1.0)
    desk.report(B, step_s=10.0, versions=(0, 1, 2))
    close(desk, 3)
    effects = desk.report(A, after_s=1.0, versions=(3, 1, 2))
    assert {(A, 4), (B, 4)} == {(peer, t) for peer, t, _ in pulls(effects)}


def test_who_left_a_pull_unanswered_is_pulled_again_when_it_is_heard(open_desk):
    """A stopped learner delays the syncs that pulled it, not each one until it is back."""
    desk = open_desk(A, B, overlap=1, grace=0.0)
    first = pulls(desk.report(B) + desk.report(A))
    assert [B] == [peer for peer, *_ in first]
    desk.at += 60.0
    timed_out = desk.tell(TimerFired("pull/1"))
    assert ["sync repeated"] == [each.event for each in of(Observe, timed_out)]
    again = pulls(timed_out + desk.report(A))
    assert [A] == [peer for peer, *_ in again]
    desk.merged(desk.contribute(A, 1, 1))
    later = pulls(desk.report(B) + desk.report(A, after_s=9.0))
    assert {A, B} == {peer for peer, *_ in later}


def settle(desk):
    """Syncs 1 and 2 are done, by both learners, and every estimate has its first samples."""
    desk.report(A)
    close(desk, 1)
    desk.at += 1.0
    desk.report(B)
    desk.report(A, versions=(0, 1, 0), steps=(2, 1, 2))
    close(desk, 2)
    close(desk, 3)
    assert not desk.machine._under_way.syncs


def close(desk, t):
    """A sync gets every answer, and is merged."""
    sync = desk.machine._under_way.syncs.get(t)
    if sync is None:
        return
    effects = []
    for peer in sync.pulled:
        effects = desk.contribute(peer, t, sync.fragment)
    desk.merged(effects)


def test_shares_are_in_learner_order(open_desk):
    """Names as bytes, whatever the order of arrival: learner-0, learner-1, learner-10."""
    desk = open_desk(A, B, C, quorum=3)
    for peer in (C, B, A):
        effects = desk.report(peer)
    assert [A, B, C] == [peer for peer, t, _ in pulls(effects) if t == 1]
    desk.contribute(C, 1, 1, steps=1)
    desk.contribute(A, 1, 1, steps=2)
    (merge,) = of(MergeFragment, desk.contribute(B, 1, 1, steps=3))
    assert [(A, 128.0), (B, 192.0), (C, 64.0)] == [(s.name, s.weight) for s in merge.shares]


def test_everybody_is_told_also_who_took_no_part(open_desk):
    """A merged fragment goes to all learners, and its old arrays are dropped."""
    desk = open_desk(A, B, C)
    desk.report(A)
    effects = desk.merged(desk.contribute(A, 1, 1))
    assert [(p, 1, 1) for p in (A, B, C)] == [
        (peer, body.fragment, body.version) for peer, body in said(GlobalFragment, effects)
    ]
    assert {"theta/1/1", "momentum/1/1", "wire/1/1"} <= set(desk.holders)
    assert not {"theta/1/0", "wire/1/0"} & set(desk.holders)


def test_as_many_syncs_as_the_overlap_allows(open_desk):
    """Two are under way with an overlap of two, of different fragments, and not a third."""
    desk = open_desk(A, B, overlap=2, grace=0.0)
    launched = pulls(desk.report(A)) + pulls(desk.report(B)) + pulls(desk.report(A, after_s=9.0))
    assert [(1, 1), (2, 2)] == sorted({(t, p) for _, t, p in launched})
    desk.report(B)
    later = pulls(desk.merged(desk.contribute(A, 1, 1, after_s=2.0)))
    assert {(3, 0)} == {(t, p) for _, t, p in later}


def test_never_two_syncs_of_one_fragment(make_job, leaves):
    """With a single fragment the overlap has nothing to overlap."""
    desk = Desk(make_job(1, 1, 4, 40, overlap=3), leaves)
    desk.open()
    desk.tell(PeerJoined(A, A))
    assert 1 == len(pulls(desk.report(A, versions=(0,), steps=(1,))))
    for _ in range(9):
        assert [] == pulls(desk.report(A, versions=(0,), steps=(2,), after_s=1.0))


def test_a_late_contribution_is_refused(open_desk):
    """After the deadline the sync goes on without whoever is late, and says who."""
    desk = open_desk(A, B, quorum=2)
    desk.report(A)
    desk.report(B)
    desk.contribute(A, 1, 1)
    (merge,) = of(MergeFragment, desk.tell(TimerFired("pull/1"), after_s=10.0))
    assert [A] == [share.name for share in merge.shares]
    (refusal,) = observed("refused", desk.contribute(B, 1, 1))
    assert (B, 1) == (refusal["learner"], refusal["t"])


def test_every_pull_has_a_deadline(open_desk):
    """A launch sets the timer that ends its wait for answers."""
    desk = open_desk(A)
    (deadline,) = [t for t in of(SetTimer, desk.report(A)) if t.timer == "pull/1"]
    assert desk.at < deadline.at <= desk.at + 60.0


def test_a_sync_without_answers_is_repeated(open_desk):
    """With no part at the deadline the same global step is launched again, later."""
    desk = open_desk(A, overlap=1)
    assert [(A, 1, 1)] == pulls(desk.report(A))
    effects = desk.tell(TimerFired("pull/1"), after_s=10.0)
    assert ([1], []) == ([f["t"] for f in observed("sync repeated", effects)], pulls(effects))
    assert [(A, 1, 1)] == pulls(desk.report(A, after_s=1.0))


def test_a_sync_closes_when_whoever_is_missing_is_lost(open_desk):
    """A learner that dies after its pull is not waited for."""
    desk = open_desk(A, B, quorum=2)
    desk.report(A)
    desk.report(B)
    desk.contribute(A, 1, 1)
    assert 1 == len(of(MergeFragment, desk.tell(PeerLost(B, "gone"))))


def test_no_tokens_are_merged_twice(open_desk):
    """Whoever contributed and still shows its old base is not pulled, nor taken if it insists."""
    desk = open_desk(A, B, steps=40, overlap=1, grace=0.0)
    desk.report(A)
    desk.merged(desk.contribute(A, 1, 1))
    for t, fragment in ((2, 2), (3, 0)):
        desk.report(A, after_s=2.0)
        desk.merged(desk.contribute(A, t, fragment))
    assert [] == pulls(desk.report(A, after_s=2.0)), "fragment 1 is due, and A shows version 0"
    assert [(B, 4, 1)] == pulls(desk.report(B))
    assert "does not answer" not in str(observed("refused", desk.contribute(A, 4, 1)))
    assert [B] == [s.name for s in of(MergeFragment, desk.contribute(B, 4, 1))[0].shares]


def test_nor_after_a_new_handshake(open_desk):
    """What was merged of an incarnation is known across its sessions."""
    desk = open_desk(A, steps=40, overlap=1)
    desk.report(A)
    desk.merged(desk.contribute(A, 1, 1))
    for t, fragment in ((2, 2), (3, 0)):
        desk.report(A, after_s=2.0)
        desk.merged(desk.contribute(A, t, fragment))
    desk.tell(PeerLost(A, "gap"))
    desk.tell(PeerJoined(A, A))
    effects = desk.report(A, after_s=2.0)
    assert [] == pulls(effects)
    assert [(1, 1), (2, 2)] == sorted(
        (b.fragment, b.version) for _, b in said(GlobalFragment, effects) if b.fragment
    )
    assert [(A, 4, 1)] == pulls(desk.report(A, after_s=2.0, versions=(3, 1, 2)))
    (refusal,) = observed("refused", desk.contribute(A, 4, 1, base=0))
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
def test_a_contribution_that_cannot_be_is_refused(open_desk, change, reason):
    """It is observed with its learner and the reason, and its array is not kept."""
    desk = open_desk(A)
    desk.report(A)
    held = dict(desk.holders)
    (refusal,) = observed(
        "refused", desk.contribute(**{"peer": A, "t": 1, "fragment": 1, **change})
    )
    assert A == refusal["learner"]
    assert reason in refusal["reason"]
    assert held == desk.holders


def test_a_second_answer_is_refused(open_desk):
    """One pull, one contribution."""
    desk = open_desk(A, B, quorum=2)
    desk.report(A)
    desk.report(B)
    desk.contribute(A, 1, 1)
    assert observed("refused", desk.contribute(A, 1, 1))


def test_what_the_merge_refuses_is_attributed(open_desk):
    """A contribution that the merge refuses is named; the others are merged."""
    desk = open_desk(A, B, quorum=2)
    desk.report(A)
    desk.report(B)
    desk.contribute(A, 1, 1)
    effects = desk.merged(desk.contribute(B, 1, 1), refused=[(B, "not finite")])
    assert [{"learner": B, "t": 1, "fragment": 1, "reason": "not finite"}] == observed(
        "refused", effects
    )
    assert [[A]] == [fields["learners"] for fields in observed("merge", effects)]
    # B gets version 0 first, then 1; of the two it is the newer that would wait for credit.
    told = [(peer, body.version, body.instead) for peer, body in said(GlobalFragment, effects)]
    assert [(B, 0, True), (A, 1, False), (B, 1, False)] == told
    assert not [handle for handle in desk.holders if handle.startswith("in/")]


def test_when_all_are_refused_the_version_stays(open_desk):
    """Nothing is merged, the new arrays are dropped, and the sync is repeated.

    Whoever was refused gets what there is, instead of what it has.
    """
    desk = open_desk(A, overlap=1)
    desk.report(A)
    before = {h: n for h, n in desk.holders.items() if not h.startswith("in/")}
    effects = desk.merged(desk.contribute(A, 1, 1), refused=[(A, "not finite")])
    assert [(A, GlobalFragment(1, 0, instead=True))] == said(GlobalFragment, effects)
    assert [1] == [fields["t"] for fields in observed("sync repeated", effects)]
    assert before == desk.holders
    assert [(A, 1, 1)] == pulls(desk.report(A, after_s=1.0)), "its tokens were not merged"


def refused_whole(desk, times):
    """Whatever A contributes is refused, so often; the effects of the last merge."""
    effects = []
    for _ in range(times):
        pulled = pulls(desk.report(A, after_s=1.0))
        (_, t, p) = pulled[0]
        effects = desk.merged(desk.contribute(A, t, p), refused=[(A, "tensor 0: NaN or Inf")])
    return effects


def test_a_job_of_which_nothing_is_believed_any_more_fails(open_desk, monkeypatch):
    """It would repeat for ever: a model that makes NaN of everything does not come back. The line
    says why; one accepted contribution in between and it is counted anew."""
    monkeypatch.setattr("ddloco.machines.syncer.machine.FRUITLESS_MAX", 5)
    desk = open_desk(A, overlap=1)
    refused_whole(desk, 4)
    pulled = pulls(desk.report(A, after_s=1.0))
    assert observed("merge", desk.merged(desk.contribute(A, *pulled[0][1:])))
    assert [] == of(Evaluate, refused_whole(desk, 4))
    effects = refused_whole(desk, 1)
    assert of(Evaluate, effects), "what there is is still scored and kept"
    reason = "nothing was believed in 5 syncs in a row: tensor 0: NaN or Inf"
    assert [(A, reason)] == [(peer, body.reason) for peer, body in said(Stop, effects)]
    assert "failed" == desk.machine._shutdown.status


def test_a_false_report_is_refused(open_desk):
    """A report of other fragments, or of a step before the last, changes nothing."""
    desk = open_desk(A)
    desk.report(A, step=5, steps=(0,) * P)
    assert observed("refused", desk.report(A, step=4))
    assert observed("refused", desk.report(A, step=6, versions=(0,), steps=(1,)))
    assert 5 == desk.machine._members[A].progress.step


def test_strangers_change_nothing(open_desk):
    """What comes from nobody who has joined has no effect."""
    desk = open_desk()
    assert [] == desk.report(A)
    assert [] == desk.contribute(A, 1, 1)


def test_a_peer_may_go_by_another_name(open_desk):
    """A learner whose lanes carry its name without number is merged like any other."""
    desk = open_desk()
    desk.tell(PeerJoined("learner-0", A))
    desk.report("learner-0")
    effects = desk.merged(desk.contribute("learner-0", 1, 1))
    assert [["learner-0"]] == [fields["learners"] for fields in observed("merge", effects)]


# Staleness and repair.


def behind(open_desk, staleness):
    """A syncer whose fragment 1 is at version 4, merged from B; A still shows version 0."""
    desk = open_desk(A, B, steps=40, overlap=1, grace=0.0, staleness=staleness, pull="fresh")
    for t in (1, 2, 3, 4):
        fragment = t % P
        base = {4: 1}.get(t, 0)
        desk.report(B, after_s=2.0, versions=(0, base, 0), steps=(1,) * P)
        desk.merged(desk.contribute(B, t, fragment, base=base))
    for t in (5, 6):
        desk.report(B, after_s=2.0, versions=(3, 4, 2))
        desk.merged(desk.contribute(B, t, t % P, base={5: 2, 6: 3}[t]))
    return desk


@pytest.mark.parametrize(("staleness", "pulled"), [(1, []), (2, [(A, 7, 1)])])
def test_who_is_too_far_behind_is_not_pulled(open_desk, staleness, pulled):
    """Version 0 lags version 4 by more than one interval of three, and by less than two."""
    desk = behind(open_desk, staleness)
    assert pulled == pulls(desk.report(A, after_s=2.0))
    assert 1 == len(pulls(desk.report(B, versions=(6, 4, 5)))) + len(pulled)


def test_a_stale_contribution_is_refused(open_desk):
    """Whoever was pulled with a newer base and answers with a stale one is not merged."""
    desk = behind(open_desk, 1)
    assert [(A, 7, 1)] == pulls(desk.report(A, after_s=2.0, versions=(6, 4, 5)))
    (refusal,) = observed("refused", desk.contribute(A, 7, 1, base=0))
    assert "the oldest that is taken is 1" in refusal["reason"]
    (merge,) = of(MergeFragment, desk.contribute(A, 7, 1, base=1))
    assert [(A, 1)] == [(share.name, share.base) for share in merge.shares]


def test_what_does_not_arrive_is_sent_again(open_desk):
    """A version that a learner does not show for half a minute is sent once more, and once."""
    desk = open_desk(A, B, steps=40)
    desk.report(A)
    desk.merged(desk.contribute(A, 1, 1))
    shown = {"versions": (0, 1, 0), "steps": (2, 1, 2)}
    assert [] == said(GlobalFragment, desk.report(A, after_s=1.0, **shown))
    assert [] == said(GlobalFragment, desk.report(B, after_s=RESEND_S_MIN - 2.0))
    assert [(B, GlobalFragment(1, 1))] == said(GlobalFragment, desk.report(B, after_s=2.0))
    assert [] == said(GlobalFragment, desk.report(B, after_s=1.0))
    assert [] == said(GlobalFragment, desk.report(A, after_s=99.0, **shown))


# Incarnations.


def test_a_newer_incarnation_takes_the_place_of_the_older(open_desk):
    """The older one is refused, its part in a sync is not waited for, and it changes nothing."""
    desk = open_desk(A, B, quorum=2, overlap=1, steps=40)
    desk.report(A)
    assert 2 == len(pulls(desk.report(B)))
    desk.contribute(B, 1, 1)
    effects = desk.tell(PeerJoined(A2, A2))

    assert [(A, True)] == [(each.peer, each.final) for each in of(Hangup, effects)]
    assert [Retire({"learner-0": 2})] == of(Retire, effects)
    floors = {"learner-0": 2}
    assert [(A2, floors), (B, floors)] == [(p, b.floors) for p, b in said(Roster, effects)]
    assert [[B]] == [[share.name for share in merge.shares] for merge in of(MergeFragment, effects)]
    assert [A2] == [fields["learner"] for fields in observed("joined", effects)]
    assert [] == desk.report(A)
    assert [] == desk.contribute(A, 1, 1)
    assert [] == desk.tell(PeerLost(A, "late"))


def test_a_late_older_incarnation_is_refused(open_desk):
    """It is told never to dial again, is observed, and has no part in anything."""
    desk = open_desk(A2, B)
    effects = desk.tell(PeerJoined(A, A))
    assert [(A, True)] == [(each.peer, each.final) for each in of(Hangup, effects)]
    assert [A] == [fields["learner"] for fields in observed("refused", effects)]
    assert [] == of(Send, effects)
    assert [] == desk.report(A)


def test_what_came_before_the_newer_one_is_still_merged(open_desk):
    """A contribution that had arrived was trained, whoever has its place now."""
    desk = open_desk(A, B, quorum=2, overlap=1, steps=40)
    desk.report(A)
    desk.report(B)
    desk.contribute(A, 1, 1)
    desk.tell(PeerJoined(A2, A2))
    (merge,) = of(MergeFragment, desk.contribute(B, 1, 1))
    assert [A, B] == [share.name for share in merge.shares]


def test_at_the_end_a_newer_incarnation_is_told_to_stop(open_desk):
    """Also where its older one has been told."""
    desk, _ = stopping(open_desk, A)
    effects = desk.tell(PeerJoined(A2, A2))
    assert [A2] == [peer for peer, _ in said(Stop, effects)]
    assert [A] == [each.peer for each in of(Hangup, effects)]


# What is believed.


def refused_in_turn(desk, times):
    """A's contributions are refused by those who merge, B's are not; the effects of each merge."""
    t, told = 1, []
    for _ in range(times):
        p = (t - 1) % P
        versions = desk.machine.status(desk.at).versions
        for peer in (A, B):
            effects = desk.report(peer, versions=tuple(versions), after_s=1.0)
        t = pulls(effects)[0][1]
        p = pulls(effects)[0][2]
        desk.contribute(A, t, p, base=versions[p])
        merge = desk.contribute(B, t, p, base=versions[p])
        told.append(desk.merged(merge, refused=((A, "norm 9, 1 at most"),)))
    return told


def test_three_refusals_in_a_row_and_everything_is_sent(open_desk):
    """To be taken instead of what was trained; the log and whoever asks are told of whom and why;
    then it is counted anew."""
    desk = open_desk(A, B, quorum=2, overlap=1, steps=40, staleness=30)
    for index, effects in enumerate(refused_in_turn(desk, 6)):
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
    (member, _) = desk.machine.status(desk.at).members
    assert (A, 6, "norm 9, 1 at most") == (member.learner, member.refused, member.refused_for)


def test_one_that_is_merged_in_between_is_no_row(open_desk):
    """Two refusals, a merge, two refusals: nobody starts over."""
    desk = open_desk(A, B, quorum=2, overlap=1, steps=40, staleness=30)
    effects = refused_in_turn(desk, 2)
    versions = desk.machine.status(desk.at).versions
    for peer in (A, B):
        pulled = desk.report(peer, versions=tuple(versions), after_s=1.0)
    (_, t, p), _ = pulls(pulled)
    desk.contribute(A, t, p, base=versions[p])
    desk.merged(desk.contribute(B, t, p, base=versions[p]))
    effects += refused_in_turn(desk, 2)
    assert [] == [fields for each in effects for fields in observed("starts over", each)]


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        ({"tokens": 8000}, "more tokens than steps allow: 8000 in 1"),
        ({"steps": 50, "step": 9}, "more steps than it has taken: 50 of 9"),
    ],
)
def test_what_cannot_have_been_trained_is_refused(open_desk, claim, reason):
    """With what is usual, or possible, in the reason; without a band everything is believed."""
    for band in (32.0, 0.0):
        desk = open_desk(A, B, quorum=2, overlap=1, steps=40, staleness=30, band=band)
        for _ in range(3):
            versions = desk.machine.status(desk.at).versions
            for peer in (A, B):
                pulled = desk.report(peer, versions=versions, after_s=1.0)
            (_, t, p), _ = pulls(pulled)
            desk.contribute(A, t, p, base=versions[p])
            desk.merged(desk.contribute(B, t, p, base=versions[p]))
        versions = desk.machine.status(desk.at).versions
        for peer in (A, B):
            pulled = desk.report(peer, versions=versions, after_s=1.0)
        (_, t, p), _ = pulls(pulled)
        plain = {"t": t, "fragment": p, "base": versions[p], "step": 4, "steps": 1, "tokens": 8}
        refused = observed("refused", desk.say(A, Contribution(**{**plain, **claim})))
        assert bool(band) == bool(refused)
        assert all(each["learner"] == A and reason in each["reason"] for each in refused)


# Recovery.


KEPT = (Kept(1, 4, {A: 1, C: 1}, {}, b"digest"), Kept(2, 5, {A: 2}, {}, b"digest"))
"""What a syncer had merged of fragments 1 and 2 when it died."""


@pytest.fixture
def recovered(make_job, leaves):
    """A second incarnation that has found what was kept."""

    def made(kept=KEPT, **sync):
        desk = Desk(
            make_job(3, P, P, 40, **{"overlap": 1, "grace": 0.0, **sync}), leaves, "syncer.2"
        )
        desk.found, desk.made = desk.open(kept)
        return desk

    return made


@pytest.fixture
def budget(make_job, leaves):
    """A syncer of three fragments in a job of 24 tokens; one learner with 8 a step."""

    def made(kept=(), tokens=24, incarnation="syncer.1"):
        job = make_job(1, P, P, 500, overlap=1, grace=0.0)
        desk = Desk(replace(job, job=replace(job.job, tokens=tokens)), leaves, incarnation)
        desk.opened = desk.open(kept)
        return desk

    return made


def merge_next(desk, step):
    """The learner's next step is merged: the effects of the merge, and its work."""
    desk.machine.handle(desk.at, PeerJoined(A, A)) if step == 1 else None
    t = step
    versions = tuple(max([0, *(u for u in range(1, t) if u % P == p)]) for p in range(P))
    asked = desk.report(A, 30.0, versions=versions, step=step)
    [(_, t, fragment)] = pulls(asked)
    effects = desk.contribute(A, t, fragment, base=versions[fragment], step=step)
    [merge] = of(MergeFragment, effects)
    return merge, desk.merged(effects)


def test_a_job_ends_when_its_tokens_are_merged(budget):
    """On average over the fragments: 8 in each of three merges of three fragments are 24 in each;
    the merge says what was counted, for whoever comes after it."""
    desk = budget()
    for step in range(1, 9):
        merge, effects = merge_next(desk, step)
        before = 8 * ((step - 1) // P)
        assert MergeTokens({A: 8}, before) == merge.tokens
        assert before + 8 == merge.tokens.after([A])
        assert not of(Evaluate, effects)
        assert 8 * step // P == desk.machine.status(desk.at).merged_tokens
    _, effects = merge_next(desk, 9)

    assert of(Evaluate, effects)
    assert "24 merged tokens" in {body.reason for _, body in said(Stop, effects)}


def test_without_a_budget_tokens_are_not_counted(make_job, leaves):
    """The merge is on tapes what it always was."""
    desk = Desk(make_job(1, P, P, 500, overlap=1, grace=0.0), leaves)
    desk.open()
    merge, _ = merge_next(desk, 1)

    assert merge.tokens is None
    assert desk.machine.status(desk.at).merged_tokens is None


def test_whoever_comes_back_goes_on_counting(budget):
    """From what was kept with the fragments; a job that was over is over."""
    desk = budget([Kept(p, p + 3, {}, {}, b"digest", 16) for p in range(P)], incarnation="syncer.2")
    assert 16 == desk.machine.status(0.0).merged_tokens
    assert not of(Evaluate, desk.opened[1])
    over = budget([Kept(p, p + 3, {}, {}, b"digest", 24) for p in range(P)], incarnation="syncer.2")

    assert of(Evaluate, over.opened[1])


def test_only_what_was_not_kept_is_made(recovered):
    """Fragment 0 is made anew; of the others the arrays that were found are held."""
    desk = recovered()
    assert [(0,)] == [make.fragments for make in of(MakeParameters, desk.found)]
    assert [{"t": 5, "fragments": 2}] == observed("recovered", desk.found)
    parts = {
        f"{kind}/{p}/{v}" for p, v in ((1, 4), (2, 5)) for kind in ("theta", "momentum", "wire")
    }
    assert dict.fromkeys([*parts, "theta/0/0", "wire/0/0"], 1) == desk.holders
    assert 1 == len(of(Listen, desk.made))


def test_where_all_was_kept_nothing_is_made(recovered):
    """The parameters are asked for all the same, of no fragment, and then it listens."""
    desk = recovered([Kept(p, p + 3, {}, {}, b"digest") for p in range(P)])
    assert [()] == [make.fragments for make in of(MakeParameters, desk.found)]
    assert of(Listen, desk.made)


def test_at_the_first_start_nothing_was_kept(recovered):
    """Nothing is said to be recovered."""
    desk = recovered(())
    assert [] == observed("recovered", desk.found)
    assert {f"{kind}/{p}/0" for p in range(P) for kind in ("theta", "wire")} == set(desk.holders)


def test_learners_get_the_versions_that_were_kept(recovered):
    """Whoever joins is sent what it lacks of them."""
    desk = recovered()
    desk.tell(PeerJoined(B, B))
    effects = desk.report(B, versions=(0, 4, 2), step=5)
    assert [(B, GlobalFragment(2, 5))] == said(GlobalFragment, effects)


def test_it_goes_on_after_the_newest_that_was_kept(recovered):
    """Global step 6 comes after 5; what was launched and not merged is due an interval later."""
    desk = recovered()
    desk.tell(PeerJoined(B, B))
    assert [(B, 6, 0)] == pulls(desk.report(B, versions=(0, 4, 5), step=5))
    effects = desk.merged(desk.contribute(B, 6, 0))
    (merge,) = observed("merge", effects)
    assert (6, [B]) == (merge["t"], merge["learners"])
    later = desk.report(B, versions=(6, 4, 5), after_s=3.0)
    assert [(B, 7, 1)] == pulls(later)
    (merge,) = of(MergeFragment, desk.contribute(B, 7, 1, base=4))
    assert ("theta/1/4", "momentum/1/4") == (merge.theta, merge.momentum)


def test_what_was_spent_is_not_merged_again(recovered):
    """Bases that a former syncer merged: not pulled, refused if it comes, and kept on."""
    desk = recovered(staleness=2)
    for peer in (A, B):
        desk.tell(PeerJoined(peer, peer))
    desk.report(B, versions=(0, 4, 5), step=5)
    desk.merged(desk.contribute(B, 6, 0))
    assert [] == pulls(desk.report(A, versions=(6, 1, 5), step=5, after_s=3.0))
    assert [(B, 7, 1)] == pulls(desk.report(B, versions=(6, 4, 5)))
    assert "came after" in observed("refused", desk.contribute(A, 7, 1, base=1))[0]["reason"]
    (merge,) = of(MergeFragment, desk.contribute(B, 7, 1, base=4))
    assert ({A: 1, C: 1}, [(B, 4)]) == (merge.spent, [(s.name, s.base) for s in merge.shares])


def test_who_insists_on_what_was_spent_is_refused(recovered):
    """Pulled with a new base, answered from the spent one."""
    desk = recovered(staleness=2)
    desk.tell(PeerJoined(A, A))
    desk.report(A, versions=(0, 4, 5), step=5)
    desk.merged(desk.contribute(A, 6, 0))
    assert [(A, 7, 1)] == pulls(desk.report(A, versions=(6, 4, 5), step=6, after_s=3.0))
    (refusal,) = observed("refused", desk.contribute(A, 7, 1, base=1))
    assert "merged already" in refusal["reason"]


def test_what_this_syncer_merges_is_spent_too(recovered):
    """The next merge of a fragment names the bases of all before it, per incarnation the last."""
    desk = recovered(staleness=3)
    for peer in (A, B):
        desk.tell(PeerJoined(peer, peer))
    for t in (6, 7, 8, 9):
        bases = (0 if t < 7 else 6, 4, 5)
        desk.report(A, versions=bases, after_s=3.0)
        effects = desk.contribute(A, t, t % P, base=bases[t % P])
        if t < 9:
            desk.merged(effects)
    (merge,) = of(MergeFragment, effects)
    assert (0, {A: 0}) == (merge.fragment, merge.spent)


def test_the_dead_syncer_is_retired(recovered):
    """Learners are told that its former incarnation will not be heard of again."""
    desk = recovered()
    (roster,) = [body for _, body in said(Roster, desk.tell(PeerJoined(B, B)))]
    assert 2 == roster.floors["syncer"]


def test_who_was_retired_before_the_crash_stays_so(recovered):
    """A newer incarnation that is known from a merge keeps its place."""
    desk = recovered([Kept(1, 4, {A2: 1}, {}, b"digest")])
    assert [(A, True)] == [(e.peer, e.final) for e in of(Hangup, desk.tell(PeerJoined(A, A)))]


def test_a_model_with_parts_as_initialized_is_no_success(recovered):
    """All global steps are through, and a fragment that was due was never merged: the model is
    kept, and the job has failed, with the fragment named."""
    desk = recovered([Kept(p, 38 + p, {}, {}, b"digest") for p in range(3) if p != 1])
    [saving], [evaluating] = of(SaveModel, desk.made), of(Evaluate, desk.made)
    ended = [
        *desk.tell(ModelSaved(saving.work, b"digest")),
        *desk.tell(Evaluated(evaluating.work, 1.0)),
    ]
    [finish] = of(Finish, ended)
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
    desk = Desk(job, leaves, "syncer.2")
    _, made = desk.open([Kept(p, version if p == 1 else 98 + p, {}, {}, b"d") for p in range(P)])
    [saving], [evaluating] = of(SaveModel, made), of(Evaluate, made)
    desk.tell(ModelSaved(saving.work, b"digest"))
    desk.tell(Evaluated(evaluating.work, 1.0))
    assert desk.machine._shutdown.reason == reason


def test_who_stops_a_job_that_stands_still_is_told_so(open_desk):
    """The end is in good order, the model is kept, and it is no success."""
    desk = open_desk(A, B)
    desk.at += 10_000.0
    effects = desk.tell(StopRequested("enough"))
    [saving], [evaluating] = of(SaveModel, effects), of(Evaluate, effects)
    ended = [
        *desk.tell(ModelSaved(saving.work, b"digest")),
        *desk.tell(Evaluated(evaluating.work, 1.0)),
        *desk.tell(PeerLost(A, "bye")),
        *desk.tell(PeerLost(B, "bye")),
    ]
    [finish] = of(Finish, ended)
    assert "failed" == finish.status
    assert finish.reason.startswith("enough; no merge for 10000 s: waits for ")


def test_a_job_that_was_through_is_told_to_those_who_come_late(recovered):
    """A syncer that is started again after the end stays for a while, says so to whoever comes, and
    leaves when its patience is over."""
    last = [Kept(p, 38 + p, {}, {}, b"digest") for p in range(3)]
    desk = recovered(last)
    [saving], [evaluating] = of(SaveModel, desk.made), of(Evaluate, desk.made)
    ended = desk.tell(ModelSaved(saving.work, b"digest")) + desk.tell(
        Evaluated(evaluating.work, 1.0)
    )
    assert [] == of(Finish, ended)

    joined = desk.tell(PeerJoined(A, A), after_s=LATE_S / 2)
    assert [A] == [peer for peer, _ in said(Stop, joined)]
    assert [] == of(Finish, desk.tell(PeerLost(A, "bye")))
    assert ["done"] == [each.status for each in of(Finish, desk.tell(TimerFired(SHUTDOWN)))]


@pytest.mark.parametrize("done", [True, False])
def test_the_lead_of_shards_knows_that_the_job_was_done(make_job, leaves, done):
    """Started again without its shards, it tells who comes late, and it is no failure; unless the
    job was never done."""
    job = make_job(3, P, P, 40, overlap=1, grace=0.0)
    job = replace(job, job=replace(job.job, syncers=2))
    desk = Desk(job, leaves, "syncer-0.2")
    kept = [Kept(p, 38 + p, {}, {}, b"digest") for p in range(0, P, 2)]
    _, made = desk.open(kept, done=done)
    assert [SHARDS] == [e.timer for e in of(SetTimer, made) if e.timer == SHARDS]
    assert [] == said(Stop, desk.tell(PeerJoined(A, A)))

    alone = desk.tell(TimerFired(SHARDS), after_s=LATE_S)
    assert [] == of(Evaluate | SaveModel, alone)
    assert [A] == [peer for peer, _ in said(Stop, alone)]
    desk.tell(PeerLost(A, "bye"))
    ended = desk.tell(TimerFired(SHUTDOWN), after_s=LATE_S)
    if done:
        assert [Finish("done", "global step 40")] == of(Finish, ended)
    else:
        assert desk.machine._shutdown.status == "failed"


@pytest.mark.parametrize("stopped", [True, False])
def test_a_job_that_was_done_is_done_again_with_its_shards(make_job, leaves, stopped):
    """With all of them there, the model is evaluated and saved as ever; a stop stays a stop."""
    job = make_job(3, P, P, 40, overlap=1, grace=0.0)
    job = replace(job, job=replace(job.job, syncers=2))
    desk = Desk(job, leaves, "syncer-0.2")
    desk.open([Kept(p, 38 + p, {}, {}, b"digest") for p in range(0, P, 2)], done=True)
    if stopped:
        desk.tell(StopRequested("enough"))
        desk.tell(TimerFired(SHARDS), after_s=LATE_S)
        assert desk.machine._shutdown.status == "failed"
        return
    desk.tell(PeerJoined("syncer-1.2", "syncer-1.2"))
    desk.say("syncer-1.2", GlobalFragment(1, 39), handle="in/final")
    effects = desk.say("syncer-1.2", ShardReport(9, (-1, 39, -1), over=True))
    assert [1, 1] == [len(of(Evaluate, effects)), len(of(SaveModel, effects))]


def test_a_stop_before_the_parameters_is_not_lost(make_job, leaves):
    """Asked to end while it looks for what was kept, it ends once it could begin."""
    desk = Desk(make_job(fragments=P, interval=P), leaves)
    assert [] == desk.tell(StopRequested("enough"))
    _, made = desk.open()
    assert [1, 1] == [len(of(Evaluate, made)), len(of(SaveModel, made))]


# The end.


def stopping(open_desk, *peers, **more):
    """A syncer that was asked to stop with nothing under way, and what it did."""
    desk = open_desk(*peers, **more)
    return desk, desk.tell(StopRequested("enough"))


def test_a_stop_lets_running_syncs_end_first(open_desk):
    """What is under way is merged; nothing new begins; then everybody is told."""
    desk = open_desk(A, B, overlap=2)
    assert [(A, 1, 1)] == pulls(desk.report(A))
    assert [] == of(Evaluate | SaveModel | Finish, desk.tell(StopRequested("enough")))
    assert [] == pulls(desk.report(B, after_s=5.0))
    effects = desk.merged(desk.contribute(A, 1, 1))
    assert [A, B] == [peer for peer, _ in said(GlobalFragment, effects)]
    assert [A, B] == [peer for peer, _ in said(Stop, effects)]


def test_a_syncer_that_leaves_ends_no_job(open_desk):
    """It says goodbye to those who may dial again, tells nobody that it is over, and is gone."""
    desk = open_desk(A, B, overlap=2)
    desk.report(A)
    effects = desk.tell(LeaveRequested("moved"))
    assert {(A, False), (B, False)} == {(e.peer, e.final) for e in of(Hangup, effects)}
    assert [Finish("left", "moved")] == of(Finish, effects)
    assert [] == of(Send | Evaluate | SaveModel, effects)


def test_a_stop_belongs_to_its_run(open_desk):
    """Whoever goes on from a snapshot that was taken after it launches syncs again."""
    desk = open_desk(A, B)
    desk.report(A)
    desk.tell(StopRequested("enough"))
    assert [] == pulls(desk.report(B, after_s=5.0))
    desk.tell(Restored("syncer.1-9", ()))
    desk.merged(desk.contribute(A, 1, 1))
    assert pulls(desk.report(A, after_s=5.0) + desk.report(B, after_s=5.0))
    assert [] == of(Evaluate | SaveModel | Finish, desk.tell(TimerFired(LAUNCH)))


def test_a_run_is_settled_by_its_first_merge(open_desk):
    """From then on nobody else's members join; one that goes on from a snapshot is settled."""
    desk = open_desk(A, B)
    desk.tell(Restored("syncer.1-9", (), run="one"))
    desk.report(A)
    [listen] = of(Listen, desk.merged(desk.contribute(A, 1, 1)))
    assert ("one", True) == (listen.run, listen.settled)
    [again] = of(Listen, desk.tell(Restored("syncer.1-10", (), run="two")))
    assert ("two", True) == (again.run, again.settled)


def test_the_end_in_order(open_desk):
    """Stop to all, evaluate, save; finished when both are done and everybody has left."""
    desk, effects = stopping(open_desk, A, B)
    assert [A, B] == [peer for peer, _ in said(Stop, effects)]
    (evaluate,), (save,) = of(Evaluate, effects), of(SaveModel, effects)
    assert evaluate.fragments == save.fragments == ("theta/0/0", "theta/1/0", "theta/2/0")
    assert [] == of(Finish, desk.tell(Evaluated(evaluate.work, 2.5)))
    assert [] == of(Finish, desk.tell(ModelSaved(save.work, b"digest")))
    assert [] == of(Finish, desk.tell(PeerLost(A, "bye")))
    assert [Finish("stopped", "enough")] == of(Finish, desk.tell(PeerLost(B, "bye")))


def test_the_last_global_step_ends_the_job(open_desk):
    """After the merge of the last step the syncer winds up by itself, and is done."""
    desk = open_desk(A, steps=1)
    desk.report(A)
    effects = desk.merged(desk.contribute(A, 1, 1))
    assert [(A, Stop(1, "global step 1"))] == said(Stop, effects)
    desk.tell(PeerLost(A, "bye"))
    desk.tell(Evaluated(of(Evaluate, effects)[0].work, None))
    finish = desk.tell(ModelSaved(of(SaveModel, effects)[0].work, b"digest"))
    assert [Finish("done", "global step 1")] == of(Finish, finish)


def test_whoever_does_not_leave_is_left_behind(open_desk):
    """The shutdown timer bounds how long the syncer waits for goodbyes."""
    desk, effects = stopping(open_desk, A)
    (shutdown,) = [timer for timer in of(SetTimer, effects) if timer.timer == SHUTDOWN]
    assert 3.0 <= shutdown.at - desk.at <= 60.0
    desk.tell(Evaluated(of(Evaluate, effects)[0].work, None))
    desk.tell(ModelSaved(of(SaveModel, effects)[0].work, b"digest"))
    assert of(Finish, desk.tell(TimerFired(SHUTDOWN), after_s=shutdown.at))


def test_a_goodbye_after_the_farewell_is_no_surprise(open_desk):
    """A learner that leaves after it was left behind, with the model not saved yet, is fine."""
    desk, effects = stopping(open_desk, A)
    desk.tell(TimerFired(SHUTDOWN), after_s=60.0)
    desk.tell(PeerLost(A, "bye"))
    desk.tell(PeerJoined(B, B))
    desk.tell(Evaluated(of(Evaluate, effects)[0].work, None))
    assert of(Finish, desk.tell(ModelSaved(of(SaveModel, effects)[0].work, b"digest")))


def test_whoever_joins_at_the_end_is_told(open_desk):
    """A learner that comes (back) while the job winds up is told to stop, too."""
    desk, _ = stopping(open_desk, A)
    desk.tell(PeerLost(A, "gap"))
    assert [A] == [peer for peer, _ in said(Stop, desk.tell(PeerJoined(A, A)))]


def test_a_model_that_cannot_be_saved_ends_the_job(open_desk):
    """A failed save is a failure of the job, also when it comes before the evaluation's end."""
    desk, effects = stopping(open_desk, A)
    failed = WorkFailed(of(SaveModel, effects)[0].work, "worker", "disk full")
    assert [Finish("failed", "disk full")] == of(Finish, desk.tell(failed))


def test_a_model_that_cannot_be_scored_is_still_saved(open_desk):
    """A failed evaluation is observed, and the job ends as it would."""
    desk, effects = stopping(open_desk)
    failed = desk.tell(WorkFailed(of(Evaluate, effects)[0].work, "task", "no data"))
    assert [{"reason": "no data"}] == observed("not evaluated", failed)
    done = desk.tell(ModelSaved(of(SaveModel, effects)[0].work, b"digest"))
    assert ["stopped"] == [finish.status for finish in of(Finish, done)]


@pytest.mark.parametrize(("kind", "status"), [("task", "bad-input"), ("worker", "failed")])
def test_failed_work_ends_the_job(open_desk, kind, status):
    """Everybody is told goodbye, and the finish says whose fault it was."""
    effects = open_desk(B, A).tell(WorkFailed(7, kind, "it broke"))
    assert [A, B] == [each.peer for each in of(Hangup, effects)]
    assert [Finish(status, "it broke")] == of(Finish, effects)
