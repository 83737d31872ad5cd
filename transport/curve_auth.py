"""CURVE: authentication by key pairs, and access control for a listening socket.

Each connection is made between two key pairs. The dialler knows the listener's public key before it
dials, so no process can impersonate the listener; at each handshake the listener checks the
dialler's public key. libzmq asks for that check over ZAP, a protocol with one inproc address per
context, so one `_ZapHandler` answers for all listening sockets of a context and tells them apart by
*domain*.

Two defaults of libzmq would admit every peer: without `ZAP_ENFORCE_DOMAIN` a handshake without a
ZAP handler succeeds, and libzmq does not compare the name that ZAP returns with anything. So the
domain is enforced, the handler exists before a peer can connect, and `ZmqEndpoint` compares the
names.

The handler sees only unknown keys. Handshakes of peers without CURVE, or with another listener's
key, fail earlier. A socket monitor counts those (`transport.connections`), without their addresses.
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

OPEN_DOMAIN = b"open"
"""The ZAP domain of listening sockets without keys."""

KEY_CHARACTERS = 40
"""A key is 32 bytes, written in Z85: five characters for every four bytes."""

_REASONS = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): "it uses no keys",
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): "it dialled another listener's key",
}


def refuse_old_protocols(socket: zmq.Socket[Any]) -> None:
    """Make a listening socket without keys refuse ZMTP 1 and 2, as one with keys does.

    A peer of these versions, as random bytes are taken for one, needs no handshake: a pipe is made
    for each connection, and libzmq aborts the process (an assertion in ``zmtp_engine.cpp``) if the
    pipe is closed before the peer's identity is in it. libzmq refuses both versions at the greeting
    if the socket has a ZAP domain. No handler is asked: without one, and without
    ``ZAP_ENFORCE_DOMAIN``, peers of ZMTP 3 are admitted.
    """
    socket.setsockopt(zmq.ZAP_DOMAIN, OPEN_DOMAIN)


def new_pair() -> tuple[str, str]:
    """Make a key pair: public key, secret key, both in Z85."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def public_of(secret: str) -> str:
    """The public key of a secret key; raises `ValueError` if `secret` is not a key."""
    check_key(secret)
    return zmq.curve_public(secret.encode()).decode()


def check_key(key: str) -> None:
    if len(key) != KEY_CHARACTERS:
        raise ValueError(f"a key has {KEY_CHARACTERS} characters, this one {len(key)}")
    if not set(key.encode()) <= set(z85.Z85CHARS):
        raise ValueError("a key is written in Z85, this one has other characters")


def _stay() -> None:
    """Keys stay as they are."""


@dataclass(frozen=True)
class Curve:
    """One actor's keys, in Z85.

    Attributes:
        public: of the peers that may connect and that can be dialled.
        shared: names whose key several actors use: if it contains "observer", the key of
            ``observer`` is also valid for ``observer-7``, unless that has a key of its own.
        renew: called before a key is looked for; it may change ``public``.
    """

    secret: str = field(repr=False)
    public: Mapping[str, str]
    shared: frozenset[str] = frozenset()
    renew: Callable[[], object] = field(default=_stay, repr=False, compare=False)

    def owner(self, peer: str) -> str | None:
        """The name whose key a peer uses: ``learner-3`` for ``learner-3.2``; None if unknown."""
        actor = actor_of(peer)
        if actor in self.public:
            return actor
        group = actor.partition("-")[0]
        return group if group in self.shared and group in self.public else None

    def seal(self, socket: zmq.Socket[Any], peer: str) -> None:
        """Make a dialling socket accept only ``peer``; raises `ValueError` if its key is
        unknown."""
        self.renew()
        owner = self.owner(peer)
        if owner is None:
            raise ValueError(f"no public key is known for {peer}")
        self._identify(socket)
        socket.setsockopt(zmq.CURVE_SERVERKEY, self.public[owner].encode())

    def guard(self, socket: zmq.Socket[Any], domain: str) -> None:
        self._identify(socket)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def _identify(self, socket: zmq.Socket[Any]) -> None:
        socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, public_of(self.secret).encode())


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected peer: the reason, and its address, empty if unknown."""

    reason: str
    address: str = ""


class CurveGate:
    """Access control for one listening socket while `run` runs; until then, handshakes wait."""

    def __init__(
        self,
        context: zmq.Context[Any],
        socket: zmq.Socket[Any],
        curve: Curve,
        refused: Callable[[Refusal], None],
    ) -> None:
        self.refused = refused
        self._curve = curve
        self._zap_handler = _zap_handler_of(context)
        self._domain = self._zap_handler.admit(self)
        curve.guard(socket, self._domain)

    def name_of(self, key: str) -> str | None:
        self._curve.renew()
        return next((name for name, each in self._curve.public.items() if each == key), None)

    def failed(self, code: int) -> None:
        """Report a handshake that failed before ZAP was asked; `code` is libzmq's error code."""
        self.refused(Refusal(_REASONS.get(code, "it breaks the protocol")))

    async def run(self) -> None:
        with suppress(trio.ClosedResourceError):  # The endpoint reports this for all its sockets.
            await self._zap_handler.answer()

    async def aclose(self) -> None:
        """Stop guarding; call this before closing the socket."""
        await self._zap_handler.dismiss(self._domain)


class _ZapHandler:
    """Answers the ZAP requests of all gates of a context, whichever gate's `run` is active."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._context = context
        self._gates: dict[str, CurveGate] = {}
        self._numbers = count(1)
        # ROUTER instead of the specified REP, so that a requester that vanished is not an error.
        self._router: zmq.Socket[Any] = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._socket = TrioSocket(self._router)
        self._socket.bind(ZAP_ADDRESS)

    def admit(self, gate: CurveGate) -> str:
        """Start answering for a gate; returns its domain."""
        domain = f"gate-{next(self._numbers)}"
        self._gates[domain] = gate
        return domain

    async def dismiss(self, domain: str) -> None:
        """Stop answering for a gate, and close after the last; repeated calls are allowed."""
        gate = self._gates.pop(domain, None)
        if gate is not None and not self._gates:
            del _zap_handlers[self._context]
            if not self._router.closed:
                # After a close alone the address would stay bound for some time.
                self._router.unbind(ZAP_ADDRESS)
            await self._socket.aclose()

    async def answer(self) -> None:
        """Answer requests; several tasks may do so at once."""
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
        """The name that belongs to the dialler's key; None, and reported, if the key is unknown."""
        gate = self._gates.get(domain)
        if gate is None or mechanism != b"CURVE":
            return None
        key = z85.encode(credentials[0]).decode()
        name = gate.name_of(key)
        if name is None:
            gate.refused(Refusal(f"the public key {key} is unknown", address))
        return name


_zap_handlers: dict[zmq.Context[Any], _ZapHandler] = {}
"""One ZAP handler per context, because each context has one ZAP address; closed with the last gate.
"""


def _zap_handler_of(context: zmq.Context[Any]) -> _ZapHandler:
    if context not in _zap_handlers:
        _zap_handlers[context] = _ZapHandler(context)
    return _zap_handlers[context]
