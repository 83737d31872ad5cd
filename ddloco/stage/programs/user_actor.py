"""A base class for actors that read like their algorithm: arrays are values, work is a call. Its
methods decide immediately, only from their arguments and its attributes, without clocks, files or
randomness, so that a replay decides the same.

An array is kept as long as an attribute refers to it, a message with it waits to be sent, or a call
uses it. After each event the attributes are searched for arrays, in time proportional to their
number; an actor with thousands of arrays should be a machine.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING
from functools import cache
from types import FunctionType
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from clocks import actor_of
from ddloco.stage.actors.effects import Calculation, Finish, Observe, Status, TakeSnapshot
from ddloco.stage.actors.events import (
    Begun,
    Computed,
    LeaveRequested,
    SnapshotSettled,
    StopRequested,
    WorkFailed,
)
from ddloco.stage.actors.timers import Named
from snapshot.attributes import attributes, declared
from transport import (
    BULK,
    CONTROL,
    Body,
    CancelTimer,
    Dial,
    Drop,
    Effect,
    Event,
    Hangup,
    Keep,
    Listen,
    MessageArrived,
    PeerJoined,
    PeerLost,
    Reason,
    Send,
    SetTimer,
    Timer,
    TimerFired,
)

NAME = "array"
"""The tensor name of a single numpy array in a payload."""

F = TypeVar("F", bound=Callable[..., Any])

REASON_CHARS_MAX = 1000

END_S = 10.0
"""How long, in seconds, an actor that has ended the program waits for its links to end: a peer that
was killed says no goodbye."""

_computations: dict[str, Callable[..., Any]] = {}
_PLAIN = (type(None), bool, int, float, str, bytes)


class Array(Struct, frozen=True):
    """An array, or several by name, that an actor may keep, send and compute with. Only
    computations can read its numbers."""

    handle: str


NOT_HERE = Array("")
"""In place of the array in a message on its way: its numbers are the payload."""


class Over(Body, frozen=True):
    """The program is over; who receives it finishes."""

    reason: Reason


class Done(Body, frozen=True):
    """The sender has done its part; see ``UserActor.done``."""


class EndDeadline(Timer, frozen=True):
    """The actor has ended the program: wait no longer for its links to end."""


UserTimer = Named | EndDeadline
"""The timers of a user's actor or machine."""


class Call(Calculation, frozen=True):
    """Call a computation with the arrays ``source``, and ``arguments`` by keyword."""

    function: str
    arguments: dict[str, Any] = {}


class Returned(Computed, frozen=True):
    """A call has returned; ``value`` is the plain data that it returned with its array."""

    value: Any = None


class PendingCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call in progress: its arrays are kept until it is done, then ``then`` is called."""

    then: str
    reads: tuple[Array, ...]
    makes: Array

    def method_of(self, actor: "UserActor") -> Callable[..., None]:
        """Return the method to call; ``ValueError`` if the actor has no such method of its own. The
        name may come from a snapshot, so it must be of a method that the user's classes define, and
        of none that Python calls by itself."""
        cls = type(actor)
        base = next((each for each in cls.__mro__ if self.then in vars(each)), UserActor)
        found = vars(base).get(self.then)
        own = base is not UserActor and not self.then.startswith("__")
        if own and type(found) is FunctionType:
            return found.__get__(actor)
        raise ValueError(f"{self.then[:100]!r} is no method of {cls.__qualname__} itself")


@cache
def array_field(message: type[Body]) -> str:
    """The field of a message that is an array, empty if it has none; TypeError if several are."""
    hints = get_type_hints(message)
    found = [name for name in message.__struct_fields__ if Array in _options(hints[name])]
    if len(found) > 1:
        said = "a message carries one, which may consist of several by name"
        raise TypeError(f"message {message.__name__}: {' and '.join(found)} are arrays; {said}")
    return found[0] if found else ""


@cache
def needs_array(message: type[Body]) -> bool:
    """Whether a message is not complete without its array."""
    name = array_field(message)
    return bool(name) and type(None) not in _options(get_type_hints(message)[name])


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) or (hint,)


@cache
def handler_of(message: type[Body]) -> str:
    """The name of the method for a message: ``on_new_parameters`` for ``NewParameters``."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", message.__name__)
    return f"on_{words.lower()}"


def computation(function: F) -> F:
    """Allow actors to call a function of a module with ``UserActor.call``.

    It is called in a thread, and again in every replay, with numpy arrays (or dicts of them by
    name) and keyword arguments of plain data. It returns an array, or a dict of arrays by name, or
    a pair of one of these and plain data. It must be deterministic: no clocks, no files, and
    randomness only from a seed among its arguments.
    """
    _computations[f"{function.__module__}.{function.__qualname__}"] = function
    return function


def compute_call(
    work: Any, given: Sequence[Mapping[str, NDArray[Any]]]
) -> tuple[Returned, list[dict[str, NDArray[Any]]]]:
    if not isinstance(work, Call):
        raise NotImplementedError(f"no compute was given for {type(work).__name__}")
    arrays = [tensors[NAME] if [*tensors] == [NAME] else dict(tensors) for tensors in given]
    returned = _computations[work.function](*arrays, **work.arguments)
    made, value = returned if isinstance(returned, tuple) else (returned, None)
    tensors = made if isinstance(made, dict) else {NAME: np.asarray(made)}
    return Returned(work.work, value=value), [tensors]


class UserActor:
    """An actor of a user's program; subclass it and write the methods of interest.

    A message is handled by the method of its name: ``on_gradient(self, peer, message)`` for
    ``Gradient``. Its parameter ``message`` is annotated with the class.

    Args:
        settings: values of attributes that the class annotates.

    Raises:
        TypeError: the class annotates no such attribute.

    Attributes:
        at: time of the event being handled, in seconds since the actor's start.
        name: the actor's own name.
        peers: names of the actors that it is linked with, in the order in which they joined.
    """

    at: float = 0.0
    name: str = ""
    _routes: dict[str, str]
    _pending: dict[int, PendingCall]
    _calls: int
    _held: set[str]
    _asked: list[Effect]
    _over: str
    _over_as: Status
    _done: str
    _done_peers: set[str]
    _dials: tuple[str, ...] = ()
    _listens: bool = False
    _linked: tuple[str, ...] | None = None

    def __init__(self, **settings: Any) -> None:
        known = [name for name in declared(type(self)) if not name.startswith("_")]
        # Each actor has its own, also those that never change: so a snapshot has all of them.
        for name in known:
            value = getattr(type(self), name, MISSING)
            if value is not MISSING and not hasattr(value, "__get__"):
                own = copy(value) if isinstance(value, list | dict | set) else value
                object.__setattr__(self, name, own)
        for name, value in settings.items():
            if name not in known:
                said = f"no attribute {name!r} is annotated; there are {', '.join(known)}"
                raise TypeError(f"{type(self).__name__}: {said}")
            object.__setattr__(self, name, value)

    # Events: methods to override.

    def begin(self) -> None:
        """The actor begins. Its links to other actors come up by themselves; see ``joined``."""

    def joined(self, peer: str) -> None:
        """A link to another actor is up."""

    def lost(self, peer: str, reason: str) -> None:
        """The link to another actor is down; the side that dialled keeps trying."""

    def when_idle(self) -> None:
        """An event was handled, and no computation of this actor is under way."""

    def received(self, peer: str, message: Any) -> None:
        """A message has arrived; by default the method of its name is called.

        Raises:
            NotImplementedError: there is no such method.
        """
        name = handler_of(type(message))
        handler = getattr(self, name, None)
        if handler is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no method {name}(peer, message) for this message"
            )
        handler(peer, message)

    def timer(self, name: str) -> None:
        """A timer has expired."""

    def failed(self, reason: str) -> None:
        """A computation has raised; ``reason`` is one line. By default the actor fails."""
        self.finish(reason, "failed")

    def stop(self, reason: str) -> None:
        """The run is to end: because of Ctrl-C, or as another actor here has failed. By default
        an actor that others dial ends the program, and any other one finishes."""
        if self._listens:
            self.end(reason, "stopped")
        else:
            self.finish(reason, "stopped")

    def leave(self, reason: str) -> None:
        """This actor's process must end, and is started again as the next incarnation."""
        self.finish(reason, "left")

    def snapshot_settled(self, snapshot: str, failed: str) -> None:
        """A snapshot that this actor initiated was committed, or ``failed`` says why not."""

    # Actions.

    def send(self, peer: str, message: Body, *, key: str = "") -> None:
        """Send a message, with the array in its field of type ``Array``, to a linked actor.

        Args:
            peer: its name; a message to an actor whose link is not up is dropped.
            message: the message body.
            key: a newer message with the same key replaces one that still waits to be sent.

        Raises:
            LookupError: the program has no link between the two.
        """
        if self._linked is not None and peer not in self._linked:
            said = f"{self.name} sends {type(message).__name__} to {peer!r}"
            there = ", ".join(self._linked) or "nobody"
            raise LookupError(f"{said}, with which it has no link; it has links with {there}")
        name = array_field(type(message))
        array: Array | None = getattr(message, name) if name else None
        lane, payload = (BULK, array.handle) if array is not None else (CONTROL, "")
        if array is not None:
            message = replace(message, **{name: NOT_HERE})
        if peer in self._routes:
            self._asked.append(Send(self._routes[peer], lane, message, payload, key))

    def call(
        self, function: Callable[..., Any], *arrays: Array, then: Callable[..., None], **more: Any
    ) -> None:
        """Start a computation; when it is done, ``then`` is called with its array, and with the
        plain data that it returned, if any.

        Args:
            function: a function marked with ``computation``.
            arrays: its positional arguments.
            then: a method of this actor.
            more: plain data, passed by keyword.

        Raises:
            ValueError: the function is not marked, or ``then`` is not a method of this actor.
        """
        name = f"{function.__module__}.{function.__qualname__}"
        if name not in _computations:
            raise ValueError(f"{name} is not a computation; mark it with @computation")
        made = Array(f"call/{self._calls + 1}")
        pending = PendingCall(getattr(then, "__name__", ""), arrays, made)
        if pending.method_of(self) != then:
            raise ValueError(f"then={then!r}: want a method of this actor")
        self._calls += 1
        self._pending[self._calls] = pending
        source = tuple(array.handle for array in arrays)
        self._asked.append(Call(self._calls, source, (made.handle,), name, more))

    def set_timer(self, name: str, after_s: float) -> None:
        """Have ``timer`` called after ``after_s`` seconds; setting a timer again moves it."""
        self._asked.append(SetTimer(Named(name), self.at + after_s))

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer."""
        self._asked.append(CancelTimer(Named(name)))

    def take_snapshot(self) -> None:
        """Initiate a snapshot of all actors at this event."""
        self._asked.append(TakeSnapshot())

    def log(self, event: str, **fields: Any) -> None:
        """Write a line to the log, which observers also receive."""
        self._asked.append(Observe(event, fields))

    def hang_up(self, peer: str, reason: str = "done") -> None:
        """Close the link to an actor."""
        if peer in self._routes:
            self._asked.append(Hangup(self._routes.pop(peer), reason))

    def end(self, reason: str, status: Status = "done") -> None:
        """End the program: all linked actors finish, those that they are linked with, and then,
        when its links are gone, this one. Its methods are not called any more."""
        if not self._over:
            self._over, self._over_as = reason[:REASON_CHARS_MAX], status
            if self.peers:
                self._asked.append(SetTimer(EndDeadline(), self.at + END_S))
        for peer in self.peers:
            self.send(peer, Over(self._over), key="over")
        if not self.peers:
            self.finish(self._over, self._over_as)

    def done(self, reason: str) -> None:
        """This actor has done its part: it finishes once all that it is linked with have, too."""
        if not self._done:
            self._done = reason[:REASON_CHARS_MAX]
            for peer in self.peers:
                self.send(peer, Done(), key="done")
        if self._done_peers >= set(self.peers):
            self.finish(self._done)

    def finish(self, reason: str, status: Status = "done") -> None:
        """End this actor: it closes its links, and receives no more events."""
        for peer in self.peers:
            self.hang_up(peer, reason)
        self._asked.append(Finish(status, reason))

    @property
    def idle(self) -> bool:
        """Whether no computation of this actor is under way."""
        return not self._pending

    @property
    def peers(self) -> list[str]:
        """See the class."""
        return list(self._routes)

    # The machine.

    def link(
        self, dials: tuple[str, ...], *, listens: bool, linked: tuple[str, ...] | None = None
    ) -> None:
        """Set whom this actor dials, whether others dial it, and the names of all that it can have
        links with; its program does."""
        self._dials, self._listens, self._linked = dials, listens, linked

    def handle(self, at: float, event: Event) -> list[Effect]:
        """Handle one event; see ``ddloco.stage.actors.actor.Machine``."""
        self.at = at
        self._asked = []
        if isinstance(event, Begun):
            self._begin(event.incarnation)
        self._hear(event)
        ends = self._over or any(isinstance(each, Finish) for each in self._asked)
        if self.idle and not ends:
            self.when_idle()
        asked, self._asked = self._asked, []
        held = {array.handle for array in _arrays(self, set())}
        kept: list[Effect] = [Keep(each) for each in sorted(held - self._held)]
        dropped = [Drop(each) for each in sorted(self._held - held)]
        self._held = held
        return [*kept, *asked, *dropped]

    def _begin(self, incarnation: str) -> None:
        self.name = actor_of(incarnation)
        self._routes = {}
        self._pending = {}
        self._calls = 0
        self._held = set()
        self._over, self._over_as = "", "done"
        self._done, self._done_peers = "", set()
        listen = [Listen({})] if self._listens else []
        self._asked = [*listen, *(Dial(peer, {}) for peer in self._dials)]

    def _hear(self, event: Event) -> None:
        match event:
            case PeerJoined(peer):
                self._routes[actor_of(peer)] = peer
                self._joined(actor_of(peer))
            case PeerLost(peer, reason):
                if self._routes.get(actor_of(peer)) == peer:
                    del self._routes[actor_of(peer)]
                    self._lost(actor_of(peer), reason)
            case MessageArrived(body=Over(reason)):
                for peer in self.peers:
                    self.send(peer, Over(reason), key="over")
                self.finish(reason)
            case TimerFired(EndDeadline()):
                self.finish(self._over, self._over_as)
            case _:
                if not self._over:
                    self._tell(event)

    def _joined(self, peer: str) -> None:
        self._done_peers.discard(peer)
        if self._over:
            self.send(peer, Over(self._over), key="over")
            return
        self.joined(peer)
        if self._done:
            self.send(peer, Done(), key="done")

    def _lost(self, peer: str, reason: str) -> None:
        if not self._over:
            self.lost(peer, reason)
            if self._done:
                self.done(self._done)
        elif not self.peers:
            self.finish(self._over, self._over_as)

    def _tell(self, event: Event) -> None:
        match event:
            case Begun():
                self.begin()
            case MessageArrived(peer=peer, body=Done()):
                self._done_peers.add(actor_of(peer))
                if self._done:
                    self.done(self._done)
            case MessageArrived(peer=peer, body=body, handle=handle):
                name = array_field(type(body))
                arrived = replace(body, **{name: Array(handle)}) if name and handle else body
                self.received(actor_of(peer), arrived)
            case Returned(work=work, value=value):
                done = self._pending.pop(work)
                then = done.method_of(self)
                then(done.makes) if value is None else then(done.makes, value)
            case WorkFailed(work=work, reason=reason):
                self._pending.pop(work, None)
                self.failed(reason)
            case TimerFired(Named(name)):
                self.timer(name)
            case SnapshotSettled(snapshot, failed):
                self.snapshot_settled(snapshot, failed)
            case StopRequested(reason):
                self.stop(reason)
            case LeaveRequested(reason):
                self.leave(reason)
            case _:
                return


def _arrays(thing: Any, seen: set[int]) -> Iterator[Array]:
    """The arrays that an object refers to, in no particular order."""
    if isinstance(thing, _PLAIN) or id(thing) in seen:
        return
    if isinstance(thing, Array):
        yield thing
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        for each in (*thing.keys(), *thing.values()):
            yield from _arrays(each, seen)
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        for each in thing:
            yield from _arrays(each, seen)
    else:
        for _, each in attributes(thing):
            yield from _arrays(each, seen)
