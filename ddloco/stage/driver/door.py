"""The door of an actor: every event is recorded and handled here.

Live runs, simulations and scheduled runs differ in the source of events and in how effects are
performed; they share this door.
"""

from ddloco.stage.actors.actor import Actor
from replay import Recorder
from transport import Effect, Event


def admit(actor: Actor, recorder: Recorder | None, at: float, event: Event) -> list[Effect]:
    """Stamp, tape, handle, tape: in this order, always. Returns the effects to perform, in order.

    The event is on the tape before it is handled, and the digest of the effects before any of them
    is performed.

    Args:
        actor: the actor that handles the event.
        recorder: writes the actor's tape; None to record nothing.
        at: seconds since the actor's start.
        event: the event; an array that it names is already in the array table.

    Raises:
        TapeError: the tape cannot be written, and the recorder is configured to raise then.
        Exception: any exception of the machine, after it was recorded on the tape.
    """
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
