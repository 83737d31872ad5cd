"""The relays of a job's sites, as a syncer knows them. It decides everything as it does without
relays; a relay only carries payloads: towards the syncer one sum of those that are merged together,
from the syncer one copy of what several are sent."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import UNSET, Struct, field

from clocks import actor_of, number_of
from ddloco.job.config import Compress
from ddloco.job.protocol.messages import (
    ContributionSum,
    GlobalFragment,
    RelayReport,
    Roster,
    Spread,
)
from ddloco.machines.syncer.estimates import Recent
from ddloco.machines.syncer.global_fragments import GlobalFragments, Recipient
from ddloco.machines.syncer.members import RESEND_S_MIN, Member
from ddloco.stage.actors.effects import Observe
from transport import BULK, CONTROL, Effect, Hangup, Retire, Send

ASKED_MAX = 64
"""Sums of a relay whose time is measured; with as many syncs in flight, later ones are not."""


class SiteRelay(Struct, forbid_unknown_fields=True, eq=False):
    """One linked relay.

    Attributes:
        versions: for each fragment, the version that it last reported; -1 for none.
        sent: for each fragment, the newest version sent over this link; -1 for none.
        sent_at: for each fragment, when that was sent, in seconds.
        moved_at: when it last acknowledged more of what was sent to it, in seconds.
        learners: the learners that it reaches, each with the number of its link there.
        asked: when it was asked for the newest sums, in seconds, by the request's number. What
            comes after its deadline shows how long sums take, too.
        answer_s: seconds from the request of a sum to its arrival, the median of the newest.
    """

    peer: str
    versions: list[int]
    sent: list[int]
    sent_at: list[float]
    moved_at: float
    learners: dict[str, int] = {}
    asked: dict[int, float] = {}
    answer_s: Recent = field(default_factory=Recent)

    def ask(self, at: float, number: int) -> None:
        self.asked[number] = at
        while len(self.asked) > ASKED_MAX:
            del self.asked[next(iter(self.asked))]

    def answer(self, at: float, number: int) -> None:
        """Note that the sum of request ``number`` has arrived, in time or late."""
        if number in self.asked:
            self.answer_s.add(at - self.asked.pop(number))


class ReceivedSum(Struct, frozen=True):
    said: ContributionSum
    handle: str


class Sites(Struct, forbid_unknown_fields=True):
    """The relays of a job.

    Attributes:
        reach: for each learner that a linked relay reaches, that relay's peer.
    """

    relays: dict[str, SiteRelay] = {}
    reach: dict[str, str] = {}
    newest: dict[str, int] = {}

    def join(self, at: float, peer: str, fragments: int) -> list[Effect]:
        actor, number = actor_of(peer), number_of(peer)
        newest = self.newest.get(actor, 0)
        if number < newest:
            reason = f"a newer incarnation, {actor}.{newest}, has the place of {peer}"
            return [Hangup(peer, reason, final=True)]
        effects: list[Effect] = [Observe("relay joined", {"relay": peer})]
        if number > max(newest, 1):
            effects.append(Retire({actor: number}))
        self.newest[actor] = number
        none = [-1] * fragments
        self.relays[peer] = SiteRelay(peer, none, list(none), [at] * fragments, at)
        self.relays = dict(sorted(self.relays.items()))
        return effects

    def former(self, peer: str) -> list[str]:
        return [each for each in self.relays if actor_of(each) == actor_of(peer) and each != peer]

    def lose(self, peer: str, members: Mapping[str, Member]) -> bool:
        """Forget a relay whose link is lost, if there was one: what it was sent for learners may
        not reach them."""
        relay = self.relays.pop(peer, None)
        if relay is None:
            return False
        for learner in relay.learners:
            self._unreach(learner, peer, members)
        return True

    def _unreach(self, learner: str, peer: str, members: Mapping[str, Member]) -> None:
        if self.reach.get(learner) == peer:
            del self.reach[learner]
            if learner in members:
                members[learner].resend()

    def report(
        self,
        at: float,
        relay: SiteRelay,
        said: RelayReport,
        members: Mapping[str, Member],
        fragments: GlobalFragments,
    ) -> list[Effect]:
        """Take a relay's report, and send it the fragments that it lacks."""
        if len(said.versions) != len(fragments):
            problem = f"report of {len(said.versions)} fragments, the plan has {len(fragments)}"
            return [Observe("refused", {"relay": relay.peer, "reason": problem})]
        for learner, link in relay.learners.items():
            if said.learners.get(learner) != link:
                self._unreach(learner, relay.peer, members)
        relay.versions, relay.learners = list(said.versions), dict(said.learners)
        for learner in relay.learners:
            self.reach[learner] = relay.peer
        return [self._tell(at, relay, fragments, p) for p in self._lacking(at, relay, fragments)]

    def _lacking(self, at: float, relay: SiteRelay, fragments: GlobalFragments) -> Iterable[int]:
        """The fragments of which a relay neither has the newest version nor is being sent it."""
        for p in fragments.owned:
            newest, sent = fragments[p].version, relay.sent[p]
            lost = at - max(relay.sent_at[p], relay.moved_at) > RESEND_S_MIN
            if relay.versions[p] < newest and (sent < newest or lost):
                yield p

    def _tell(
        self,
        at: float,
        relay: SiteRelay,
        fragments: GlobalFragments,
        p: int,
        *,
        to: Sequence[Recipient] = (),
        difference: bool = False,
    ) -> Send[GlobalFragment]:
        relay.sent[p], relay.sent_at[p] = fragments[p].version, at
        spents = tuple(each.merged[p] for each in to) if to and to[0].compress.feedback else UNSET
        names = tuple(each.member.peer for each in to)
        said, handle = fragments.said(p, difference=difference, to=names, spents=spents)
        return Send(relay.peer, BULK, said, handle, f"global/{p}")

    def announce(self, roster: Roster | None, *peers: str) -> list[Effect]:
        """Tell relays, by default all, which incarnations of learners are gone."""
        if roster is None:
            return []
        return [Send(peer, CONTROL, roster, key="roster") for peer in peers or self.relays]

    def linked(self, actor: str) -> str:
        return next((peer for peer in self.relays if actor_of(peer) == actor), "")

    def answer_s(self, peer: str) -> float | None:
        return self.relays[peer].answer_s.value if peer in self.relays else None

    def via(self, member: Member, p: int, fragments: GlobalFragments) -> SiteRelay | None:
        """Return the relay that a member's contribution to a fragment goes through; None if it
        comes directly. A relay measures from the newest version, so it must have that. Before the
        first merge of this incarnation learners may hold a newer one than this syncer."""
        relay = self.relays.get(self.reach.get(member.peer, ""))
        if relay is None or p not in fragments.merged_here:
            return None
        return relay if relay.versions[p] == fragments[p].version else None

    def spread(
        self,
        at: float,
        p: int,
        told: Iterable[Recipient],
        fragments: GlobalFragments,
        compress: Compress,
    ) -> list[Effect]:
        """Send learners the newest version of a fragment, by their relays where they have one.
        Relays that reach nobody are sent it too: they measure the next contributions from it. A
        learner that needs it whole, where its relay is sent a difference, is sent it directly."""
        differs = fragments.has_difference(p, compress)
        differences = {
            peer: differs and relay.versions[p] == fragments[p].base
            for peer, relay in self.relays.items()
        }
        to: dict[str, list[Recipient]] = {peer: [] for peer in self.relays}
        effects: list[Effect] = []
        for each in told:
            peer = self.reach.get(each.member.peer, "")
            if not peer or (differences[peer] and not fragments.knows_base(each.member, p)):
                effects.append(fragments.tell(at, each, p))
            else:
                each.member.tell(at, p, fragments[p].version)
                to[peer].append(each)
        for peer, recipients in to.items():
            relay, differs = self.relays[peer], differences[peer]
            effects.append(self._tell(at, relay, fragments, p, to=recipients, difference=differs))
        return effects

    def tell_newer(
        self, at: float, told: Recipient, lacking: Sequence[int], fragments: GlobalFragments
    ) -> list[Effect]:
        """Send a learner fragments that it lacks; those that its relay holds, from there. What is
        still on its way through its relay is not sent twice."""
        relay, sent = self.relays.get(self.reach.get(told.member.peer, "")), told.member.sent
        newest = {p: fragments[p].version for p in lacking}
        if relay is not None:
            comes = [p for p in lacking if relay.sent[p] == sent[p] == newest[p]]
            lacking = [p for p in lacking if p not in comes or relay.versions[p] == newest[p]]
        there = [p for p in lacking if relay is not None and relay.versions[p] == newest[p]]
        effects: list[Effect] = [fragments.tell(at, told, p) for p in lacking if p not in there]
        if relay is None or not there:
            return effects
        for p in there:
            told.member.tell(at, p, newest[p])
        spents = tuple(told.merged[p] for p in there) if told.compress.feedback else UNSET
        said = Spread(told.member.peer, tuple(there), tuple(newest[p] for p in there), spents)
        # A later request for one learner may leave out what is asked for in an earlier one.
        return [*effects, Send(relay.peer, CONTROL, said)]
