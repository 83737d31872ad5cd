"""The relay machine alone: fed events, judged by its effects."""

import pytest
from msgspec.structs import replace

from ddloco.job.config import RelayTable
from ddloco.job.protocol.events import Started
from ddloco.job.protocol.messages import (
    Contribution,
    ContributionSum,
    GlobalFragment,
    Progress,
    RelayReport,
    Roster,
    Spread,
    Stop,
    SumWanted,
    WantedShare,
)
from ddloco.job.protocol.timers import RelayReportDue, SumDeadline
from ddloco.job.protocol.work import (
    ContributionsSummed,
    DecodeFragment,
    FragmentDecoded,
    SumContributions,
)
from ddloco.machines.relay.machine import Relay
from ddloco.machines.syncer.shards import REPORT_S
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.events import LeaveRequested, StopRequested, WorkFailed
from transport import (
    CancelTimer,
    Dial,
    Drop,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Retire,
    Send,
    SetTimer,
    TimerFired,
)

P = 3
A, B, A2 = "learner-0.1", "learner-1.1", "learner-0.2"


class Harness:
    """A relay, and the events that can be put before it."""

    def __init__(self, job, leaves):
        self.machine = Relay(job)
        self.at = 0.0
        self.number = 0
        self.holders = {}
        self.effects = self.tell(Started("relay-0.1", leaves))

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
        assert sum(self.holders.values()) == self.machine.references()
        return effects

    def say(self, peer, body):
        """A peer says something."""
        self.number += 1
        bulk = isinstance(body, GlobalFragment | Contribution)
        handle = f"in/{self.number}" if bulk else ""
        event = MessageArrived(peer, "bulk" if bulk else "control", peer, 1, self.number, {}, body)
        return self.tell(replace(event, handle=handle))

    def contribute(self, peer, t=3, base=0, steps=2, **more):
        """A learner sends what the syncer has pulled."""
        body = Contribution(t, 0, base, 5, steps, 8 * steps, relay="relay-0", **more)
        return self.say(peer, body)

    def want(self, *names, t=3, version=0, steps=2):
        """The syncer asks for a sum."""
        shares = tuple(WantedShare(name, 16.0, version, steps, 0.0, 0.0) for name in names)
        return self.say("syncer", SumWanted(t, 0, 7, version, shares, 5.0, 32.0, 0.5))


def of(kind, effects):
    """The effects of a kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def said(kind, effects):
    """To whom a body of a kind is sent, and the body."""
    return [(e.peer, e.body) for e in of(Send, effects) if isinstance(e.body, kind)]


@pytest.fixture
def make_relay(make_job, leaves):
    """Makes a relay of two of three learners that has just started, with some settings."""

    def make(**more):
        job = make_job(3, P, P)
        tables = {"relay-0": RelayTable(("learner-0", "learner-1"))}
        return Harness(replace(job, relay=tables, **more), leaves)

    return make


@pytest.fixture
def relay(make_relay):
    """A relay with its learners and the first versions."""
    harness = make_relay()
    harness.tell(PeerJoined("syncer", "syncer.1"))
    for p in range(P):
        harness.say("syncer", GlobalFragment(p, 0))
    for peer in (A, B):
        harness.tell(PeerJoined(peer, peer))
    return harness


def test_it_listens_and_dials(make_relay):
    """With what both sides must agree on."""
    harness = make_relay()
    (listen,), (dial,) = of(Listen, harness.effects), of(Dial, harness.effects)
    assert (dial.peer, dial.agreement) == ("syncer", listen.agreement)


def test_it_reports_what_it_holds_and_whom_it_reaches(make_relay):
    """At each change, and every few seconds."""
    harness = make_relay()
    ((_, first),) = said(RelayReport, harness.tell(PeerJoined("syncer", "syncer.1")))
    assert first == RelayReport((-1,) * P, {})
    ((_, newer),) = said(RelayReport, harness.say("syncer", GlobalFragment(1, 4)))
    assert newer.versions == (-1, 4, -1)
    ((_, reaches),) = said(RelayReport, harness.tell(PeerJoined(A, A)))
    assert reaches.learners == {A: 1}
    ((_, lost),) = said(RelayReport, harness.tell(PeerLost(A, "gone")))
    assert lost.learners == {}
    ((_, again),) = said(RelayReport, harness.tell(PeerJoined(A, A)))
    assert again.learners == {A: 2}, "another link"
    due = harness.tell(TimerFired(RelayReportDue()))
    assert of(SetTimer, due) == [SetTimer(RelayReportDue(), harness.at + REPORT_S)]
    assert len(said(RelayReport, due)) == 1


def test_strangers_and_earlier_incarnations_are_sent_away(relay):
    """For good."""
    (stranger,) = of(Hangup, relay.tell(PeerJoined("learner-2.1", "learner-2.1")))
    assert (stranger.final, stranger.reason) == (True, "learner-2 is no learner of relay-0")
    relay.contribute(A)
    joined = relay.tell(PeerJoined(A2, A2))
    assert [(each.peer, each.final) for each in of(Hangup, joined)] == [(A, True)]
    assert of(Retire, joined) == [Retire({"learner-0": 2})]
    assert relay.machine.arrived == {}, "what the earlier one sent is forgotten"
    (late,) = of(Hangup, relay.tell(PeerJoined(A, A)))
    assert late.final


def test_fragments_are_sent_on_to_whom_they_are_for(relay):
    """And to nobody else."""
    spread = relay.say("syncer", GlobalFragment(0, 3, to=(A, "learner-9.1", B), spents=(1, 1, -1)))
    assert said(GlobalFragment, spread) == [
        (A, GlobalFragment(0, 3, spent=1)), (B, GlobalFragment(0, 3, spent=-1)),
    ]  # fmt: skip
    assert {each.payload for each in of(Send, spread) if each.peer in {A, B}} == {"in/4"}
    assert [] == said(GlobalFragment, relay.say("syncer", GlobalFragment(0, 6, to=())))
    assert relay.machine.held[0].version == 6
    assert [] == relay.say(A, GlobalFragment(0, 9, to=(B,))), "only a syncer sends fragments"


def test_what_a_learner_lacks_is_sent_from_here(relay):
    """If it is here, and the learner is."""
    lacking = relay.say("syncer", Spread(A, (0, 2, 1, 7), (0, 0, 5, 0)))
    assert said(GlobalFragment, lacking) == [(A, GlobalFragment(0, 0)), (A, GlobalFragment(2, 0))]
    assert [] == relay.say("syncer", Spread("learner-2.1", (0,), (0,)))


def test_a_sum_is_of_those_that_the_syncer_names(relay):
    """Whatever else has arrived."""
    relay.contribute(A)
    relay.contribute(B)
    asked = relay.want(A)
    (work,) = of(SumContributions, asked)
    assert [(s.name, s.handle, s.weight) for s in work.shares] == [(A, "in/4", 16.0)]
    assert (work.anchor, work.band, work.cosine) == ("in/1", 32.0, 0.5)
    done = relay.tell(ContributionsSummed(work.work, (A,), (), (1.0,), b"d" * 16))
    ((peer, body),) = said(ContributionSum, done)
    assert (peer, body.names, body.lengths) == ("syncer", (A,), (1.0,))
    assert (body.t, body.number) == (3, 7)
    assert of(Send, done)[0].payload == work.out
    assert relay.machine.sums == {}


def test_a_sum_waits_for_what_is_on_its_way(relay):
    """A learner that is linked may still send; one that is not cannot."""
    relay.contribute(A)
    asked = relay.want(A, B)
    assert [] == of(SumContributions, asked)
    assert of(SetTimer, asked) == [SetTimer(SumDeadline(0), relay.at + 5.0)]
    assert len(of(SumContributions, relay.contribute(B))) == 1


@pytest.mark.parametrize("end", [TimerFired(SumDeadline(0)), PeerLost(B, "gone")])
def test_what_does_not_come_is_left_out(relay, end):
    """At the deadline, or when its learner is lost."""
    relay.contribute(A)
    relay.contribute(B, t=2)  # For an earlier sync.
    relay.want(A, B)
    (work,) = of(SumContributions, relay.tell(end))
    assert [share.name for share in work.shares] == [A]
    done = relay.tell(ContributionsSummed(work.work, (A,), (), (1.0,), b"d" * 16))
    ((_, body),) = said(ContributionSum, done)
    assert body.missing == ((B, "it did not reach relay-0 in time"),)


def test_a_sum_of_nothing_is_said_at_once(relay):
    """The syncer need not wait."""
    relay.want(B)
    ((_, body),) = said(ContributionSum, relay.tell(PeerLost(B, "gone")))
    assert (body.names, body.missing) == ((), ((B, "it did not reach relay-0 in time"),))


def test_a_sum_waits_for_the_version_that_it_is_measured_from(relay):
    """The request may overtake the version."""
    relay.contribute(A, t=6, base=3)
    assert [] == of(SumContributions, relay.want(A, t=6, version=3))
    (work,) = of(SumContributions, relay.say("syncer", GlobalFragment(0, 3)))
    assert work.anchor == f"in/{relay.number}"
    assert [] == of(SumContributions, relay.want(A, t=6, version=3)), "one is being computed"
    done = relay.tell(ContributionsSummed(work.work, (A,), (), (1.0,), b"d" * 16))
    assert len(said(ContributionSum, done)) == len(of(SumContributions, done)) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"steps": 1}, "it told relay-0 otherwise than the syncer"),
        ({"form": "int4"}, "compressed as int4, this job has float32"),
    ],
)
def test_what_cannot_be_summed_is_left_out(relay, more, why):
    """With the reason."""
    relay.contribute(A, **more)
    ((_, body),) = said(ContributionSum, relay.want(A))
    assert body.missing == ((A, why),)


def test_what_is_older_than_a_version_is_forgotten(relay):
    """Its sync is over."""
    relay.contribute(A, t=3)
    relay.contribute(B, t=6)
    relay.say("syncer", GlobalFragment(0, 3))
    assert {peer: list(given) for peer, given in relay.machine.arrived.items()} == {B: [0]}


def test_differences_are_followed(make_relay):
    """It holds what its learners hold."""
    relay = make_relay()
    relay.machine.job = replace(
        relay.machine.job, compress=replace(relay.machine.job.compress, down="int8")
    )
    relay.tell(PeerJoined("syncer", "syncer.1"))
    relay.say("syncer", GlobalFragment(0, 0))
    (work,) = of(DecodeFragment, relay.say("syncer", GlobalFragment(0, 3, form="int8", base=0)))
    assert (work.base, work.source, work.out) == ("in/1", "in/2", "global/0/3")
    done = relay.tell(FragmentDecoded(work.work, b"d" * 16))
    assert said(RelayReport, done)[0][1].versions == (3, -1, -1)
    odd = relay.say("syncer", GlobalFragment(0, 9, form="int8", base=6))
    assert [] == of(DecodeFragment, odd)
    assert relay.machine.held[0].version == 3


def test_a_lost_syncer_wants_no_sums(relay):
    """And no deadline of its."""
    relay.want(A, B)
    lost = relay.tell(PeerLost("syncer", "gone"))
    assert of(CancelTimer, lost) == [CancelTimer(SumDeadline(0))]
    assert relay.machine.sums == {}
    assert [] == relay.tell(TimerFired(SumDeadline(0)))


@pytest.mark.parametrize(
    ("event", "status", "again"),
    [
        (StopRequested("enough"), "done", False),
        (LeaveRequested("moved"), "left", False),
        (WorkFailed(1, "worker", "it died"), "failed", True),
        (PeerRefused("syncer", "another job"), "bad-input", False),
        (PeerRefused("syncer", "a newer one", again=True), "left", False),
    ],
)
def test_it_ends(relay, event, status, again):
    """And says goodbye to all."""
    effects = relay.tell(event)
    assert {each.peer for each in of(Hangup, effects)} == {"syncer", A, B}
    assert [(each.status, each.again) for each in of(Finish, effects)] == [(status, again)]


def test_the_lead_ends_it(relay):
    """No learner does."""
    assert [] == of(Finish, relay.say(A, Stop(9, "me too")))
    assert of(Finish, relay.say("syncer", Stop(9, "over"))) == [Finish("done", "over")]


def test_what_it_does_not_know_is_ignored(relay):
    """Reports are signs of life; only syncers ask for sums."""
    assert [] == relay.say(A, Progress(1, 1.0, (0,) * P, (0,) * P, (0,) * P))
    assert [] == relay.say(A, SumWanted(3, 0, 7, 0, (), 1.0))
    assert of(Retire, relay.say("syncer", Roster(2, {"learner-0": 2}))) == [
        Retire({"learner-0": 2})
    ]
