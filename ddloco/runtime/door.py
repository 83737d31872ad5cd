"""The door of an actor: the one place where an event becomes history.

A live run, a simulated one and a real one that follows a schedule differ in where events come from
and in how effects are performed. What lies between is here, once.
"""

from ddloco.actors.actor import Actor
from replay import Recorder
from transport import Effect, Event


class Door:
    """Stamp, tape, handle, tape: in this order, always.

    Args:
        actor: whose door it is.
        recorder: writes the actor's tape; None to record nothing.
    """

    def __init__(self, actor: Actor, recorder: Recorder | None) -> None:
        self.actor = actor
        self._recorder = recorder

    def admit(self, at: float, event: Event) -> list[Effect]:
        """Let the actor handle its next event; the effects that are to be performed, in order.

        The event is on the tape before it is handled, and the digest of the effects before any of
        them is performed.

        Args:
            at: seconds since the actor's start.
            event: what happens; an array that it names is there already.

        Raises:
            TapeError: the tape cannot be written, and the recorder is to stop then.
            Exception: whatever the machine raises; the tape says that it did.
        """
        actor, recorder = self.actor, self._recorder
        if recorder is None:
            return actor.handle(at, event)
        learned = actor.witness(event)
        recorder.event(actor.number, at, learned, event)
        try:
            effects = actor.handle(at, event)
        except Exception as error:
            recorder.raised(actor.number, error)
            raise
        recorder.effects(actor.number, effects)
        return effects
