"""The door of an actor, which live runs, simulations and scheduled runs share: they differ in the
source of events and in how effects are performed."""

from ddloco.stage.actors.actor import Actor
from replay import Recorder
from transport import Effect, Event


def admit(actor: Actor, recorder: Recorder | None, at: float, event: Event) -> list[Effect]:
    """Stamp, tape, handle, tape: in this order, always. Returns the effects to perform, in order.
    The event is on the tape before it is handled, and the digest of the effects before any of them
    is performed. An array that the event names is already in the array table. ``TapeError`` if the
    tape cannot be written and the recorder raises then; an exception of the machine is recorded
    before it is raised."""
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
