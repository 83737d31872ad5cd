"""The link machine: handshake, sequence, credit, and what happens when any of them breaks.

Pure: it is told events and returns what the machine above it should hear and what the driver
should do. One object holds all links of an actor.

A link has two lanes. The dialling side says Hello on both, the listening side answers Welcome on
both, and the link is up; every message after that has a number in its lane. A hole in the numbers,
a refused frame or an unreachable peer breaks the link: nothing is resent, nothing papered over.
The dialling side shakes hands again with a higher session number; the listening side asks for that
with Reset. What the peers say is absolute, so they then simply say the newest of it again.

    dialling            listening
    --------            ---------
    Hello (both)   ->
                   <-   Welcome (both)        up
                   <-   Refused               differs for ever
                   <-   Reset                 dial again, a later session
"""

from typing import Any

from clocks import RunningClock, Verdict
from transport.effects import CancelTimer, Dial, Effect, Hangup, Listen, Send, SetTimer, Transmit
from transport.events import (
    Event,
    LaneBroken,
    MessageArrived,
    PeerJoined,
    PeerLost,
    PeerRefused,
    TimerFired,
)
from transport.handles import Handles
from transport.message import (
    BULK,
    CONTROL,
    LANES,
    Body,
    Bye,
    Credit,
    Hello,
    Lane,
    Refused,
    Reset,
    Welcome,
)
from transport.outbox import WINDOW_MESSAGES, OutboxFullError, Waiting
from transport.session import (
    LaneState,
    Link,
    disagreement,
    new_lanes,
    redial_timer,
    stall_timer,
)

REDIAL_S_MIN = 0.5
REDIAL_S_MAX = 8.0
"""A dialling side repeats Hello after 0.5 s, then 1, 2, 4, and every 8 s: soon enough to follow a
syncer that starts late, seldom enough not to matter. Half a second also keeps a broken pair of
links from shaking hands in a tight loop."""

DOUBLINGS_MAX = 8
"""More doublings than lead from the first wait to the longest; 2**1100 is no float any more."""

STALL_S = 30.0
"""A lane whose messages wait for credit this long, with none coming, may have lost all that it had
on its way: nothing that follows could show the hole. The link is given up, which costs a handshake
where the other side was merely stopped."""

GREETINGS = frozenset({Hello, Welcome, Reset, Refused})
"""Bodies of the handshake, which stand outside the numbers of a session."""

Heard = tuple[list[Event], list[Effect]]


class Links:
    """All links of one actor.

    Args:
        clock: the actor's clock, which stands at the event being handled.
        handles: the actor's counts of array holders.
    """

    def __init__(self, clock: RunningClock, handles: Handles) -> None:
        self.me = clock.me
        self.clock = clock
        self.counters: dict[str, int] = {}
        """What was refused or dropped, by reason."""
        self._handles = handles
        self._links: dict[str, Link] = {}
        self._agreement: dict[str, str] | None = None

    def peers(self) -> list[str]:
        """Whoever's link is up, in order of names as bytes."""
        return sorted((link.peer for link in self._links.values() if link.up), key=str.encode)

    def waiting(self, peer: str, lane: Lane) -> tuple[int, bool]:
        """How many messages wait in a lane, and whether there is credit for another."""
        outbox = self._links[peer].lanes[lane].outbox
        return len(outbox.waiting), outbox.sent - outbox.taken < outbox.window

    def knows(self, peer: str) -> bool:
        """Whether there is any link to ``peer``, open or not."""
        return peer in self._links

    # What the machine above asks for.

    def perform(self, at: float, effect: Send[Any] | Dial | Listen | Hangup) -> Heard:
        """Do what the machine above asks of its links."""
        match effect:
            case Send():
                return self._send(at, effect)
            case Dial(peer, agreement):
                link = self._links[peer] = Link(peer, agreement)
                return [], self._dial(at, link)
            case Listen(agreement):
                self._agreement = agreement
                return [], []
            case Hangup():
                return [], self._hangup(effect)

    def _send(self, at: float, send: Send[Any]) -> Heard:
        link = self._links.get(send.peer)
        if link is None or not link.up:
            self._count("said to a peer without a link")
            return [], []
        lane = link.lanes[send.lane]
        if lane.outbox.pass_through():
            number = self._number(link, send.lane, lane, send.body, send.payload)
            return [], [number]
        waiting = Waiting(send.body, send.payload, send.key, send.barrier)
        try:
            replaced = lane.outbox.put(waiting)
        except OutboxFullError as error:
            self._count("outbox full")
            return self._lose(at, link, f"{send.lane} lane: {error}")
        if send.payload:
            self._handles.hold(send.payload)
        effects = self._watch(at, link, send.lane)
        if replaced is not None and replaced.payload:
            effects += self._handles.release(replaced.payload)
        return [], effects

    def _hangup(self, hangup: Hangup) -> list[Effect]:
        peer = hangup.peer
        link = self._links.get(peer)
        if link is None:
            return []
        effects: list[Effect] = []
        if link.up:
            body = Refused(hangup.reason) if hangup.final else Bye(hangup.reason)
            link.lanes[CONTROL].outbox.put_first(Waiting(body, free_of_charge=True))
            effects += self._pump(link, CONTROL)
        effects += self._forget_waiting(link)
        if link.dialled is not None:
            effects.append(CancelTimer(redial_timer(peer)))
        del self._links[peer]
        return effects

    # What the world tells.

    def handle(self, at: float, event: Event) -> Heard:
        """Take one event; returns what the machine above should be told, and effects."""
        match event:
            case MessageArrived():
                link = self._links.get(event.peer)
                if link is None or event.session != link.session or type(event.body) in GREETINGS:
                    return self._greeted(at, link, event)
                state = link.lanes[event.lane]
                return self._numbered(at, link, state, event) if state.open else self._lost(event)
            case LaneBroken(peer, lane, reason):
                link = self._links.get(peer)
                if link is None:
                    return [], []
                self._count("lane broken")
                return self._lose(at, link, f"{lane} lane: {reason}")
            case TimerFired(timer) if timer.startswith("stall/"):
                link = self._links.get(timer.split("/", 2)[2])
                lane = BULK if timer.startswith(f"stall/{BULK}") else CONTROL
                return self._stalled(at, link, lane) if link is not None else ([], [])
            case TimerFired(timer) if timer.startswith("redial/"):
                link = self._links.get(timer.removeprefix("redial/"))
                if link is None or link.whole:
                    return [], []
                heard, effects = self._down(link, "no welcome on both lanes")
                return heard, effects + self._dial(at, link)
            case _:
                return [event], []

    def _greeted(self, at: float, link: Link | None, event: MessageArrived[Any]) -> Heard:
        """A message of the handshake, or of a session that is not the current one."""
        match event.body:
            case Hello():
                return self._hello(event, event.body)
            case Welcome() | Reset() | Refused() if link is None or event.session != link.session:
                return self._stale()
            case Welcome() if link is not None:
                return self._welcome(link, event)
            case Reset(reason) if link is not None and link.dialled is not None:
                return self._lose(at, link, f"the other side asks to start again: {reason}")
            case Refused(reason) if link is not None and link.dialled is not None:
                del self._links[link.peer]
                gone = self._forget_waiting(link)
                timer = CancelTimer(redial_timer(link.peer))
                return [PeerRefused(link.peer, reason)], [*gone, timer]
            case _:
                return self._lost(event)

    def _lost(self, event: MessageArrived[Any]) -> Heard:
        """A message of a session that is unknown here: whoever dialled must begin anew."""
        heard, effects = self._stale()
        link = self._links.get(event.peer)
        if link is None or link.dialled is None:
            effects += self._out_of_band(event, Reset("this session is unknown here"))
        return heard, effects

    def _numbered(
        self, at: float, link: Link, lane: LaneState, event: MessageArrived[Any]
    ) -> Heard:
        """A message of an open lane: only the next one counts."""
        if event.clock.get(self.me, 0) >= self.clock.number:
            return self._break(at, link, event, "its clock knows events that have not happened")
        verdict = lane.incoming.check(event.seq)
        if verdict is Verdict.DUPLICATE:
            self._count("duplicate")
            return [], []
        if verdict is Verdict.GAP:
            due = lane.incoming.expected
            return self._break(at, link, event, f"message {event.seq} where {due} was due")
        match event.body:
            case Credit(of_lane, taken):
                link.lanes[of_lane].outbox.credited(taken)
                return [], self._pump(link, of_lane)
            case Bye(reason):
                # Whoever dialled keeps trying: a syncer that failed may come back.
                return self._lose(at, link, reason)
            case _:
                lane.taken += 1
                if lane.taken - lane.credited < WINDOW_MESSAGES[event.lane] // 2:
                    return [event], []
                return [event], self._give_credit(link, event.lane)

    # Handshake.

    def _dial(self, at: float, link: Link) -> list[Effect]:
        wait = min(REDIAL_S_MIN * 2 ** min(link.attempts, DOUBLINGS_MAX), REDIAL_S_MAX)
        link.session += 1
        link.attempts += 1
        link.lanes = new_lanes()
        effects: list[Effect] = [
            self._number(link, lane, link.lanes[lane], Hello(link.dialled or {})) for lane in LANES
        ]
        return [*effects, SetTimer(redial_timer(link.peer), at + wait)]

    def _hello(self, event: MessageArrived[Any], hello: Hello) -> Heard:
        """The listening side's part; a lower session than the current one is old news."""
        link = self._links.get(event.peer)
        if self._agreement is None or (link is not None and link.dialled is not None):
            return self._stale()
        difference = disagreement(self._agreement, hello.agreement)
        if difference is not None:
            self._count("refused at the handshake")
            return [], self._out_of_band(event, Refused(difference))
        heard: list[Event] = []
        effects: list[Effect] = []
        if link is None or event.session > link.session:
            if link is not None:
                heard, effects = self._down(link, "it shook hands again")
            link = self._links[event.peer] = Link(event.peer, None, event.session)
        elif event.session < link.session:
            return self._stale()
        link.incarnation = event.sender
        lane = link.lanes[event.lane]
        if lane.incoming.check(event.seq) is not Verdict.NEXT:
            return self._stale()
        lane.open = True
        if link.whole:
            lanes = link.lanes
            effects += [self._number(link, each, lanes[each], Welcome()) for each in LANES]
            link.up = True
            heard.append(PeerJoined(link.peer, link.incarnation))
        return heard, effects

    def _welcome(self, link: Link, event: MessageArrived[Any]) -> Heard:
        lane = link.lanes[event.lane]
        if link.dialled is None or lane.incoming.check(event.seq) is not Verdict.NEXT:
            return self._stale()
        link.incarnation = event.sender
        lane.open = True
        heard: list[Event] = []
        if not link.up:
            # One Welcome says that the other side has both lanes open. What follows it in this
            # lane may arrive before the second Welcome, and must find a peer that has joined.
            link.up = True
            heard.append(PeerJoined(link.peer, link.incarnation))
        if not link.whole:
            return heard, []
        link.attempts = 0
        return heard, [CancelTimer(redial_timer(link.peer))]

    # When things break.

    def _break(self, at: float, link: Link, event: MessageArrived[Any], reason: str) -> Heard:
        self._count("gap or false clock")
        effects = self._out_of_band(event, Reset(reason)) if link.dialled is None else []
        heard, more = self._lose(at, link, f"{event.lane} lane: {reason}")
        return heard, effects + more

    def _lose(self, at: float, link: Link, reason: str) -> Heard:
        """The link is open no more; whoever dialled tries again a little later."""
        heard, effects = self._down(link, reason)
        if link.dialled is None:
            del self._links[link.peer]
        else:
            # What still arrives of the lost session is stale, its Welcome above all: our numbers
            # start anew, and under an old session the other side would take them for duplicates.
            link.session += 1
            effects.append(SetTimer(redial_timer(link.peer), at + REDIAL_S_MIN))
        return heard, effects

    def _watch(self, at: float, link: Link, lane: Lane) -> list[Effect]:
        """A message waits: look again later whether any credit has come."""
        state = link.lanes[lane]
        if state.watched is not None:
            return []
        state.watched = state.outbox.taken
        return [SetTimer(stall_timer(link.peer, lane), at + STALL_S)]

    def _stalled(self, at: float, link: Link, lane: Lane) -> Heard:
        state = link.lanes[lane]
        before, state.watched = state.watched, None
        if before is None or not state.outbox.waiting:
            return [], []
        if state.outbox.taken > before:
            return [], self._watch(at, link, lane)
        self._count("stalled")
        return self._lose(at, link, f"{lane} lane: no credit for {STALL_S:g} s")

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
                effects.append(CancelTimer(stall_timer(link.peer, lane)))
            for waiting in link.lanes[lane].outbox.waiting:
                if waiting.payload:
                    effects += self._handles.release(waiting.payload)
            link.lanes[lane].outbox.waiting.clear()
        return effects

    def _stale(self) -> Heard:
        self._count("stale")
        return [], []

    # Sending.

    def _pump(self, link: Link, lane: Lane) -> list[Effect]:
        """Send what credit lets go; what a message held is released once it has left."""
        state = link.lanes[lane]
        if not state.outbox.waiting:
            return []
        effects: list[Effect] = []
        for message in state.outbox.release():
            effects.append(self._number(link, lane, state, message.body, message.payload))
            if message.payload:
                effects += self._handles.release(message.payload)
        return effects

    def _give_credit(self, link: Link, lane: Lane) -> list[Effect]:
        state = link.lanes[lane]
        state.credited = state.taken
        credit = Waiting(Credit(lane, state.taken), free_of_charge=True)
        link.lanes[CONTROL].outbox.put_first(credit)
        return self._pump(link, CONTROL)

    def _number(
        self, link: Link, lane: Lane, state: LaneState, body: Body, payload: str = ""
    ) -> Transmit[Any]:
        """Sequence number and clock are stamped here, when a message really leaves."""
        # Before anything was told in a lane, everything is: this may be another incarnation.
        delta = self.clock.since(state.told, link.incarnation if state.told else "")
        state.told = self.clock.number
        seq = state.outgoing.take()
        return Transmit(link.peer, lane, link.session, seq, delta, body, payload)

    def _out_of_band(self, event: MessageArrived[Any], body: Body) -> list[Effect]:
        """An answer outside any sequence, to a session that is not (or no longer) ours."""
        clock = self.clock.wire()
        return [Transmit(event.peer, CONTROL, event.session, 0, clock, body)]

    def _count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1
