"""One actor in a process of its own: what ``ddloco syncer``, ``learner`` and ``perform`` run."""

import ipaddress
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import trio

from clocks import actor_of, number_of
from ddloco.stage.actors.effects import Finish
from ddloco.stage.actors.observations import RESULT
from ddloco.stage.driver.endpoints import dial, new_endpoint
from ddloco.stage.driver.resume import StartPoint
from ddloco.stage.files.addresses import check_listen, end_at, write_address, write_end
from ddloco.stage.files.run_folder import LEASE, SNAPSHOTS, TAPES, address_file
from ddloco.stage.files.toml import ConfigError, PassingError, refused
from ddloco.stage.nodes.auth_log import AuthRefusals
from ddloco.stage.nodes.incarnation_gate import Gate
from ddloco.stage.nodes.incarnation_grants import LANE as GRANTS
from ddloco.stage.nodes.incarnation_grants import (
    TELL_S,
    DeniedError,
    Granted,
    JobOver,
    OverError,
    SilentError,
    ask_lead,
    decode_granted,
    tell_late,
)
from ddloco.stage.nodes.incarnation_registrar import (
    NumberRecord,
    RecordError,
    Registrar,
    newest_on_tape,
)
from ddloco.stage.nodes.lease import INTERRUPTED, LOOK_S, SILENT_S, Lease, LeaseTakenError
from ddloco.stage.nodes.node import HostedActor, Notes
from ddloco.stage.nodes.peer_version import want_of
from ddloco.stage.nodes.place_mirror import PlaceMirror
from ddloco.stage.nodes.runnable import Runnable
from ddloco.stage.nodes.tape_shipping import TapeTransfer, receive_tapes, ship_tapes
from ddloco.stage.nodes.waiting import Wait, tell_what_is_missing
from ddloco.stage.process.best_effort import BestEffort
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.malloc import give_back_spare, keep_freed_memory
from ddloco.stage.process.signals import stop_on_signal, stop_with_parent, tell_parent
from ddloco.stage.process.terminal import one_line
from ddloco.stage.tapes.side_channel import SideChannel
from replay.tape import SUFFIX
from snapshot import SnapshotError, StorageError, open_place
from transport import Links
from transport.link_state import SUPERSEDED_UNLINKED
from transport.zeromq import ZmqEndpoint, open_context

LINKS_LOOK_S = 1.0
"""Interval, in seconds, at which an actor's links are checked."""

T = TypeVar("T")

ENDS = frozenset({"done", "stopped", "failed"})
"""How a lead ends that nobody needs to start again: its job is over for all actors."""

STANDBY_LOOK_S = 1.0
"""Interval, in seconds, at which a standby looks, which it does for days."""

LEAVE_LINGER_S = 1.0
"""How long, in seconds, the last messages of a process that must end soon may take to leave."""


@dataclass(frozen=True)
class Terms:
    """Options of an actor's process that are not in the job file.

    Attributes:
        with_parent: whether it ends when its standard input ends.
        patience_s: how long it waits for a peer, in seconds; infinite means for ever.
        advertise: where a syncer can be reached, if that is not where it listens.
        alone: of a learner: the job has gone on without it, and only its own state is that of the
            snapshot.
        trust: whether the user trusts who writes where the snapshot is.
        lease: of an actor that others dial: a place for its lease, and for what a successor needs
            that cannot read its run folder; by default its lease is in the run folder.
        standby: of an actor that others dial: wait for as long as another process acts as it.
        over: of the lead: why there is nothing left to do, if so; every actor that asks is told.
        signals: whether it hears the process's signals; otherwise the caller does.
        listening: called with the address of an actor that listens, once it is in its file.
    """

    with_parent: bool = False
    snapshot: str = ""
    patience_s: float = math.inf
    advertise: str = ""
    alone: bool = False
    trust: bool = False
    lease: str = ""
    standby: bool = False
    over: Callable[[], str] = str
    signals: bool = True
    listening: Callable[[str], None] = lambda _: None
    beside: Sequence[Callable[[HostedActor], Awaitable[None]]] = ()


async def serve_role(
    program: Runnable, name: str, folder: Path, addresses: Mapping[str, str], terms: Terms
) -> Finish:
    """Run one actor of a program in this process. The actor that leads decides its own number;
    every other one asks it for one first, and waits for those that are late. Raises
    ``SnapshotError`` if the snapshot to continue from cannot be used, ``ConfigError`` for addresses
    and keys."""
    fenced = name == program.lead or not program.listeners or name in program.listeners
    if not fenced:
        return await _act(program, name, folder, addresses, terms, lease=None)
    program.curve(name)  # Keys that cannot be used are reported before anything is written.
    place = terms.lease or str(folder)
    lease = Lease(open_place(f"{place}/{LEASE}"), name, folder / LEASE)
    mirror, finish = None, INTERRUPTED
    if terms.lease:
        mirror = PlaceMirror(open_place(place), folder, name, lease.confirm)
    try:
        left = await _succeed(name, lease, terms)
        if isinstance(left, Finish):
            return left
        if terms.standby and lease.finish is not None:
            return lease.finish
        if mirror is not None:
            terms = await _mirrored(mirror, lease, terms)
        finish = await _act(program, name, folder, addresses, terms, lease=lease)
        if mirror is not None:
            await mirror.copy_soon()
        return finish
    finally:
        lease.close(finish)


async def _mirrored(mirror: PlaceMirror, lease: Lease, terms: Terms) -> Terms:
    """Bring what the last holder left, if that was not this folder; copies from now on."""
    if lease.elsewhere:
        brought = await trio.to_thread.run_sync(mirror.bring)
        said = f"{len(brought)} files of the last holder were brought from {terms.lease}"
        SafeConsole(stderr=True).print(said, soft_wrap=True)

    async def copy(hosted: HostedActor) -> None:
        hosted.copies_at_once = mirror.copy_soon
        await mirror.run(hosted.note)

    return replace(terms, beside=(*terms.beside, copy))


async def _act(
    program: Runnable,
    name: str,
    folder: Path,
    addresses: Mapping[str, str],
    terms: Terms,
    *,
    lease: Lease | None,
) -> Finish:
    leads, listens = name == program.lead or not program.listeners, name in program.listeners
    async with open_context() as context:
        endpoint = new_endpoint(context, program.curve(name))
        address = await _listen(program, endpoint, name, addresses[name]) if listens else ""
        if leads:
            over = terms.over()
            if over:
                write_address(folder, name, address, terms.advertise)
                return await _over(endpoint, over, terms)
            incarnation, start_point = who_leads(program, name, folder, terms, lease)
        else:
            asked = context, addresses[program.lead]
            found = await _number(program, folder, name, asked, terms)
            if isinstance(found, Finish):
                await endpoint.aclose()
                return found
            incarnation, start_point = found
            if lease is not None:
                await trio.to_thread.run_sync(_take, lease, incarnation)
            await _dial_others(program, endpoint, addresses, incarnation)
            ended = partial(end_at, addresses[program.lead], program.id)
            terms = replace(terms, beside=(*terms.beside, partial(stop_when_ended, ended)))
        for said in start_point.notes if start_point is not None else ():
            SafeConsole(stderr=True).print(said, soft_wrap=True)
        if listens:
            terms.listening(write_address(folder, name, address, terms.advertise))
        hosted, granting = await _hosted(
            program, incarnation, folder, endpoint,
            start_point=start_point, address=addresses.get(program.lead, ""),
            alone=terms.alone, lease=lease,
        )  # fmt: skip
        missing = partial(tell_what_is_missing, {**addresses, name: address})
        terms = replace(terms, beside=(*terms.beside, missing))
        finish = await _serve(hosted, endpoint, terms, granting)
        if leads and listens and finish.status in ENDS:
            said = finish.reason if finish.status == "done" else f"{finish.status}: {finish.reason}"
            with suppress(OSError):  # Then who asks later waits in vain.
                write_end(folder, name, program.id, said)
            await hosted.settle()
            await _tell_the_lost(hosted, endpoint, finish, terms)
        await hosted.endpoint.aclose()
        if leads and hosted.driver is not None and (lease is None or lease.holds()):
            _note_followed(folder, hosted.driver.actor.links)
        return finish


def _note_followed(folder: Path, links: Links[Any]) -> None:
    """Note the number of another incarnation that others have followed, for the next start. The
    tape of an incarnation that has done nothing else is set aside: another one, which they have
    also followed, had its name."""
    me = links.clock.me
    unlinked = SUPERSEDED_UNLINKED in links.counters
    newest = max(links.clock.newest(actor_of(me)), number_of(me))
    if newest == number_of(me) and not unlinked:
        return
    with suppress(OSError, RecordError):  # Then it hears of it again.
        NumberRecord(folder).note(actor_of(me), newest)
        if unlinked:
            tape = folder / TAPES / f"{me}{SUFFIX}"
            tape.rename(tape.with_suffix(".superseded"))


async def _succeed(name: str, lease: Lease, terms: Terms) -> Granted | Finish:
    """Return once the predecessor acts no more, or how this process ends before."""
    console, told = SafeConsole(stderr=True), ""
    look = partial(lease.look, standby=terms.standby)

    async def succeed() -> Granted:
        nonlocal told
        claim = await trio.to_thread.run_sync(look)
        while claim is not None:
            if claim.said != told:
                told = claim.said
                does = "acts" if terms.standby else "may still live"
                waits = "its end" if terms.standby else f"{SILENT_S:g} s for a sign of it"
                console.print(f"{told} {does}: wait for {waits}", soft_wrap=True)
            await trio.sleep(STANDBY_LOOK_S if terms.standby else LOOK_S)
            claim = await trio.to_thread.run_sync(look)
        return Granted(0)

    me = f"the standby of {name}" if terms.standby else name
    try:
        return await unless_left(succeed, terms, Wait(me, lambda: f"the end of {told}"))
    except LeaseTakenError as error:
        raise PassingError(str(error)) from None


def _take(lease: Lease, incarnation: str) -> None:
    try:
        lease.take(incarnation)
    except LeaseTakenError as error:
        raise PassingError(str(error)) from None


async def _listen(program: Runnable, endpoint: ZmqEndpoint, name: str, bind: str) -> str:
    try:
        return await endpoint.listen(bind)
    except OSError as error:
        option = program.address_option(name, bind, listens=True)
        raise refused(option, error) from None


async def _dial_others(
    program: Runnable, endpoint: ZmqEndpoint, addresses: Mapping[str, str], incarnation: str
) -> None:
    """Dial those whom an actor dials; and the lead for numbers, if the actor is dialed itself."""
    name = actor_of(incarnation)
    for other in program.dials(name):
        try:
            await dial(endpoint, other, addresses[other], incarnation)
        except OSError as error:
            option = program.address_option(other, addresses[other], listens=False)
            raise refused(option, error) from None
    if name in program.listeners:
        lead, identity = program.lead, f"{incarnation}/{GRANTS}"
        await endpoint.dial(addresses[lead], route=f"{lead}/{GRANTS}", identity=identity)


async def _hosted(
    program: Runnable,
    incarnation: str,
    folder: Path,
    endpoint: ZmqEndpoint,
    *,
    start_point: StartPoint[Any] | None,
    address: str,
    alone: bool,
    lease: Lease | None,
) -> tuple[HostedActor, Registrar | Gate | None]:
    """An actor, and what grants incarnation numbers if it leads; another one that listens accepts
    only incarnations to which the lead has granted theirs."""
    name, notes = actor_of(incarnation), Notes()
    beside: TapeTransfer | None = None
    granting: Registrar | Gate | None = None
    channel: ZmqEndpoint | SideChannel = endpoint
    leads, linked = name == program.lead, bool(program.listeners)
    if leads and linked:
        granting = Registrar(program, NumberRecord(folder), endpoint, notes.write, lease=lease)
    elif name in program.listeners:
        granting = Gate(program, endpoint, notes.write)
    if granting is not None:
        channel = SideChannel(endpoint, GRANTS, granting.take, granting.heeds)
    ships = program.tape.ships and linked
    if ships and leads:
        channel, beside = receive_tapes(program, folder, channel, notes.write, lease)
    elif ships:
        channel, beside = await ship_tapes(
            program, incarnation, folder, channel, note=notes.write, address=address
        )
    own, start_point = (start_point, None) if alone else (None, start_point)
    hosted = HostedActor(
        program, incarnation, folder, channel,
        start_point=start_point, own=own, beside=beside, notes=notes, lease=lease,
    )  # fmt: skip
    if isinstance(granting, Registrar):
        hosted.tell_source = granting.know_source
    return hosted, granting


async def _tell_the_lost(
    hosted: HostedActor, endpoint: ZmqEndpoint, finish: Finish, terms: Terms
) -> None:
    """Stay for a while after the end, for actors that were lost before and are started again."""
    driver = hosted.driver
    lost = hosted.program.untold(driver.actor.machine) if driver is not None else ()
    if not lost or terms.with_parent:
        return
    said = f"{finish.status}: {finish.reason}; stays {TELL_S:g} s for those who were lost"
    console = SafeConsole(stderr=True)
    console.print(f"{said}: {', '.join(lost)}", soft_wrap=True, highlight=False)

    async def tell() -> Granted:
        await tell_late(endpoint, finish.reason)
        return Granted(0)

    await unless_left(tell, terms)


async def _over(endpoint: ZmqEndpoint, over: str, terms: Terms) -> Finish:
    """Tell every actor that asks that the job is done, until this process is stopped."""

    async def tell() -> Granted:
        await tell_late(endpoint, over)
        return Granted(0)

    await unless_left(tell, terms)
    await endpoint.aclose()
    return Finish("done", over)


async def _number(
    program: Runnable, folder: Path, name: str, asked: tuple[object, str], terms: Terms
) -> tuple[str, StartPoint[Any] | None] | Finish:
    """Return an actor's incarnation, which the lead gives, and the snapshot that it begins with; or
    how it ends without one."""
    (context, address), lead = asked, program.lead
    here = newest_on_tape(folder / TAPES, name)
    exact, start_point = 0, None
    if terms.alone:
        start_point = who_returns(program, name, terms.snapshot, trust=terms.trust)
        here = max(here, start_point.known(name))
    elif terms.snapshot and not here:
        start_point = program.start_point(terms.snapshot, name, trust=terms.trust)
        exact = number_of(start_point.incarnation(name))
    endpoint = new_endpoint(context, program.curve(name))

    def ended() -> JobOver | None:
        reason = end_at(address, program.id)
        return JobOver(reason) if reason else None

    ask = partial(
        ask_lead,
        endpoint,
        address,
        (name, lead),
        want_of(program, here, exact, folder, name),
        decode_granted,
        patience_s=terms.patience_s,
        ended=ended,
    )
    option = program.address_option(lead, address, listens=False)
    wait = Wait(name, lambda: f"a number from {lead} at {address}", folder)
    answer = await answered(ask, endpoint, terms, option, wait)
    if isinstance(answer, Finish):
        return answer
    refuse_unshared(program, folder)
    if answer.warning:
        SafeConsole(stderr=True).print(f"warning: {one_line(answer.warning)}", soft_wrap=True)
    if exact and answer.number != exact:
        start_point = None  # It has gone on from there before, elsewhere.
    return f"{name}.{answer.number}", start_point


def refuse_unshared(program: Runnable, folder: Path) -> None:
    """Refuse snapshots that would never be complete: each actor writes its parts on its own host,
    and the lead looks for them in its own place. The lead has written its address file to its run
    folder by now, so the file shows whether this folder is the same."""
    table, lead = program.snapshot, program.lead
    if not table.wanted or table.place or address_file(folder, lead).exists():
        return
    raise ConfigError(
        f"no snapshot would stand: {folder} is not the run folder of {lead}, so {SNAPSHOTS} in it "
        "is another place; set snapshot.place to a folder that all hosts share, or a URL"
    )


async def answered(
    ask: Callable[[], Awaitable[T]], endpoint: ZmqEndpoint, terms: Terms, option: str, wait: Wait
) -> T | Finish:
    """Return what the lead answers to ``ask``, or how this process ends without an answer; closes
    the endpoint. ``ConfigError`` if the address that ``option`` has given is invalid."""
    try:
        return await unless_left(ask, terms, wait)
    except OSError as error:
        raise refused(option, error) from None
    except DeniedError as error:
        return Finish("bad-input", str(error))
    except OverError as error:
        return Finish("done", str(error))
    except SilentError as error:
        return Finish("left", str(error))
    finally:
        endpoint.hurry(0)  # Who has ended needs no answer to a question that is still here.
        await endpoint.aclose()


async def unless_left(
    ask: Callable[[], Awaitable[T]], terms: Terms, wait: Wait | None = None
) -> T | Finish:
    """Return the answer, or how this process ends if it must leave before; ``wait`` is told
    meanwhile. An exception of ``ask`` is raised in no group."""
    left: list[Finish] = []
    answers: list[T] = []
    try:
        async with trio.open_nursery() as nursery:

            def leave(reason: str) -> None:
                left.append(Finish("left", reason))
                nursery.cancel_scope.cancel()

            if terms.signals:
                nursery.start_soon(stop_on_signal, leave, leave)
            if terms.with_parent:
                nursery.start_soon(stop_with_parent, leave, leave)
            if wait is not None:
                tell = partial(wait.tell, on_screen=not terms.with_parent)
                nursery.start_soon(BestEffort(_not_told).run, "who waits", tell)
            answers.append(await ask())
            nursery.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise first_of(group) from None
    return answers[0] if answers else left[0]


def _not_told(what: str, why: str) -> None:
    console = SafeConsole(stderr=True)
    console.print(f"{what} is not told any more: {why}", soft_wrap=True)


async def _serve(
    hosted: HostedActor, endpoint: ZmqEndpoint, terms: Terms, numbers: Registrar | Gate | None
) -> Finish:
    keep_freed_memory()
    interrupted = hosted.request_stop if hosted.program.interrupt_stops else hosted.request_leave
    async with trio.open_nursery() as nursery:
        if terms.signals:
            nursery.start_soon(stop_on_signal, interrupted, hosted.request_leave)
        nursery.start_soon(hosted.aside, AuthRefusals(endpoint, hosted).run)
        nursery.start_soon(hosted.aside, give_back_spare)
        nursery.start_soon(leave_when_alone, hosted, terms.patience_s)
        if numbers is not None:
            nursery.start_soon(numbers.run)
        if hosted.lease is not None:
            nursery.start_soon(hosted.lease.run, hosted.note)
        for beside in terms.beside:
            nursery.start_soon(hosted.aside, partial(beside, hosted))
        if terms.with_parent:
            requests = hosted.request_stop, hosted.request_leave
            nursery.start_soon(stop_with_parent, *requests)
        finish = await hosted.run()
        nursery.cancel_scope.cancel()
    result = hosted.driver.seen.get(RESULT) if hosted.driver is not None else None
    if terms.with_parent and result is not None:
        tell_parent(result)
    if finish.status == "left":
        endpoint.hurry(LEAVE_LINGER_S)
    return finish


async def stop_when_ended(ended: Callable[[], str], hosted: HostedActor) -> None:
    """Ask an actor to stop that has no link to its lead, once the lead's job is known to have
    ended: the lead may have ended before the actor had found it again."""
    while True:
        await trio.sleep(LINKS_LOOK_S)
        if hosted.driver is None or hosted.program.lead in hosted.driver.actor.links.peers():
            continue
        reason = ended()
        if reason:
            hosted.request_stop(reason)
            return


async def leave_when_alone(hosted: HostedActor, patience_s: float) -> None:
    """Ask an actor to leave once it has had no link for ``patience_s`` seconds. The links are read
    from outside, so that only the request is an event."""
    since = trio.current_time()
    while patience_s < math.inf:
        await trio.sleep(min(LINKS_LOOK_S, patience_s / 4))
        if hosted.driver is None or hosted.driver.actor.links.peers():
            since = trio.current_time()
        elif trio.current_time() - since > patience_s:
            whom = hosted.program.peers_said(hosted.name)
            hosted.request_leave(f"no {whom} was there for {patience_s:g} s (--patience)")
            return


def who_leads(
    program: Runnable, name: str, folder: Path, terms: Terms, lease: Lease | None = None
) -> tuple[str, StartPoint[Any] | None]:
    """Return the next incarnation of an actor that asks nobody for its number, which then holds the
    lease, and its snapshot. If it has run in this folder before, it has used the snapshot then, and
    continues from what it keeps when it is started again by the same command."""
    start_point = None
    try:
        record = NumberRecord(folder)
        number = max(record.newest(name), lease.predecessor if lease is not None else 0) + 1
        if terms.snapshot and number == 1:
            start_point = program.start_point(terms.snapshot, name, trust=terms.trust)
            number = number_of(start_point.incarnation(name))
        if lease is not None:
            _take(lease, f"{name}.{number}")
        record.note(name, number)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except StorageError:
        raise  # It names its file.
    except OSError as error:
        raise refused(str(folder), error) from None
    return f"{name}.{number}", start_point


def who_returns(program: Runnable, name: str, snapshot: str, *, trust: bool) -> StartPoint[Any]:
    if not snapshot:
        raise ConfigError("--alone: needs --from SNAPSHOT, with this learner's state")
    start_point = program.start_point(snapshot, name, trust=trust)
    if not start_point.starts:
        raise SnapshotError(f"--from {snapshot}: {name} is not in {start_point.snapshot}")
    return start_point


def check_bind(program: Runnable, option: str, bind: str) -> None:
    """Refuse, with ``ConfigError``, to listen to everyone without keys, unless the settings say
    that this is meant."""
    check_listen(option, bind)
    if not program.is_open and not is_loopback(bind):
        raise ConfigError(
            f"{option} {bind}: any process that reaches this address could take part; "
            f"{program.how_to_close}"
        )


def is_loopback(bind: str) -> bool:
    """Whether only this machine can reach an address."""
    if not bind.startswith("tcp://"):
        return True
    host = urlsplit(bind.replace(":*", ":0")).hostname or "*"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
