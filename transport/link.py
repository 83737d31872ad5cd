"""The link machine: handshake, sequence numbers, credit, and recovery when any of them fails.

It does no input or output: it receives events, and returns events for the machine above it and
effects for the driver. One `Links` object holds all links of an actor.

A link has two lanes. The dialling side sends Hello on both, the listening side answers with Welcome
on both, and the link is up; every later message has a sequence number in its lane. A gap in the
numbers, a rejected frame or an unreachable peer breaks the link; nothing is resent. The dialling
side then shakes hands again with a higher session number; the listening side asks for that with
Reset. Since messages state absolute values, the peers only need to send their newest values again.

    dialling            listening
    --------            ---------
    Hello (both)   ->
                   <-   Welcome (both)        the link is up
                   <-   Refused               final: the agreements differ
                   <-   Reset                 dial again with a later session
"""

from typing import Any, Generic

from msgspec import field

from clocks import Verdict, actor_of, number_of
from transport.effects import CancelTimer, Dial, Effect, Hangup, Listen, Mark, Send, SetTimer
from transport.events import (
    BytesArrived,
    Event,
    LaneAdvanced,
    LaneBroken,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    Superseded,
    TimerFired,
)
from transport.flow_control import (
    OWED_SHARE,
    OWED_SHARE_MAX,
    WINDOW_MESSAGES,
    OutboxFullError,
    QueuedMessage,
)
from transport.link_state import (
    ALONE,
    CLAIM_S,
    CLAIMS_MAX,
    NUMBERS_AHEAD_MAX,
    REDIAL_S_MIN,
    SESSIONS_AHEAD_MAX,
    STALL_S,
    SUPERSEDED_UNLINKED,
    AcceptedRuns,
    LaneState,
    Link,
    disagreement,
    new_lanes,
)
from transport.message import (
    BULK,
    CONTROL,
    GREETINGS,
    LANES,
    LINK_TALK,
    B,
    Bye,
    Credit,
    Hello,
    Lane,
    Marker,
    Refused,
    Reset,
    Welcome,
)
from transport.sending import LinkSender
from transport.timer import Redial, Stall

Heard = tuple[list[Event], list[Effect]]


class Links(LinkSender, Generic[B], forbid_unknown_fields=True):
    """All links of one actor, with its clock and its reference counts of arrays.

    Attributes:
        counters: how often something was rejected or dropped, by reason.
        links: the links by peer.
        agreement: what a peer that dials must agree to; None if links are not accepted.
        runs: the runs whose members are accepted.
        linked: whether a link has been made or used in this run.
        claims: who names another incarnation of this actor, and since when.
        begun: the number of its events when this run began from a snapshot; 0 if it did not.
    """

    counters: dict[str, int] = {}
    links: dict[str, Link[B]] = {}
    agreement: dict[str, str] | None = None
    runs: AcceptedRuns = field(default_factory=AcceptedRuns)
    linked: bool = False
    claims: dict[str, float] = {}
    begun: int = 0

    def peers(self) -> list[str]:
        """The peers whose link is up, sorted by name as bytes."""
        return sorted((link.peer for link in self.links.values() if link.up), key=str.encode)

    @property
    def listening(self) -> bool:
        """Whether this actor accepts links that its peers dial."""
        return self.agreement is not None

    def incarnation(self, peer: str) -> str:
        """The incarnation at the other end of a link; empty if there is no link."""
        link = self.links.get(peer)
        return link.incarnation if link is not None else ""

    def carries(self, event: MessageArrived[Any]) -> bool:
        """Whether a message belongs to an open lane and not to a handshake."""
        link = self.links.get(event.peer)
        return link is not None and link.carries(event.lane, event.session, event.body)

    def stands(self, event: MessageArrived[Any]) -> bool:
        """Whether a handled message belongs to the session that its link has now."""
        link = self.links.get(event.peer)
        return link is not None and event.session == link.session

    def teaches(self, event: MessageArrived[Any]) -> bool:
        """Whether the actor's clock may merge the clock of a message about to be handled.

        Only a message that opens a lane of an agreed session, or is the next one on an open lane,
        qualifies. Any other message is checked, answered and counted, but its clock cannot be
        trusted: it may come from an unknown peer or from another job.
        """
        link, body = self.links.get(event.peer), event.body
        if type(body) is Hello:
            return self._opens(link, event, body)
        if link is None or event.session != link.session:
            return False
        lane = link.lanes[event.lane]
        due = event.seq == lane.incoming.expected
        if type(body) in GREETINGS:
            fits = link.dialled is not None and link.incarnation in ("", event.sender)
            return due and type(body) is Welcome and fits
        known = event.sender == link.incarnation
        return (
            due and lane.open and known and event.clock.get(self.clock.me, 0) <= self.clock.number
        )

    def _speaks_for_itself(self, event: MessageArrived[Any]) -> bool:
        """Whether the sender has the name of its connection, and is not this actor itself."""
        return event.sender == event.peer and actor_of(event.sender) != actor_of(self.clock.me)

    def _opens(self, link: Link | None, event: MessageArrived[Any], hello: Hello) -> bool:
        if self.agreement is None or self._objection(hello) is not None:
            return False
        if not self._speaks_for_itself(event) or self._followed(event) is not None:
            return False
        if link is None:
            return event.seq == 0 and event.session <= SESSIONS_AHEAD_MAX
        ahead = event.session - link.session
        if link.dialled is not None or not 0 <= ahead <= SESSIONS_AHEAD_MAX:
            return False
        known = event.session == link.session
        return event.seq == (link.lanes[event.lane].incoming.expected if known else 0)

    def _objection(self, hello: Hello) -> Refused | None:
        """The reply to a Hello from a peer that cannot take part; None for one that can."""
        difference = disagreement(self.agreement or {}, hello.agreement)
        if difference is not None:
            return Refused(difference)
        other_run = self.runs.objection(hello.run)
        return Refused(other_run, again=True) if other_run is not None else None

    def waiting(self, peer: str, lane: Lane) -> tuple[int, bool]:
        """How many messages are queued on a lane, and whether there is credit for another."""
        outbox = self.links[peer].lanes[lane].outbox
        return len(outbox.waiting), outbox.sent - outbox.taken < outbox.window

    def knows(self, peer: str) -> bool:
        """Whether there is a link to ``peer``, open or not."""
        return peer in self.links

    def renew(self, agreement: dict[str, str]) -> None:
        """Require ``agreement`` from now on, and forget runs and agreements of an earlier run."""
        self.runs, self.begun, self.linked = AcceptedRuns(), self.clock.number, False
        if self.agreement is not None:
            self.agreement = agreement
        for link in self.links.values():
            if link.dialled is not None:
                link.dialled, link.run = {**agreement}, ""

    # Effects of the machine above.

    def perform(self, at: float, effect: Send[Any] | Dial | Listen | Hangup | Mark) -> Heard:
        """Perform an effect of the machine above on its links."""
        match effect:
            case Send():
                return self._send(at, effect)
            case Dial(peer, agreement):
                link = self.links[peer] = Link(peer, {**agreement})
                return [], self._dial(at, link)
            case Listen(agreement, run, settled):
                self.agreement = agreement
                self.runs.own, self.runs.settled = run, settled
                return [], []
            case Hangup():
                return [], self._hangup(effect)
            case Mark(peer, snapshot):
                return [], self._mark(peer, snapshot)

    def _send(self, at: float, send: Send[Any]) -> Heard:
        link = self.links.get(send.peer)
        if link is None or not link.up:
            self._count("said to a peer without a link")
            return [], []
        lane = link.lanes[send.lane]
        owed = self.settle(link) if link.owes else []
        if lane.outbox.pass_through():
            number = self.number(link, send.lane, lane, send.body, send.payload)
            return [], [*owed, number]
        waiting = QueuedMessage(send.body, send.payload, send.key)
        try:
            replaced = lane.outbox.put(waiting)
        except OutboxFullError as error:
            self._count("outbox full")
            heard, effects = self._lose(at, link, f"{send.lane} lane: {error}")
            return heard, owed + effects
        if send.payload:
            self.handles.hold(send.payload)
        effects = owed + self._watch(at, link, send.lane)
        if replaced is not None and replaced.payload:
            effects += self.handles.release(replaced.payload)
        return [], effects

    def _mark(self, peer: str, snapshot: str) -> list[Effect]:
        link = self.links.get(peer)
        effects: list[Effect] = []
        if link is None or not link.up:
            return effects
        for lane in LANES:
            link.lanes[lane].outbox.put_first(QueuedMessage(Marker(snapshot), free_of_charge=True))
            effects += self.pump(link, lane)
        return effects

    def _hangup(self, hangup: Hangup) -> list[Effect]:
        peer = hangup.peer
        link = self.links.get(peer)
        if link is None:
            return []
        effects: list[Effect] = []
        if link.up:
            body = Refused(hangup.reason) if hangup.final else Bye(hangup.reason)
            link.lanes[CONTROL].outbox.put_first(QueuedMessage(body, free_of_charge=True))
            effects += self.pump(link, CONTROL)
        effects += self._forget_waiting(link)
        if link.dialled is not None:
            effects.append(CancelTimer(Redial(peer)))
        del self.links[peer]
        return effects

    # Events from outside.

    def handle(self, at: float, event: Event) -> Heard:
        """Handle one event; returns events for the machine above, and effects."""
        match event:
            case MessageArrived():
                link = self.links.get(event.peer)
                if link is None or event.session != link.session or type(event.body) in GREETINGS:
                    return self._greeted(at, link, event)
                state = link.lanes[event.lane]
                return self._numbered(at, link, state, event) if state.open else self._lost(event)
            case BytesArrived():
                return self._progressed(event)
            case LaneBroken(peer, lane, reason):
                link = self.links.get(peer)
                if link is None:
                    return [], []
                self._count("lane broken")
                return self._lose(at, link, f"{lane} lane: {reason}")
            case TimerFired(Stall(peer, lane)):
                link = self.links.get(peer)
                return self._stalled(at, link, lane) if link is not None else ([], [])
            case TimerFired(Redial(peer)):
                link = self.links.get(peer)
                if link is None or link.whole:
                    return [], []
                heard, effects = self._down(link, "no welcome on both lanes")
                return heard, effects + self._dial(at, link)
            case _:
                return [event], []

    def _greeted(self, at: float, link: Link | None, event: MessageArrived[Any]) -> Heard:
        match event.body:
            case Hello():
                return self._hello(at, event, event.body)
            case Welcome() | Reset() | Refused() if link is None or event.session != link.session:
                return self._stale()
            case Welcome(run) if link is not None:
                return self._welcome(link, event, run)
            case Reset(reason, beyond) if link is not None and link.dialled is not None:
                heard = self._lose(at, link, f"the other side asks to start again: {reason}")
                if beyond is not None:
                    link.session = beyond
                return heard
            case Refused(reason, again) if link is not None and link.dialled is not None:
                del self.links[link.peer]
                gone = self._forget_waiting(link)
                timer = CancelTimer(Redial(link.peer))
                return [PeerRefused(link.peer, reason, again)], [*gone, timer]
            case _:
                return self._lost(event)

    def _lost(self, event: MessageArrived[Any]) -> Heard:
        """Handle a message of an unknown session: the dialling side must shake hands again."""
        heard, effects = self._stale()
        link = self.links.get(event.peer)
        if link is None or link.dialled is None:
            effects += self.out_of_band(event, Reset("this session is unknown here"))
        return heard, effects

    def _numbered(
        self, at: float, link: Link, lane: LaneState, event: MessageArrived[Any]
    ) -> Heard:
        """Handle a message on an open lane; only the next sequence number is accepted."""
        if event.sender != link.incarnation:
            reason = f"{event.sender} speaks in the session of {link.incarnation}"
            return self._break(at, link, event, reason)
        if event.clock.get(self.clock.me, 0) >= self.clock.number:
            return self._break(at, link, event, "its clock knows events that have not happened")
        verdict = lane.incoming.check(event.seq)
        if verdict is Verdict.DUPLICATE:
            self._count("duplicate")
            return [], []
        if verdict is Verdict.GAP:
            due = lane.incoming.expected
            return self._break(at, link, event, f"message {event.seq} where {due} was due")
        if type(event.body) not in LINK_TALK:
            return self._taken(link, lane, event)
        match event.body:
            case Credit(of_lane, taken) if taken > link.lanes[of_lane].outbox.sent:
                return self._break(at, link, event, f"credit for {taken} messages, more than sent")
            case Credit(of_lane, taken, arrived):
                return self._credited(link, of_lane, (taken, arrived))
            case Marker():
                return [event], []
            case _:  # Bye. The dialling side keeps trying, because a failed syncer may come back.
                return self._lose(at, link, event.body.reason)

    def _taken(self, link: Link, lane: LaneState, event: MessageArrived[Any]) -> Heard:
        self.linked = True
        lane.taken += 1
        owed = (lane.taken - lane.credited) / WINDOW_MESSAGES[event.lane]
        if owed >= OWED_SHARE_MAX:
            return [event], self.give_credit(link, event.lane)
        link.owes = link.owes or owed >= OWED_SHARE
        return [event], []

    def _credited(self, link: Link, lane: Lane, advanced: tuple[int, int]) -> Heard:
        state = link.lanes[lane]
        state.outbox.credited(advanced[0])
        state.advanced = max(state.advanced, advanced)
        heard: list[Event] = [LaneAdvanced(link.peer, lane)] if lane == BULK else []
        return heard, self.pump(link, lane)

    def _progressed(self, event: BytesArrived) -> Heard:
        """Tell the sender that its bytes arrive, and the machine above that the peer is active."""
        link = self.links.get(event.peer)
        if link is None or not link.up or not link.lanes[event.lane].open:
            return [], []
        return [event], self.give_credit(link, event.lane, event.nbytes)

    # Handshake.

    def _dial(self, at: float, link: Link) -> list[Effect]:
        wait = link.redial_wait()
        link.session += 1
        link.attempts += 1
        link.lanes = new_lanes()
        link.incarnation = ""
        effects: list[Effect] = [
            self.number(link, lane, link.lanes[lane], Hello(link.dialled or {}, link.run))
            for lane in LANES
        ]
        return [*effects, SetTimer(Redial(link.peer), at + wait)]

    def _hello(self, at: float, event: MessageArrived[Any], hello: Hello) -> Heard:
        """Handle Hello on the listening side. A session number below the current one or far above
        it is answered with a Reset that names the number to exceed, for a peer that lost count or
        whose count another process has raised. If the Hello was merely late, its sender ignores the
        Reset as stale."""
        link = self.links.get(event.peer)
        if self.agreement is None or (link is not None and link.dialled is not None):
            return self._stale()
        if not self._speaks_for_itself(event):
            self._count("false name")
            return [], []
        refused = self._objection(hello)
        followed = self._followed(event) if refused is None or refused.again else None
        if followed is not None and self._is_believed(at, event):
            return self._superseded(event, followed)
        if followed is not None and (self.claims or refused is None):
            self._count(ALONE)
            return [], []
        if refused is not None:
            self._count("refused at the handshake")
            return [], self.out_of_band(event, refused)
        heard: list[Event] = []
        effects: list[Effect] = []
        ahead = event.session - (0 if link is None else link.session)
        if not 0 <= ahead <= SESSIONS_AHEAD_MAX:
            beyond = event.session - ahead
            reset = Reset(f"session {event.session} cannot follow {beyond}", beyond)
            return [], [*self._stale()[1], *self.out_of_band(event, reset)]
        if link is None or ahead:
            if link is not None:
                heard, effects = self._down(link, "it shook hands again")
            link = self.links[event.peer] = Link(event.peer, None, event.session)
        link.incarnation = event.sender
        lane = link.lanes[event.lane]
        if lane.incoming.check(event.seq) is not Verdict.NEXT:
            return self._stale()
        lane.open = True
        if link.whole:
            lanes, welcome = link.lanes, Welcome(self.runs.own)
            effects += [self.number(link, each, lanes[each], welcome) for each in LANES]
            link.up = self.linked = True
            self.claims.clear()
            self.runs.join(hello.run)
            heard.append(PeerJoined(link.peer, link.incarnation))
        return heard, effects

    def _followed(self, event: MessageArrived[Any]) -> Superseded | None:
        """Another incarnation of this actor in the clock of a Hello that is not an earlier one;
        None if there is none.

        The actor has come back without knowing its number, as with an empty folder, or it was cut
        off and succeeded.
        """
        me, own = actor_of(self.clock.me), number_of(self.clock.me)
        number = max((number_of(each) for each in event.clock if actor_of(each) == me), default=0)
        if number == own:
            known = self._is_another(event.clock.get(self.clock.me, 0), event.body.run)
        else:
            known = 0 < number - own <= NUMBERS_AHEAD_MAX
        return Superseded(event.peer, number) if known else None

    def _is_another(self, count: int, run: str) -> bool:
        """Whether so many events of an actor with the name and number of this one were another's:
        they have not happened here, or a member of another run knows more of them than that run had
        when this one began from its snapshot."""
        elsewhere = run and self.runs.own and run != self.runs.own
        return count > (self.begun if elsewhere else self.clock.number)

    def _superseded(self, event: MessageArrived[Any], followed: Superseded) -> Heard:
        self._count("superseded" if self.linked else SUPERSEDED_UNLINKED)
        later = f"{actor_of(self.clock.me)}.{followed.number}"
        if later != self.clock.me:
            self.clock.end(later, event.clock[later])
        return [followed], []

    def _is_believed(self, at: float, event: MessageArrived[Any]) -> bool:
        """Whether a peer is believed that names another incarnation of this actor: never while
        others are linked, who know of none; at once if another peer names one, too; else after a
        while in which nobody else came. One peer's word alone ends no actor that is of use."""
        who = actor_of(event.peer)
        if any(each.up and actor_of(peer) != who for peer, each in self.links.items()):
            self.claims.clear()
            return False
        if len(self.claims) < CLAIMS_MAX:
            self.claims.setdefault(who, at)
        return len(self.claims) > 1 or at - self.claims.get(who, at) >= CLAIM_S

    def _welcome(self, link: Link, event: MessageArrived[Any], run: str) -> Heard:
        lane = link.lanes[event.lane]
        fits = link.dialled is not None and link.incarnation in ("", event.sender)
        if not fits or lane.incoming.check(event.seq) is not Verdict.NEXT:
            return self._stale()
        if number_of(event.sender) < self.clock.newest(actor_of(event.sender)):
            self._count("older incarnation")  # Its answer to the next Hello is its end.
            return self._stale()
        link.incarnation = event.sender
        link.run = run or link.run
        lane.open = True
        heard: list[Event] = []
        if not link.up:
            # One Welcome shows that the listener has both lanes open. Messages after it on this
            # lane may arrive before the second Welcome, and need a peer that has joined.
            link.up = self.linked = True
            heard.append(PeerJoined(link.peer, link.incarnation))
        if not link.whole:
            return heard, []
        link.attempts = 0
        return heard, [CancelTimer(Redial(link.peer))]

    # Failures.

    def _break(self, at: float, link: Link, event: MessageArrived[Any], reason: str) -> Heard:
        self._count("gap or false clock")
        effects = self.out_of_band(event, Reset(reason)) if link.dialled is None else []
        heard, more = self._lose(at, link, f"{event.lane} lane: {reason}")
        return heard, effects + more

    def _lose(self, at: float, link: Link, reason: str) -> Heard:
        """Close a link; the dialling side tries again a little later."""
        heard, effects = self._down(link, reason)
        if link.dialled is None:
            del self.links[link.peer]
        else:
            # Messages of the lost session that still arrive are stale, above all its Welcome: our
            # sequence numbers restart, and the peer would drop them as duplicates.
            link.session += 1
            effects.append(SetTimer(Redial(link.peer), at + REDIAL_S_MIN))
        return heard, effects

    def _watch(self, at: float, link: Link, lane: Lane) -> list[Effect]:
        """A message is queued for lack of credit: check later whether any credit arrived."""
        state = link.lanes[lane]
        if state.watched is not None:
            return []
        state.watched = state.advanced
        return [SetTimer(Stall(link.peer, lane), at + STALL_S)]

    def _stalled(self, at: float, link: Link, lane: Lane) -> Heard:
        state = link.lanes[lane]
        before, state.watched = state.watched, None
        if before is None or not state.outbox.waiting:
            return [], []
        if state.advanced > before:
            return [], self._watch(at, link, lane)
        self._count("stalled")
        return self._lose(at, link, f"{lane} lane: nothing was taken in for {STALL_S:g} s")

    def _down(self, link: Link, reason: str) -> Heard:
        was_up, link.up = link.up, False
        effects = self._forget_waiting(link)
        link.lanes = new_lanes()
        return ([PeerLost(link.peer, reason)] if was_up else []), effects

    def _forget_waiting(self, link: Link) -> list[Effect]:
        effects: list[Effect] = []
        for lane in LANES:
            if link.lanes[lane].watched is not None:
                link.lanes[lane].watched = None
                effects.append(CancelTimer(Stall(link.peer, lane)))
            for waiting in link.lanes[lane].outbox.waiting:
                if waiting.payload:
                    effects += self.handles.release(waiting.payload)
            link.lanes[lane].outbox.waiting.clear()
        return effects

    def _stale(self) -> Heard:
        self._count("stale")
        return [], []

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
