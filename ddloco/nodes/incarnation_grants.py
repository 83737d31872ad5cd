"""Which incarnation an actor is: asked of the syncer that leads, before its tape is opened.

An actor that comes back may find an empty folder, on another host; only the lead has seen its
former selves. So whoever dials the lead first asks for a number, over a connection of its own, and
below the door: no machine, no tape and no clock knows. The same question carries the job's settings
and the digest of the task's source, so what differs is said before anything is started.

    [Want]      from the actor, again until there is an answer
    [Granted]   from the lead: this number, which nobody else has
    [Denied]    no number, and why: other settings
    [Over]      no number, because the job is done
    [Known]     the newest numbers, between a shard and the lead; see ``incarnation_gate``

Whose number it is stands nowhere in here: it is the peer of the route, which keys prove. The route
also has a number that the asker has drawn, so that a question that is said twice is answered twice
with the same.
"""

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import trio
from msgspec import Meta, Struct

from clocks import NUMBER_DIGITS_MAX
from ddloco.config.job import Job
from ddloco.workers.task import task_digest
from transport import Arrival, LaneFull, PeerGone
from transport.endpoint import Buffer
from transport.message import Reason
from transport.zeromq import ZmqEndpoint

VERSION = 2
LANE = "grant"

WORD_BYTES_MAX = 2**16
"""Settings of a job of some hundred learners, each with a table of its own; whoever has more says
the job's id alone."""

NUMBER_MAX = 10**NUMBER_DIGITS_MAX - 1
"""What the name of an incarnation can hold."""

AHEAD_MAX = 1024
"""So far a number may be ahead of the newest that the lead knows: what an actor says of its former
selves, when the lead has lost its folder, is believed up to here. Larger jumps would soon leave no
numbers."""

AGAIN_S = 1.0
"""A question without an answer is said again: the lead may not be there yet."""

DIFFERENCES_MAX = 8
"""Settings that a refusal names."""

Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Short = Annotated[str, Meta(max_length=256)]


class Want(Struct, frozen=True, tag=True):
    """Give me a number above ``known``, the newest of which there is a tape where I am. One that
    goes on from a snapshot wants ``exact``, unless that is used up."""

    known: Number
    job: Short
    task: Short
    settings: dict[str, str]
    exact: Number = 0
    version: int = VERSION


class Granted(Struct, frozen=True, tag=True):
    """The number; and what differs and is no reason to refuse."""

    number: Number
    warning: Reason = ""


class Denied(Struct, frozen=True, tag=True):
    """No number."""

    reason: Reason


class Over(Struct, frozen=True, tag=True):
    """No number: the job is done."""

    reason: Reason


class Known(Struct, frozen=True, tag=True):
    """The newest number of each actor of which any is known."""

    numbers: dict[Short, Number]


class GrantError(ValueError):
    """They said something that this language does not have; one line names the field."""


class DeniedError(Exception):
    """The lead refuses this actor; one line says why."""


class OverError(Exception):
    """The job is done; one line says since when."""


class SilentError(Exception):
    """The lead did not answer in time; one line says who was asked."""


encode = msgspec.msgpack.Encoder().encode
_question = msgspec.msgpack.Decoder(Want | Known)
_known = msgspec.msgpack.Decoder(Known)
_answer = msgspec.msgpack.Decoder(Granted | Denied | Over)


def decode_question(frames: Sequence[Buffer]) -> Want | Known:
    """What an actor or a shard asks.

    Raises:
        GrantError: it is no such question.
    """
    return _decoded(_question, frames)


def decode_known(frames: Sequence[Buffer]) -> Known:
    """What the lead tells a shard.

    Raises:
        GrantError: it is something else.
    """
    return _decoded(_known, frames)


def _decoded(decoder: msgspec.msgpack.Decoder[Any], frames: Sequence[Buffer]) -> Any:
    if len(frames) != 1 or len(frames[0]) > WORD_BYTES_MAX:
        raise GrantError(f"one part of at most {WORD_BYTES_MAX} bytes expected")
    try:
        return decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GrantError(str(error)) from None


def want_of(job: Job, known: int, exact: int = 0, folder: Path | None = None) -> Want:
    """The question of an actor of this job."""
    want = Want(known, job.id, task_digest(job.job.task, folder), settings_of(job), exact)
    if len(encode(want)) > WORD_BYTES_MAX:
        return msgspec.structs.replace(want, settings={})
    return want


def settings_of(job: Job) -> dict[str, str]:
    """All that must be the same in the job files of all hosts, by its name in them."""
    flat: dict[str, str] = {}

    def flatten(prefix: str, plain: Any) -> None:
        if isinstance(plain, dict):
            for key, each in plain.items():
                flatten(f"{prefix}.{key}" if prefix else key, each)
        else:
            flat[prefix] = msgspec.json.encode(plain).decode()[:200]

    flatten("", job.as_plain())
    flat.pop("transport.keys", None)  # Where a host has its keys is its own affair.
    return flat


def differences(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """The settings that differ, in words."""
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    said = [
        f"{name[:100]} is {ours.get(name, 'not set')} here, {theirs.get(name, 'not set')} there"
        for name in names[:DIFFERENCES_MAX]
    ]
    more = [f"and {len(names) - DIFFERENCES_MAX} more"] if len(names) > DIFFERENCES_MAX else []
    return "; ".join([*said, *more])


async def ask_for_number(
    endpoint: ZmqEndpoint,
    address: str,
    names: tuple[str, str],
    want: Want,
    *,
    patience_s: float,
    waiting: Callable[[], None],
) -> Granted:
    """Ask the lead for a number until it answers.

    Args:
        endpoint: nobody else's; the caller closes it.
        address: where the lead listens.
        names: whose number it is, and who leads.
        want: the question.
        patience_s: how long to ask; infinite for ever.
        waiting: called once, when the first question was not answered at once.

    Raises:
        OSError: the address is none.
        DeniedError: the lead refuses this actor.
        OverError: the job is done.
        SilentError: nobody has answered in time.
    """
    name, lead = names
    route, me = f"{lead}/{LANE}", f"{name}.{1 + secrets.randbelow(10**9)}/{LANE}"
    await endpoint.dial(address, route=route, identity=me)
    send, receive = trio.open_memory_channel[Granted | Denied | Over](1)

    async def deliver(arrival: Arrival) -> None:
        await trio.lowlevel.checkpoint()
        try:
            send.send_nowait(_decoded(_answer, arrival.frames))
        except (GrantError, trio.WouldBlock):
            return

    answer: Granted | Denied | Over | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run, deliver)
        with trio.move_on_after(patience_s):
            asked = 0
            while answer is None:
                with suppress(LaneFull, PeerGone):  # Nobody is there yet.
                    endpoint.send_nowait(route, [encode(want)])
                with trio.move_on_after(AGAIN_S):
                    answer = await receive.receive()
                asked += 1
                if asked == 1 and answer is None:
                    waiting()
        nursery.cancel_scope.cancel()
    if answer is None:
        raise SilentError(f"{lead} does not answer at {address} for {patience_s:g} s")
    if isinstance(answer, Denied):
        raise DeniedError(f"{lead} refuses {name}: {answer.reason}")
    if isinstance(answer, Over):
        raise OverError(answer.reason)
    return answer
