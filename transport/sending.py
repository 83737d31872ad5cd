"""Sending on a link: sequence numbers, clocks, and credit, assigned when a message leaves."""

from typing import Any

from msgspec import Struct

from clocks import ActorClock
from transport.effects import Effect, Transmit
from transport.events import MessageArrived
from transport.flow_control import OWED_SHARE, WINDOW_MESSAGES, QueuedMessage
from transport.link_state import LaneState, Link
from transport.message import CONTROL, Body, Credit, Lane
from transport.refcounts import Handles


class LinkSender(Struct, forbid_unknown_fields=True):
    """The sending side of an actor's links; ``clock`` is already advanced to the event being
    handled."""

    clock: ActorClock
    handles: Handles

    def pump(self, link: Link, lane: Lane) -> list[Effect]:
        state = link.lanes[lane]
        if not state.outbox.waiting:
            return []
        effects: list[Effect] = []
        for message in state.outbox.release():
            effects.append(self.number(link, lane, state, message.body, message.payload))
            if message.payload:
                effects += self.handles.release(message.payload)
        return effects

    def give_credit(self, link: Link, lane: Lane, arrived: int = 0) -> list[Effect]:
        state = link.lanes[lane]
        state.credited = state.taken
        credit = QueuedMessage(Credit(lane, state.taken, arrived), free_of_charge=True)
        link.lanes[CONTROL].outbox.put_first(credit)
        return self.pump(link, CONTROL)

    def settle(self, link: Link) -> list[Effect]:
        link.owes = False
        effects: list[Effect] = []
        for lane, state in link.lanes.items():
            if state.taken - state.credited >= OWED_SHARE * WINDOW_MESSAGES[lane]:
                effects += self.give_credit(link, lane)
        return effects

    def number(
        self, link: Link, lane: Lane, state: LaneState, body: Body, payload: str = ""
    ) -> Transmit[Any]:
        """Assign the sequence number and the clock, at the time when a message really leaves."""
        # The first message of a lane carries the whole clock: the peer may be a new incarnation.
        delta = self.clock.since(state.told, link.incarnation if state.told else "")
        state.told = self.clock.number
        seq = state.outgoing.take()
        return Transmit(link.peer, lane, link.session, seq, delta, body, payload)

    def out_of_band(self, event: MessageArrived[Any], body: Body) -> list[Effect]:
        """Reply outside any sequence to a message whose session is not current here."""
        clock = self.clock.wire()
        return [Transmit(event.peer, CONTROL, event.session, 0, clock, body)]
