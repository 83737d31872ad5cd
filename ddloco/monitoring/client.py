"""The observer's client: asks a syncer over the syncer's own port.

It sends a request every second, with the number of the last notice received; see
``observer_protocol`` for the messages and ``observer_server`` for the other end. Its identity is
random: machines do not see it.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import trio

from ddloco.stage.actors.observations import BEGUN, DISCARDED, DISMISSED, NOT_DISMISSED, TAKEN
from ddloco.stage.driver.endpoints import new_endpoint
from ddloco.stage.files.addresses import LEASE_PLACE, check_dial, end_at
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.observers.observer_protocol import (
    OBSERVER,
    OWNER,
    Ask,
    Fragment,
    News,
    Reader,
    Sorry,
    Told,
)
from ddloco.stage.process.side_protocol import SideProtocolError, tell
from transport import Arrival, Endpoint
from transport.zeromq import open_context

if TYPE_CHECKING:
    from transport import Payload
    from transport.curve_auth import Curve

ROUTE = "syncer/control"

BEAT_S = 1.0
"""Seconds between two requests of an observer that follows a job."""

SILENCE_S_MAX = 30.0
"""A syncer that sends nothing for this long, in seconds, though it is asked every second, is
considered dead. One that only pauses for a while (a stopped process) is waited for."""

TAKEN_MAX = 64
"""Notices received before they are acknowledged outside the regular beat: a quarter of what may be
unacknowledged."""

INBOX_MAX = 16
"""Notices taken off the socket and not yet processed; others wait in the socket's queue,
unacknowledged, until the server sends no more."""

Notified: TypeAlias = "Told | News | tuple[Fragment, Payload]"
Take = Callable[[Notified], Awaitable[None]]


Wanted = Literal["", "snapshot", "stop", "leave"]


class UnansweredError(Exception):
    """The syncer does not answer, or not correctly; one line contains its address."""


class Observer:
    def __init__(
        self, endpoint: Endpoint, address: str, timeout_s: float, *, keyed: bool = False
    ) -> None:
        self.refused = 0
        """Frames that were not valid notices."""
        self.lost = 0
        """News that the syncer skipped because this observer was too slow."""
        self._endpoint = endpoint
        self._address = address
        self._timeout_s = timeout_s
        self._keyed = keyed
        self._taken = 0
        self._said_taken = 0
        self._wanted: Wanted = ""
        """What the syncer is asked for with each beat, until that is heard of."""
        self._who = ""
        self._reader = Reader()
        self._inbox, self._waiting = trio.open_memory_channel[Any](INBOX_MAX)

    async def status(self) -> dict[str, Any]:
        """The syncer's status; raises UnansweredError if it does not answer in time, or
        declines."""
        told: Any = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._endpoint.run, self._deliver)
            self._ask(Ask("status", taken=self._taken))
            with trio.move_on_after(self._timeout_s):
                while not isinstance(told, Told | Sorry):
                    told, _ = await self._next()
            nursery.cancel_scope.cancel()
        if not isinstance(told, Told):
            raise UnansweredError(self._problem(told, self._no_answer()))
        return {"address": self._address, **told.status}

    async def follow(self, take: Take, *, payloads: bool, stop: bool = False) -> News:
        """Pass every notice to ``take`` until the job ends; returns the news of its end. With
        ``stop`` the job is asked to end.

        ``take`` also gets a status every second, and with ``payloads`` the newest version of every
        global fragment, beginning with the current ones. Its exceptions are raised in a group.
        """
        said: Any = None
        async with self._asking("stop" if stop else "", payloads=payloads):
            patience_s, problem = self._timeout_s, self._no_answer()
            while not (isinstance(said, News) and said.event == "ended"):
                said = payload = None
                with trio.move_on_after(patience_s):
                    said, payload = await self._next()
                if said is None or isinstance(said, Sorry):
                    break
                patience_s = SILENCE_S_MAX
                problem = self._silent()
                await self._take_in(take, said, payload, payloads=payloads)
        if not isinstance(said, News):
            raise UnansweredError(self._problem(said, problem))
        return said

    async def snapshot(self) -> News:
        """Request a snapshot; returns the news of its result, or of the job's end before that."""
        name, said = "", None
        async with self._asking("snapshot"):
            begins_by, problem = trio.current_time() + self._timeout_s, self._no_answer()
            while not (isinstance(said, News) and _settles(said, name)):
                said = None
                # Other news and statuses do not prove that the snapshot was begun: a busy driver
                # drops the request, and it is repeated.
                patience_s = SILENCE_S_MAX if name else begins_by - trio.current_time()
                with trio.move_on_after(max(patience_s, 0.0)):
                    said, _ = await self._next()
                if said is None or isinstance(said, Sorry):
                    break
                problem = f"{self._address}: no snapshot was begun within {self._timeout_s:g} s"
                if isinstance(said, News) and said.event == BEGUN:
                    name = name or said.fields["snapshot"]
                if name:
                    self._wanted, problem = "", self._silent()
        if not isinstance(said, News):
            raise UnansweredError(self._problem(said, problem))
        return said

    async def dismiss(self, who: str) -> News:
        """Request that an actor leaves for good; returns the news of its answer, or of the job's
        end before that."""
        said: Any = None
        async with self._asking("leave", who):
            with trio.move_on_after(self._timeout_s):
                while not (isinstance(said, Sorry) or _dismisses(said, who)):
                    said, _ = await self._next()
        if not isinstance(said, News) or not _dismisses(said, who):
            raise UnansweredError(self._problem(said, self._no_answer()))
        return said

    @asynccontextmanager
    async def _asking(
        self, wanted: Wanted, who: str = "", *, payloads: bool = False
    ) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._endpoint.run, self._deliver)
            self._wanted, self._who = wanted, who
            nursery.start_soon(self._beat, payloads)
            yield
            nursery.cancel_scope.cancel()

    async def _take_in(
        self, take: Take, said: Any, payload: "Payload | None", *, payloads: bool
    ) -> None:
        if isinstance(said, Told):
            said = Told(said.seq, {"address": self._address, **said.status})
        await take(said if payload is None else (said, payload))
        if payload is not None or self._taken - self._said_taken >= TAKEN_MAX:
            self._ask(Ask("follow", taken=self._taken, payloads=payloads))

    async def _next(self) -> "tuple[Any, Payload | None]":
        said, payload = await self._waiting.receive()
        if not isinstance(said, Sorry):
            self._taken = said.seq
        if isinstance(said, News):
            self.lost = said.lost
        return said, payload

    async def _beat(self, payloads: bool) -> None:
        """Ask for what there is to say, and again for what is wanted, until that is heard of: each
        request may be lost with a connection that is cut."""
        while True:
            self._ask(Ask("follow", taken=self._taken, payloads=payloads))
            self._ask(Ask("status", taken=self._taken))
            if self._wanted:
                self._ask(Ask(self._wanted, taken=self._taken, who=self._who))
            await trio.sleep(BEAT_S)

    def _ask(self, ask: Ask) -> None:
        self._said_taken = ask.taken
        tell(self._endpoint, ROUTE, ask)  # The next beat asks again.

    async def _deliver(self, arrival: Arrival) -> None:
        try:
            whole = self._reader.feed(arrival.frames)
        except SideProtocolError:
            self.refused += 1
            return
        if whole is not None:
            await self._inbox.send(whole)

    def _problem(self, said: Any, otherwise: str) -> str:
        return f"{self._address}: {said.reason}" if isinstance(said, Sorry) else otherwise

    def _silent(self) -> str:
        return f"{self._address}: no answer for {SILENCE_S_MAX:.0f} s"

    def _no_answer(self) -> str:
        ended = end_at(self._address)
        if ended:
            return f"{self._address}: the job has ended: {ended}"
        keys = ", with these keys?" if self._keyed else "? (a job with keys needs --keys)"
        return f"no answer from {self._address}: is a syncer listening there{keys}"


def _dismisses(said: Any, who: str) -> bool:
    """Whether this is the answer to the request that an actor leaves, or the job's end."""
    if not isinstance(said, News):
        return False
    named = said.event in {DISMISSED, NOT_DISMISSED} and said.fields.get("learner") == who
    return named or said.event == "ended"


def _settles(said: News, name: str) -> bool:
    """Whether the requested snapshot or the job has ended. A refused snapshot was never begun: it
    is discarded at the event that it is named after."""
    if said.event == "ended":
        return True
    if said.event not in {TAKEN, DISCARDED}:
        return False
    snapshot = said.fields.get("snapshot")
    return snapshot == name if name else said.event == DISCARDED and said.ref == snapshot


@asynccontextmanager
async def open_observer(
    address: str, timeout_s: float, keys: Path | None, *, owner: bool = False
) -> AsyncIterator[Observer]:
    """Open an observer of the syncer at ``address``. An ``owner`` may also end the job, and ask for
    a snapshot; an owner without ``observer.key`` looks with the owner's key."""
    if address.startswith(LEASE_PLACE):
        address = await trio.to_thread.run_sync(_found_in, address)
    check_dial("", address)
    owner = owner or (keys is not None and _has_owners_alone(keys))
    curve = _curve(keys, owner=owner) if keys is not None else None
    async with open_context() as context:
        endpoint = new_endpoint(context, curve)
        identity = f"{OWNER if owner else OBSERVER}{secrets.token_hex(8)}/control"
        try:
            await endpoint.dial(address, route=ROUTE, identity=identity)
        except OSError as error:
            raise ConfigError(f"{address}: {error.strerror}; want tcp://HOST:PORT") from None
        try:
            yield Observer(endpoint, address, timeout_s, keyed=keys is not None)
        except UnansweredError:
            endpoint.hurry(0.0)  # No peer is left that could be sent the rest.
            raise
        finally:
            await endpoint.aclose()


def _found_in(address: str) -> str:
    # A place needs modules that take longer to import than most commands run.
    from ddloco.job.config import SYNCER  # noqa: PLC0415
    from ddloco.stage.nodes.place_mirror import address_in  # noqa: PLC0415
    from snapshot import SnapshotError, StorageError, open_place  # noqa: PLC0415

    names = (SYNCER, f"{SYNCER}-0")  # The lead of a job without and with shards.
    try:
        found = address_in(open_place(address.removeprefix(LEASE_PLACE)), names)
    except (SnapshotError, StorageError) as error:
        raise ConfigError(str(error)) from None
    if not found:
        raise ConfigError(f"{address}: has no address of a syncer; see ddloco syncer --lease")
    return found


def _has_owners_alone(keys: Path) -> bool:
    from ddloco.stage.files.keys import OBSERVER, OWNER, secret_file  # noqa: PLC0415, as below

    return secret_file(keys, OWNER).exists() and not secret_file(keys, OBSERVER).exists()


def _curve(keys: Path, *, owner: bool) -> "Curve":
    # Files of keys are checked against job files, whose modules a job without keys has no use for.
    from ddloco.stage.files.keys import OBSERVER, OWNER, load_curve, secret_file  # noqa: PLC0415

    if owner and not secret_file(keys, OWNER).exists() and secret_file(keys, OBSERVER).exists():
        raise ConfigError(
            f"{keys}: no owner.key: who has only observer.key may look, not end a job or ask for a "
            "snapshot"
        )
    return load_curve(keys, OWNER if owner else OBSERVER)
