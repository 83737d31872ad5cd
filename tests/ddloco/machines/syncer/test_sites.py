"""The syncer with relays: what goes through them, and what becomes of it when they fail."""

import pytest
from msgspec.structs import replace

from ddloco.job.config import RelayTable
from ddloco.job.protocol.messages import (
    Contribution,
    ContributionSum,
    GlobalFragment,
    Pull,
    RelayReport,
    Roster,
    Spread,
    Stop,
    SumWanted,
)
from ddloco.job.protocol.timers import LaunchDue, PullDeadline, SumsDeadline
from ddloco.job.protocol.work import FragmentMerged, Measured, MergeFragment
from ddloco.machines.syncer.members import RESEND_S_MIN
from ddloco.machines.syncer.rounds import SUM_WAIT
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.events import StopRequested
from tests.ddloco.machines.syncer.test_machine import A, B, Harness, P, observed, of, pulls, said
from transport import BULK, Hangup, LaneAdvanced, PeerJoined, PeerLost, Retire, SetTimer, TimerFired

C, RELAY = "learner-2.1", "relay-0.1"


class SiteHarness(Harness):
    """A syncer with a relay for A and B; C has none."""

    def merge_all(self, version):
        """Merge each fragment once, directly, up to a version; all learners report it."""
        versions = [0] * P
        for t in range(1, version + 1):
            for peer in (A, B, C):
                self.report(peer, 1.0, tuple(versions))
            self.tell(TimerFired(LaunchDue()))
            p = self.machine.rounds.syncs[t].fragment
            effects = []
            for peer in (A, B, C):
                effects = self.contribute(peer, t, p, versions[p])
            self.merged(effects)
            versions[p] = t
        return tuple(versions)

    def link(self, versions, learners=None):
        """The relay joins, and reports."""
        learners = {A: 1, B: 2} if learners is None else learners
        joined = self.tell(PeerJoined(RELAY, RELAY))
        return joined, self.say(RELAY, RelayReport(versions, learners), handle="")

    def relayed(self, peer, t, fragment, base, steps=1):
        """A learner sends its payload to the relay, and tells the syncer."""
        step = max(self.steps.get(peer, 1), steps)
        body = Contribution(t, fragment, base, step, steps, 8 * steps, relay="relay-0")
        return self.say(peer, body, handle="")

    def answer(self, t, fragment, names, **more):
        """The relay sends its sum."""
        handle = more.pop("handle", "in/sum" if names else "")
        sync = self.machine.rounds.syncs.get(t)
        number = more.pop("number", sync.sums_wanted if sync is not None else 0)
        body = ContributionSum(t, fragment, number, tuple(names), (1.0, 2.0), **more)
        return self.say(RELAY, body, handle=handle)


@pytest.fixture
def harness(make_job, leaves):
    """A syncer that has merged every fragment, with all learners and the relay."""
    job = replace(
        make_job(3, P, P, 30, quorum=3), relay={"relay-0": RelayTable(("learner-0", "learner-1"))}
    )
    harness = SiteHarness(job, leaves)
    harness.open()
    for peer in (A, B, C):
        harness.tell(PeerJoined(peer, peer))
        harness.report(peer, step=0, versions=(-1,) * P, steps=(0,) * P, step_s=0.0)
    harness.versions = harness.merge_all(P)
    harness.link(harness.versions)
    return harness


def relays_of(harness):
    """What the syncer knows of its relays."""
    return harness.machine.rounds.sites.relays.values()


def launch(harness):
    """All report a step; the next sync is launched. Returns its pulls."""
    effects = []
    for peer in (A, B, C):
        effects += harness.report(peer, 1.0, harness.versions)
    return [*effects, *harness.tell(TimerFired(LaunchDue()), 1.0)]


def test_pulls_name_the_relay(harness):
    """To learners that it reaches."""
    found = {peer: body.relay for peer, body in said(Pull, launch(harness))}
    assert found[A] == found[B] == "relay-0"
    assert found[C] != "relay-0"


def test_a_relay_that_lacks_the_version_is_left_out(harness):
    """It could not measure from it."""
    harness.say(RELAY, RelayReport((3, -1, 2), {A: 1, B: 2}))
    assert all(body.relay != "relay-0" for _, body in said(Pull, launch(harness)))


def test_a_merge_is_of_sums(harness):
    """And of what came directly; the result goes back the same ways."""
    launch(harness)
    harness.relayed(A, 4, 1, 1)
    harness.contribute(C, 4, 1, 1)
    asked = harness.relayed(B, 4, 1, 1)
    assert [] == of(MergeFragment, asked)
    status = harness.machine.status(harness.at)
    assert (status.relays, status.in_flight[0].sums_of) == ({RELAY: (A, B)}, (RELAY,))
    ((to, wanted),) = said(SumWanted, asked)
    assert (to, wanted.version, [each.name for each in wanted.shares]) == (RELAY, 1, [A, B])
    (timer,) = [each for each in of(SetTimer, asked) if each.timer == SumsDeadline(4)]
    assert wanted.within_s == pytest.approx(SUM_WAIT * (timer.at - harness.at))
    measured = (Measured(A, 1.0, 0.5),)
    (merge,) = of(MergeFragment, harness.answer(4, 1, [A, B], measured=measured))
    assert [share.name for share in merge.shares] == [A, B, C]
    assert [share.handle for share in merge.shares][:2] == ["in/sum"] * 2
    assert merge.sums["in/sum"].lengths == (1.0, 2.0)
    weights = [share.weight for share in merge.shares]
    assert weights == [wanted.shares[0].weight] * 3
    done = FragmentMerged(merge.work, (A, B, C), (1 / 3,) * 3, (), b"t", b"m", b"w")
    told = said(GlobalFragment, harness.tell(done))
    assert {peer: body.to for peer, body in told}[RELAY] == (A, B)
    assert {peer for peer, _ in told} == {RELAY, C}
    assert "in/sum" not in harness.holders
    merged = harness.machine.rounds.membership.merged
    assert [merged[peer][1] for peer in (A, B, C)] == [1, 1, 1]


def test_who_is_left_out_is_pulled_again(harness):
    """Its tokens are in no merge."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.contribute(C, 4, 1, 1)
    effects = harness.answer(4, 1, [A], missing=((B, "it did not come"),))
    (merge,) = of(MergeFragment, effects)
    assert [share.name for share in merge.shares] == [A, C]
    assert observed("refused", effects)[0]["reason"] == "it did not come"
    assert [] == said(GlobalFragment, effects), "what did not come is not wrong"
    assert harness.machine.rounds.membership.merged[B][1] == 0


def test_who_is_refused_by_the_relay_is_sent_the_fragment_instead(harness):
    """As if the merge had refused it."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.contribute(C, 4, 1, 1)
    effects = harness.answer(4, 1, [A], refused=((B, "norm 9"),))
    ((to, body),) = said(GlobalFragment, effects)
    assert (to, body.instead) == (B, True)


@pytest.mark.parametrize("names", [[A], [A, B, C], [A, A], [A, "learner-9.1"]])
def test_a_sum_of_others_than_were_asked_for_is_refused(harness, names):
    """All of it."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.contribute(C, 4, 1, 1)
    effects = harness.answer(4, 1, names)
    (merge,) = of(MergeFragment, effects)
    assert [share.name for share in merge.shares] == [C]
    reasons = {each["reason"] for each in observed("refused", effects)}
    assert reasons == {"the sum of relay-0 is not what was asked for"}
    assert "in/sum" not in harness.holders


@pytest.mark.parametrize("end", [PeerLost(RELAY, "gone"), TimerFired(SumsDeadline(4))])
def test_the_site_goes_on_without_its_relay(harness, end):
    """What the relay had is in no merge; what comes late is dropped."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.contribute(C, 4, 1, 1)
    effects = harness.tell(end)
    (merge,) = of(MergeFragment, effects)
    assert [share.name for share in merge.shares] == [C]
    assert len(observed("refused", effects)) == 2
    harness.at += 7.0
    number = max([0, *(n for each in relays_of(harness) for n in each.asked)])
    late = harness.answer(4, 1, [A, B], number=number) if isinstance(end, TimerFired) else []
    assert [] == of(MergeFragment, late)
    if isinstance(end, TimerFired):
        relay = harness.machine.rounds.sites.relays[RELAY]
        assert relay.answer_s.value == pytest.approx(7.0), "a late one is measured, too"
    assert "in/sum" not in harness.holders


def test_an_answer_to_an_earlier_request_is_late(harness):
    """A repeated sync asks again: what was sent for the first one has other steps."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.tell(TimerFired(PullDeadline(4)), 10.0)
    first = harness.machine.rounds.syncs[4].sums_wanted
    assert observed("sync repeated", harness.tell(TimerFired(SumsDeadline(4))))
    for _ in range(2):  # Global step 5 is launched first.
        for peer in (A, B, C):
            harness.report(peer, 1.0, harness.versions, steps=(2,) * P)
        harness.tell(TimerFired(LaunchDue()), 1.0)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1, steps=2)
    harness.tell(TimerFired(PullDeadline(4)), 10.0)
    assert harness.machine.rounds.syncs[4].sums_wanted > first
    early = harness.answer(4, 1, [A, B], number=first)
    assert observed("refused", early)[0]["relay"] == RELAY
    assert [] == of(MergeFragment, early)
    assert len(of(MergeFragment, harness.answer(4, 1, [A, B]))) == 1


def test_a_sync_of_a_lost_relay_alone_is_repeated(harness):
    """Nothing is left to merge."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.tell(TimerFired(PullDeadline(4)), 10.0)
    effects = harness.tell(PeerLost(RELAY, "gone"))
    assert observed("sync repeated", effects)[0]["reason"] == "no relay's sum before the deadline"


def test_what_a_lost_relay_may_not_have_delivered_is_sent_again(harness):
    """What a learner has not reported counts as not sent."""
    members = harness.machine.rounds.membership.members
    members[A].sent[0] = 9
    harness.tell(PeerLost(RELAY, "gone"))
    assert members[A].sent[0] == members[A].holds(0)
    assert [] == [relay for relay in harness.machine.rounds.sites.reach.values() if relay == RELAY]


def test_a_payload_at_a_relay_that_is_not_linked_is_refused(harness):
    """With the reason."""
    launch(harness)
    harness.tell(PeerLost(RELAY, "gone"))
    effects = harness.relayed(A, 4, 1, 1)
    (seen,) = observed("refused", effects)
    assert seen["reason"] == "its payload is with relay-0, which is not linked"


def test_a_relay_is_sent_what_it_lacks(harness):
    """Once, and again when it must have been lost."""
    lacks = RelayReport((3, -1, 2), {A: 1, B: 2})
    assert [1] == [body.fragment for _, body in said(GlobalFragment, harness.say(RELAY, lacks))]
    assert [] == said(GlobalFragment, harness.say(RELAY, lacks)), "it is on its way"
    harness.at += RESEND_S_MIN - 1.0
    harness.tell(LaneAdvanced(RELAY, BULK))
    harness.at += RESEND_S_MIN - 1.0
    assert [] == said(GlobalFragment, harness.say(RELAY, lacks)), "something arrives there"
    harness.at += 2.0
    assert [1] == [body.fragment for _, body in said(GlobalFragment, harness.say(RELAY, lacks))]
    harness.tell(PeerLost(RELAY, "gone"))
    _, effects = harness.link((-1,) * P)
    assert [(to, body.fragment, body.to) for to, body in said(GlobalFragment, effects)] == [
        (RELAY, p, ()) for p in range(P)
    ]


def test_a_newcomer_is_sent_what_its_relay_holds_from_there(harness):
    """The syncer only asks for it."""
    late = "learner-0.2"
    joined = harness.tell(PeerJoined(late, late))
    assert [to for to, _ in said(Roster, joined) if to == RELAY] == [RELAY]
    harness.say(RELAY, RelayReport(harness.versions, {late: 3, B: 2}))
    behind = harness.report(late, 1.0, (0, 0, 0), steps=(1,) * P)
    assert [] == said(GlobalFragment, behind)
    ((to, body),) = said(Spread, behind)
    assert (to, body) == (RELAY, Spread(late, (0, 1, 2), harness.versions))


def test_what_is_on_its_way_through_a_slow_line_is_not_sent_to_each_learner(harness):
    """However long it takes to the relay; once it is there, the relay sends it."""
    launch(harness)
    for peer in (A, B):
        harness.relayed(peer, 4, 1, 1)
    harness.contribute(C, 4, 1, 1)
    harness.merged(harness.answer(4, 1, [A, B]))
    harness.at += 10 * RESEND_S_MIN
    behind = harness.report(A, 1.0, harness.versions, step=99)
    assert [] == [to for to, _ in said(GlobalFragment, behind) + said(Spread, behind)]
    held = list(harness.versions)
    held[1] = 4
    harness.say(RELAY, RelayReport(tuple(held), {A: 1, B: 2}))
    again = harness.report(A, 1.0, harness.versions, step=100)
    assert said(Spread, again) == [(RELAY, Spread(A, (1,), (4,)))]


def test_a_newer_incarnation_takes_the_place(harness):
    """And an older one is sent away."""
    second = "relay-0.2"
    joined = harness.tell(PeerJoined(second, second))
    assert [(each.peer, each.final) for each in of(Hangup, joined)] == [(RELAY, True)]
    assert of(Retire, joined) == [Retire({"relay-0": 2})]
    (late,) = of(Hangup, harness.tell(PeerJoined(RELAY, RELAY)))
    assert late.final


def test_a_report_of_another_plan_is_refused(harness):
    """With the numbers of fragments."""
    effects = harness.say(RELAY, RelayReport((1,), {A: 1}))
    assert observed("refused", effects)[0]["reason"] == "report of 1 fragments, the plan has 3"


def test_a_relay_reaches_only_the_learners_that_are_its_own(harness):
    """Whatever it says."""
    harness.say(RELAY, RelayReport(harness.versions, {A: 1, C: 2, "syncer.1": 3}))
    assert harness.machine.rounds.sites.reach == {A: RELAY}


def test_the_end_waits_for_relays(harness):
    """They are told as learners are."""
    ended = harness.saved(harness.tell(StopRequested("enough")))
    assert RELAY in [to for to, _ in said(Stop, ended)]
    assert RELAY in [to for to, _ in said(Stop, harness.tell(PeerJoined(RELAY, RELAY)))]
    for peer in (A, B, C):
        assert [] == of(Finish, harness.tell(PeerLost(peer, "bye")))


def test_nothing_goes_through_a_relay_before_the_first_merge(make_job, leaves):
    """Learners may hold what this incarnation of the syncer has lost."""
    job = replace(make_job(3, P, P, 30), relay={"relay-0": RelayTable(("learner-0",))})
    harness = SiteHarness(job, leaves, "syncer.2")
    harness.open()
    harness.tell(PeerJoined(A, A))
    harness.link((0,) * P, {A: 1})
    harness.report(A, step=0, versions=(-1,) * P, steps=(0,) * P, step_s=0.0)
    effects = harness.report(A, 1.0) + harness.tell(TimerFired(LaunchDue()), 1.0)
    assert [(A, 1, 1)] == pulls(effects)
    assert all(body.relay != "relay-0" for _, body in said(Pull, effects))
