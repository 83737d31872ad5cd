"""What any actor is doing, for people and observers. A machine with a ``status`` method says more
about itself; of any other machine the attributes are shown, one by one."""

import reprlib
from typing import Any

from msgspec import Struct

from ddloco.stage.actors.actor import Actor
from ddloco.stage.actors.events import WorkFailed
from snapshot.attributes import attributes
from transport import LANES, LaneBroken

FIELD_CHARS_MAX = 160
"""Characters that are shown of an attribute: a line or two of a terminal."""

FIELDS_MAX = 64
"""Attributes and pieces of work that are shown; a status must fit into one frame."""

LINKS_MAX = 256
"""Links that are shown, for the same reason."""


class LinkStatus(Struct, frozen=True):
    """One link of an actor.

    Attributes:
        heard: the newest event of the peer that the actor has heard of.
    """

    peer: str
    heard: int
    waiting: int = 0


class ActorStatus(Struct, frozen=True, kw_only=True):
    """The status of one actor.

    Attributes:
        state: its machine's attributes, as text; not those whose names begin with ``_``.
        error: the newest error on its tape: of its work, or of a link. It may be over.
        queue: events that have arrived and are not handled yet; None if it does not run.
        address: the address that was asked; of a recorded actor, its event.
        sent_bytes: the bytes of all messages that it sent; None if it does not run.
        received_bytes: likewise, that it received.
    """

    incarnation: str = ""
    events: int = 0
    uptime_s: float = 0.0
    linked: tuple[LinkStatus, ...] = ()
    work: tuple[str, ...] = ()
    timers: dict[str, float] = {}
    arrays: int = 0
    state: dict[str, str] = {}
    error: str = ""
    queue: int | None = None
    address: str = ""
    name: str = ""
    job: str = ""
    refused_frames: dict[str, int] = {}
    sent_bytes: int | None = None
    received_bytes: int | None = None
    problem: str = ""


def actor_status(actor: Actor[Any, Any, Any, Any], at: float) -> ActorStatus:
    links, clock = actor.links, actor.clock.wire()
    peers = links.peers()[:LINKS_MAX]
    return ActorStatus(
        incarnation=actor.incarnation,
        events=actor.number,
        uptime_s=at,
        linked=tuple(
            LinkStatus(
                who := links.incarnation(peer) or peer,
                clock.get(who, 0),
                sum(links.waiting(peer, lane)[0] for lane in LANES),
            )
            for peer in peers
        ),
        work=tuple(_in_words(work) for work in [*actor.under_way.values()][:FIELDS_MAX]),
        timers={str(timer): round(due - at, 3) for timer, due in actor.timers[:FIELDS_MAX]},
        arrays=len(actor.handles.names()),
        state=fields_of(actor.machine),
    )


def fields_of(machine: object) -> dict[str, str]:
    names = getattr(machine, "__struct_fields__", None)
    held = ((name, getattr(machine, name)) for name in names) if names else attributes(machine)
    public = [(name, value) for name, value in held if not name.startswith("_")]
    return {name: _short(value) for name, value in public[:FIELDS_MAX]}


def error_in(event: object) -> str:
    """Return what an event says that went wrong, on one line; empty if nothing did."""
    match event:
        case WorkFailed():
            return f"work {event.work} failed: {event.reason}"
        case LaneBroken():
            return f"link to {event.peer} broken: {event.reason}"
        case _:
            return ""


def _in_words(work: Any) -> str:
    function = getattr(work, "function", "")
    name = function.rpartition(".")[2] or type(work).__name__
    return f"{name} (work {work.work})"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = FIELD_CHARS_MAX


_repr = _Short().repr


def _short(value: object) -> str:
    text = _repr(value)
    return text if len(text) <= FIELD_CHARS_MAX else f"{text[: FIELD_CHARS_MAX - 3]}..."
