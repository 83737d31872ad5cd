"""Messages as they really leave: with a number, a clock, and credit."""

from typing import Any

from clocks import RunningClock
from transport.effects import Effect, Transmit
from transport.events import MessageArrived
from transport.flow_control import OWED_SHARE, WINDOW_MESSAGES, Waiting
from transport.link_state import LaneState, Link
from transport.message import CONTROL, Body, Credit, Lane
from transport.refcounts import Handles


class Sending:
    """What an actor's links send.

    Args:
        clock: the actor's clock, which stands at the event being handled.
        handles: the actor's counts of array holders.
    """

    def __init__(self, clock: RunningClock, handles: Handles) -> None:
        self._clock = clock
        self._handles = handles

    def pump(self, link: Link, lane: Lane) -> list[Effect]:
        """Send what credit lets go; what a message held is released once it has left."""
        state = link.lanes[lane]
        if not state.outbox.waiting:
            return []
        effects: list[Effect] = []
        for message in state.outbox.release():
            effects.append(self.number(link, lane, state, message.body, message.payload))
            if message.payload:
                effects += self._handles.release(message.payload)
        return effects

    def give_credit(self, link: Link, lane: Lane, arrived: int = 0) -> list[Effect]:
        """Say how much of a lane has been taken in, and how many bytes of the next message."""
        state = link.lanes[lane]
        state.credited = state.taken
        credit = Waiting(Credit(lane, state.taken, arrived), free_of_charge=True)
        link.lanes[CONTROL].outbox.put_first(credit)
        return self.pump(link, CONTROL)

    def settle(self, link: Link) -> list[Effect]:
        """Give the credit that has waited for something to be said."""
        link.owes = False
        effects: list[Effect] = []
        for lane, state in link.lanes.items():
            if state.taken - state.credited >= OWED_SHARE * WINDOW_MESSAGES[lane]:
                effects += self.give_credit(link, lane)
        return effects

    def number(
        self, link: Link, lane: Lane, state: LaneState, body: Body, payload: str = ""
    ) -> Transmit[Any]:
        """Sequence number and clock are stamped here, when a message really leaves."""
        # Before anything was told in a lane, everything is: this may be another incarnation.
        delta = self._clock.since(state.told, link.incarnation if state.told else "")
        state.told = self._clock.number
        seq = state.outgoing.take()
        return Transmit(link.peer, lane, link.session, seq, delta, body, payload)

    def out_of_band(self, event: MessageArrived[Any], body: Body) -> list[Effect]:
        """An answer outside any sequence, to a session that is not (or no longer) ours."""
        clock = self._clock.wire()
        return [Transmit(event.peer, CONTROL, event.session, 0, clock, body)]
