"""Hands messages from the replay of one tape to the replay of another that waits for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import trio

from clocks import actor_of
from replay import TapeError
from transport import MessageArrived, Payload, Transmit

Key = tuple[str, int, str, str, int, int]
"""A message: sender, its event, receiver as addressed, lane, session, number."""


def message_key(receiver: str, event: MessageArrived[Any]) -> Key:
    """The message that arrived at an incarnation. A listening side is addressed by its actor's
    name, a dialling one by incarnation."""
    to = actor_of(receiver) if event.peer == event.sender else receiver
    number = event.clock.get(event.sender, 0)
    return (event.sender, number, to, event.lane, event.session, event.seq)


@dataclass(frozen=True, slots=True)
class Posted:
    """A message as the sender's replay said it; no payload where it could not be computed."""

    said: Transmit[Any]
    payload: Payload | None


class StuckError(TapeError):
    """Tapes wait for each other in a circle."""


class Mailbox:
    """Messages on their way between replays, each found by what names it."""

    def __init__(self, senders: set[str]) -> None:
        self._posted: dict[Key, Posted] = {}
        self._awaited: dict[Key, trio.Event] = {}
        self._speaking = set(senders)
        self._later: dict[str, str] = {}
        """Tapes that wait for the end of another one, each with that."""

    def post(self, sender: str, number: int, said: Transmit[Any], payload: Payload | None) -> None:
        key = (sender, number, said.peer, said.lane, said.session, said.seq)
        self._posted[key] = Posted(said, payload)
        if key in self._awaited:
            self._awaited.pop(key).set()

    def silence(self, sender: str) -> None:
        """A replay has come to its tape's end; nothing more will be said."""
        self._speaking.discard(sender)
        self._later = {name: former for name, former in self._later.items() if former != sender}
        for key in [key for key in self._awaited if key[0] == sender]:
            self._awaited.pop(key).set()
        self._check_stuck()

    @contextmanager
    def waits_for_end(self, name: str, former: str) -> Iterator[None]:
        """While a tape is not played yet, since that of its actor's former incarnation is."""
        if former in self._speaking:
            self._later[name] = former
            self._check_stuck()
        yield
        self._later.pop(name, None)

    async def take(self, key: Key) -> Posted | None:
        """Return the message; None if its sender's tape ended before saying it."""
        if key not in self._posted and key[0] in self._speaking:
            said = self._awaited.setdefault(key, trio.Event())
            self._check_stuck()
            await said.wait()
        return self._posted.get(key)

    def take_payload(self, key: Key) -> None:
        """The payload has been handed over; a duplicate of the message never needs it."""
        self._posted[key] = Posted(self._posted[key].said, None)

    def _check_stuck(self) -> None:
        """Tapes of one run cannot wait for each other in a circle; others can."""
        waiting = len(self._awaited) + len(self._later)
        if self._awaited and waiting >= len(self._speaking):
            sender, number, receiver, *_ = min(self._awaited)
            raise StuckError(
                receiver, 0, f"waits for a message of {sender}:{number}, which waits as well; "
                "these tapes are not of one run"
            )  # fmt: skip
