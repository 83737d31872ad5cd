"""CURVE: keys that say who is there, and a gate for whoever listens.

A connection is made between two key pairs. The dialler knows the listener's public key before it
dials, so nobody can stand in for the listener; the listener asks, at each handshake, whether it
knows the dialler's. libzmq asks over ZAP, a protocol of one inproc address for each context, so
one `_Porter` answers for every listener of a context; a *domain* tells them apart.

Two defaults of libzmq would let everybody in: without `ZAP_ENFORCE_DOMAIN` a handshake that finds
no handler succeeds, and a name given by ZAP is compared with nothing. So the domain is enforced,
the handler is there before anybody can connect, and `ZmqEndpoint` compares.

The handler sees unknown keys only. Peers without CURVE, and those that dialled somebody else's
key, fail earlier and are counted by a socket monitor (`transport.connections`), which cannot tell
their address.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import trio
import zmq
from zmq.utils import z85

from clocks import actor_of
from transport.trio_socket import TrioSocket

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"

KEY_CHARACTERS = 40
"""A key is 32 bytes, written in Z85: five characters for four bytes."""

_REASONS = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "it uses no keys",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "it dialled another listener's key",
}


def new_pair() -> tuple[str, str]:
    """Make a key pair, public and secret, in Z85."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def public_of(secret: str) -> str:
    """The public key that belongs to a secret one; raises `ValueError` for what is no key."""
    check_key(secret)
    return zmq.curve_public(secret.encode()).decode()


def check_key(key: str) -> None:
    """Raise `ValueError` unless this is a key in Z85."""
    if len(key) != KEY_CHARACTERS:
        raise ValueError(f"a key has {KEY_CHARACTERS} characters, this one {len(key)}")
    if not set(key.encode()) <= set(z85.Z85CHARS):
        raise ValueError("a key is written in Z85, this one has other characters")


@dataclass(frozen=True)
class Curve:
    """One actor's keys, in Z85.

    Args:
        secret: its own. Its public key need not be known here.
        public: names and their public keys: whom it admits, and whom it can dial.
        shared: names whose key several actors use: with "observer" in here the key of ``observer``
            also speaks for ``observer-7``, unless that has a key of its own.
    """

    secret: str = field(repr=False)
    public: Mapping[str, str]
    shared: frozenset[str] = frozenset()

    def owner(self, peer: str) -> str | None:
        """Whose key speaks for a peer: ``learner-3`` for ``learner-3.2``; None for a stranger."""
        actor = actor_of(peer)
        if actor in self.public:
            return actor
        group = actor.partition("-")[0]
        return group if group in self.shared and group in self.public else None

    def seal(self, socket: zmq.Socket[Any], peer: str) -> None:
        """Let a socket that will dial reach ``peer`` only; raises `ValueError` for a stranger."""
        owner = self.owner(peer)
        if owner is None:
            raise ValueError(f"no public key is known for {peer}")
        self._identify(socket)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.public[owner].encode())

    def guard(self, socket: zmq.Socket[Any], domain: str) -> None:
        """Let a socket that will listen ask ZAP, under ``domain``, for everybody."""
        self._identify(socket)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def _identify(self, socket: zmq.Socket[Any]) -> None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public_of(self.secret).encode())


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody turned away: why, and from which address, empty where that cannot be known."""

    reason: str
    address: str = ""


class Gate:
    """Guards one listening socket while `run` runs; until then, handshakes wait.

    Args:
        context: of the socket.
        socket: not yet bound.
        curve: who may connect.
        refused: told of each handshake that failed for want of the right key.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        socket: zmq.Socket[Any],
        curve: Curve,
        refused: Callable[[Refusal], None],
    ) -> None:
        self.refused = refused
        self._names = {key: name for name, key in curve.public.items()}
        self._porter = _porter_of(context)
        self._domain = self._porter.admit(self)
        curve.guard(socket, self._domain)

    def name_of(self, key: str) -> str | None:
        """Whose public key this is."""
        return self._names.get(key)

    def failed(self, code: int) -> None:
        """A handshake failed before anybody was asked about its key: libzmq's number says why."""
        self.refused(Refusal(_REASONS.get(code, "it breaks the protocol")))

    async def run(self) -> None:
        """Answer handshakes, until cancelled or closed."""
        with suppress(trio.ClosedResourceError):  # The endpoint says so, for all its sockets.
            await self._porter.answer()

    async def aclose(self) -> None:
        """Stop guarding; to be called before the socket is closed."""
        await self._porter.dismiss(self._domain)


class _Porter:
    """Answers ZAP for every gate of a context, whichever of them runs."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context
        self._gates: dict[str, Gate] = {}
        self._numbers = count(1)
        # A ROUTER where the protocol's text has REP: an asker that is gone is then no error.
        self._router: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._socket = TrioSocket(self._router)
        self._socket.bind(ZAP_ADDRESS)

    def admit(self, gate: Gate) -> str:
        """Answer for one more gate from now on; its domain."""
        domain = f"gate-{next(self._numbers)}"
        self._gates[domain] = gate
        return domain

    async def dismiss(self, domain: str) -> None:
        """Answer for a gate no longer, and for nobody after the last; twice is fine."""
        gate = self._gates.pop(domain, None)
        if gate is not None and not self._gates:
            del _porters[self._context]
            if not self._router.closed:
                # Closing alone gives the address back some time later.
                self._router.unbind(ZAP_ADDRESS)
            await self._socket.aclose()

    async def answer(self) -> None:
        """Answer questions; several may do so at once."""
        while True:
            asker, _, _, request, domain, address, _, mechanism, *credentials = [
                bytes(part) for part in await self._socket.recv_multipart()
            ]
            name = self._judge(domain.decode(), address.decode(), mechanism, credentials)
            status = (b"400", b"unknown key") if name is None else (b"200", b"OK")
            self._socket.send_multipart_nowait(
                [asker, b"", ZAP_VERSION, request, *status, (name or "").encode(), b""]
            )

    def _judge(
        self, domain: str, address: str, mechanism: bytes, credentials: list[bytes]
    ) -> str | None:
        """The name of whoever knocks; None, and counted, if nobody knows the key."""
        gate = self._gates.get(domain)
        if gate is None or mechanism != b"CURVE":
            return None
        key = z85.encode(credentials[0]).decode()
        name = gate.name_of(key)
        if name is None:
            gate.refused(Refusal(f"nobody here has the public key {key}", address))
        return name


_porters: dict[zmq.Context[Any], _Porter] = {}
"""The address of ZAP is one for each context, so its handler is too; gone with the last gate."""


def _porter_of(context: zmq.Context[Any]) -> _Porter:
    if context not in _porters:
        _porters[context] = _Porter(context)
    return _porters[context]
