"""What an actor asks the leading syncer before its tape is opened: its incarnation number, and
what it is to run, if it has no copy of that.

An actor that returns may find an empty folder, on another host; only the lead knows its earlier
incarnations. So an actor first asks the lead for a number, over a connection of its own. These
messages pass below the driver: no machine, tape or clock contains them. The request carries the
job's settings and its identity so far, so that a difference is reported before anything is started.

    [Want]      from the actor, repeated until there is an answer
    [Granted]   from the lead: a number that no other incarnation has
    [Denied]    from the lead: no number, and the reason, such as other settings
    [JobOver]      from the lead: no number, because the job is done
    [Known]     the newest numbers, between a shard and the lead; see ``incarnation_gate``
    [Describe]  from an actor that has an address and a name only: what runs here?
    [Described] from the lead: the settings, and the source files of the user's code

The messages do not name the actor: it is the peer in the route, which is authenticated by its key.
The route also contains a random number of the actor's process, so that a repeated request gets the
same answer again.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
import trio
from msgspec import Meta, Struct

from clocks import NUMBER_DIGITS_MAX
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.process.side_protocol import SideDecoder, SideProtocolError, tell
from transport import Arrival, Endpoint
from transport.endpoint import FRAME_BYTES_MAX, Buffer
from transport.message import Reason
from transport.zeromq import ZmqEndpoint

VERSION = 4
LANE = "grant"

WORD_BYTES_MAX = 2**16
"""Room for the settings of a job with some hundred learner tables; a larger job sends its id
alone."""

NUMBER_MAX = 10**NUMBER_DIGITS_MAX - 1
"""The largest number that fits the name of an incarnation."""

AHEAD_MAX = 1024
"""How far a number may be ahead of the newest that the lead knows. A lead that has lost its folder
believes what an actor says of its earlier incarnations up to this distance; larger jumps would soon
use up all numbers."""

TELL_S = 45.0
"""How long, in seconds, a lead that has nothing left to do tells those that still ask."""

AGAIN_S = 1.0
"""Interval, in seconds, at which a request is repeated: the lead may not be there yet."""

DIFFERENCES_MAX = 8

DESCRIBED_BYTES_MAX = FRAME_BYTES_MAX
"""The size of a description: it is one part of a message. The source of a task has some hundred
kilobytes at most; a larger one must be copied to the hosts."""

FILES_MAX = 500
FILE_CHARS_MAX = 100
"""The number of source files, and the length of their names."""

Answer = TypeVar("Answer")
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
SHORT_MAX = 256
Short = Annotated[str, Meta(max_length=SHORT_MAX)]
FileName = Annotated[
    str, Meta(pattern=r"^([A-Za-z_]\w*/)*[A-Za-z_]\w*\.py\Z", max_length=FILE_CHARS_MAX)
]
"""A module's file, relative to where its package is."""


class Want(Struct, frozen=True, tag=True):
    """Request a number above ``known``, the newest one with a tape in the actor's folder. An actor
    that continues from a snapshot asks for ``exact``, and gets a later one if that is used. Its
    ``identity`` is what is known before anything is started: ``run_identity.identity_here``;
    ``agreement`` is the digest of ``peer_version``."""

    known: Number
    job: Short
    settings: dict[str, str]
    identity: dict[Short, Short] = {}
    exact: Number = 0
    agreement: Short = ""
    version: int = VERSION


class Granted(Struct, frozen=True, tag=True):
    number: Number
    warning: Reason = ""


class Denied(Struct, frozen=True, tag=True):
    """No number."""

    reason: Reason


class JobOver(Struct, frozen=True, tag=True):
    reason: Reason


class Known(Struct, frozen=True, tag=True):
    """The newest number of each actor that has one."""

    numbers: dict[Short, Number]


class Describe(Struct, frozen=True, tag=True):
    """Request the settings and the source of what runs."""

    version: int = VERSION


class Described(Struct, frozen=True, tag=True):
    """What runs: the settings as plain data, and the texts of source files by their names."""

    settings: dict[str, Any]
    source: Annotated[dict[FileName, str], Meta(max_length=FILES_MAX)]


class DeniedError(Exception):
    """The lead refuses this actor; the text says why."""


class OverError(Exception):
    """The job is done; the text says since when."""


class SilentError(Exception):
    """The lead did not answer in time; the text says who was asked."""


decode_question: SideDecoder[Want | Known | Describe] = SideDecoder(
    Want | Known | Describe, WORD_BYTES_MAX
)
decode_known: SideDecoder[Known] = SideDecoder(Known, WORD_BYTES_MAX)
decode_granted: SideDecoder[Granted | Denied | JobOver] = SideDecoder(
    Granted | Denied | JobOver, WORD_BYTES_MAX
)
decode_described: SideDecoder[Described | Denied | JobOver] = SideDecoder(
    Described | Denied | JobOver, DESCRIBED_BYTES_MAX
)


def shared_settings(program: Runnable) -> dict[str, str]:
    flat = flat_settings(program.as_plain())
    flat.pop("transport.keys", None)  # Each host may have its keys in another folder.
    return flat


def flat_settings(plain: Mapping[str, Any]) -> dict[str, str]:
    flat: dict[str, str] = {}

    def flatten(prefix: str, plain: Any) -> None:
        if isinstance(plain, dict):
            for key, each in plain.items():
                flatten(f"{prefix}.{key}" if prefix else key, each)
        else:
            flat[prefix] = msgspec.json.encode(plain).decode()[:200]

    flatten("", plain)
    return flat


def differences(ours: dict[str, str], theirs: dict[str, str]) -> str:
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    said = [
        f"{name[:100]} is {ours.get(name, 'not set')} here, {theirs.get(name, 'not set')} there"
        for name in names[:DIFFERENCES_MAX]
    ]
    more = [f"and {len(names) - DIFFERENCES_MAX} more"] if len(names) > DIFFERENCES_MAX else []
    return "; ".join([*said, *more])


async def ask_lead(
    endpoint: ZmqEndpoint,
    address: str,
    names: tuple[str, str],
    question: Want | Describe,
    decode: Callable[[Sequence[Buffer]], Answer | Denied | JobOver],
    *,
    patience_s: float,
    ended: Callable[[], JobOver | None],
) -> Answer:
    """Ask the lead until it answers, for at most ``patience_s`` seconds; ``names`` are the actor
    and the lead. The endpoint is used for nothing else, and the caller closes it. ``ended`` tells
    what is known of the job's end meanwhile. Raises ``OSError`` for an invalid address,
    ``DeniedError``, ``OverError`` and ``SilentError``."""
    name, lead = names
    route, me = f"{lead}/{LANE}", f"{name}.{1 + secrets.randbelow(10**9)}/{LANE}"
    await endpoint.dial(address, route=route, identity=me)
    send, receive = trio.open_memory_channel[Answer | Denied | JobOver](1)

    async def deliver(arrival: Arrival) -> None:
        await trio.lowlevel.checkpoint()
        try:
            send.send_nowait(decode(arrival.frames))
        except (SideProtocolError, trio.WouldBlock):
            return

    answer: Answer | Denied | JobOver | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, deliver)
        with trio.move_on_after(patience_s):
            answer = await _answer(partial(tell, endpoint, route, question), receive, ended)
        nursery.cancel_scope.cancel()
    if answer is None:
        raise SilentError(f"{lead} does not answer at {address} for {patience_s:g} s")
    if isinstance(answer, Denied):
        raise DeniedError(f"{lead} refuses {name}: {answer.reason}")
    if isinstance(answer, JobOver):
        raise OverError(answer.reason)
    return answer


async def _answer(
    ask: Callable[[], object],
    receive: trio.MemoryReceiveChannel[Answer | Denied | JobOver],
    ended: Callable[[], JobOver | None],
) -> Answer | Denied | JobOver:
    while True:
        ask()
        with trio.move_on_after(AGAIN_S):
            return await receive.receive()
        over = ended()
        if over is not None:
            return over


async def tell_late(endpoint: Endpoint, reason: str) -> None:
    """Tell for a while every actor that asks for a number that the job is over."""

    async def deliver(arrival: Arrival) -> None:
        await trio.lowlevel.checkpoint()
        if arrival.route.endswith(f"/{LANE}"):
            tell(endpoint, arrival.route, JobOver(reason[:1000]))

    with trio.move_on_after(TELL_S):
        await endpoint.run(deliver)
