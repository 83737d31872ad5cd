"""One actor in a process of its own: what ``ddloco syncer`` and ``ddloco learner`` run."""

import ipaddress
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio

from clocks import MonotonicTime, actor_of, number_of
from ddloco.job.config import Job
from ddloco.job.keys import curve_of
from ddloco.monitoring.live_display import follow
from ddloco.nodes.auth_log import Refusals
from ddloco.nodes.incarnation_gate import Gate
from ddloco.nodes.incarnation_grants import LANE as GRANTS
from ddloco.nodes.incarnation_grants import (
    DeniedError,
    Granted,
    OverError,
    SilentError,
    ask_for_number,
    want_of,
)
from ddloco.nodes.incarnation_registrar import Record, RecordError, Registrar, newest_on_tape
from ddloco.nodes.loss_log import LossLog
from ddloco.nodes.node import Hosted
from ddloco.nodes.past_job import past_end, tell_late
from ddloco.nodes.resume import JobStartPoint, refuse_without_learners, said_start_point
from ddloco.nodes.tape_shipping import TapeTransfer, receive_tapes, ship_tapes
from ddloco.nodes.tapes.side_channel import SideChannel
from ddloco.stage.actors.effects import Finish
from ddloco.stage.driver.endpoints import dial, new_endpoint
from ddloco.stage.driver.hosting import Notes
from ddloco.stage.files.addresses import check_advertise, check_dial, check_listen
from ddloco.stage.files.run_folder import LOG_FILE, SNAPSHOTS, TAPES, address_file
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.errors import first_of
from ddloco.stage.process.log import ActorLog
from ddloco.stage.process.malloc import give_back_spare, keep_freed_memory
from ddloco.stage.process.signals import stop_on_signal, stop_with_parent
from ddloco.stage.process.terminal import one_line
from snapshot import SnapshotError
from transport.zeromq import ZmqEndpoint, open_context

LOOK_S = 1.0
"""Interval, in seconds, at which an actor's links are checked."""

LEAVE_LINGER_S = 1.0
"""How long, in seconds, the last messages of a process that must end soon may take to leave."""


@dataclass(frozen=True)
class Terms:
    """Options of an actor's process that are not in the job file.

    Args:
        with_parent: whether it ends when its standard input ends.
        snapshot: the snapshot to continue from, unless it has done so already.
        patience_s: how long it waits for a peer, in seconds; infinite means for ever.
        advertise: where a syncer can be reached, if that is not where it listens.
        alone: of a learner: the job has gone on without it, and only its own state is that of the
            snapshot.
        fresh_learners: of a syncer: the snapshot may be one without learners.
        trust: whether the user trusts who writes where the snapshot is.
    """

    with_parent: bool = False
    snapshot: str = ""
    patience_s: float = math.inf
    advertise: str = ""
    alone: bool = False
    fresh_learners: bool = False
    trust: bool = False


async def serve_syncer(
    job: Job, folder: Path, bind: str, shard: tuple[str, str | None], terms: Terms
) -> Finish:
    """Run a syncer, listening on ``bind``; the address is written to the run folder.

    Args:
        job: the resolved job.
        folder: the run folder.
        bind: where to listen.
        shard: which one this is, empty for the one that leads; and where that one listens, for
            the others.
        terms: how its process runs.

    Raises:
        SnapshotError: the snapshot cannot be used.
        ConfigError: the address cannot be bound, or is open to everyone without keys or a word;
            the job has no such shard; or the keys cannot be used.
    """
    check_bind(job, bind)
    if terms.advertise:
        check_advertise("--advertise", terms.advertise)
    name, connect = _checked_shard(job, *shard)
    lead = job.syncer_names()[0]
    curve = curve_of(job, name)
    async with open_context() as context:
        endpoint = new_endpoint(context, curve)
        try:
            address = await endpoint.listen(bind)
        except OSError as error:
            raise ConfigError(f"--bind {bind}: {error.strerror}") from None
        if connect is None:
            if over := past_end(job, folder, name):
                write_address(folder, name, address, terms.advertise)
                return await _over(endpoint, over, with_parent=terms.with_parent)
            incarnation, start_point = who_leads(job, folder, name, terms)
        else:
            found = await _number(job, folder, name, (context, lead, connect), terms)
            if isinstance(found, Finish):
                await endpoint.aclose()
                return found
            incarnation, start_point = found
            await _dial(endpoint, lead, connect, incarnation)
            identity = f"{incarnation}/{GRANTS}"
            await endpoint.dial(connect, route=f"{lead}/{GRANTS}", identity=identity)
        write_address(folder, name, address, terms.advertise)
        hosted, granting = await _hosted_syncer(
            job, incarnation, folder, endpoint,
            start_point=start_point, lead=lead, connect=connect,
        )  # fmt: skip
        losses = LossLog(hosted) if connect is None and not terms.with_parent else None
        return await _serve(hosted, endpoint, terms, granting, losses)


async def _hosted_syncer(
    job: Job,
    incarnation: str,
    folder: Path,
    endpoint: ZmqEndpoint,
    *,
    start_point: JobStartPoint | None,
    lead: str,
    connect: str | None,
) -> tuple[Hosted, Registrar | Gate]:
    """A syncer, and what grants incarnation numbers if it leads, or else accepts only incarnations
    to which the lead at ``connect`` has granted theirs."""
    notes = Notes()
    beside: TapeTransfer | None = None
    if connect is None:
        granting = Registrar(job, Record(folder), endpoint, notes.write)
        channel = SideChannel(endpoint, GRANTS, granting.take, granting.heeds)
        if job.tape.ships:
            channel, beside = receive_tapes(job, folder, channel, notes.write)
    else:
        granting = Gate(job, endpoint, lead, notes.write)
        channel = SideChannel(endpoint, GRANTS, granting.take, granting.heeds)
        if job.tape.ships:
            channel, beside = await ship_tapes(
                job, incarnation, folder, channel, note=notes.write, lead=(lead, connect)
            )
    hosted = Hosted(
        job, incarnation, folder, channel, start_point=start_point, beside=beside, notes=notes
    )
    return hosted, granting


def _checked_shard(job: Job, name: str, connect: str | None) -> tuple[str, str | None]:
    """Return the shard's name and whom it dials.

    Raises:
        ConfigError: the job has no such shard, or it cannot dial that.
    """
    if connect is not None:
        check_dial("--connect", connect)
    lead, *others = job.syncer_names()
    name = name or lead
    if name not in (lead, *others):
        names = f"{lead} to {others[-1]}" if others else f"one syncer, {lead}"
        raise ConfigError(f"--name {name}: this job has {names}")
    if (name == lead) != (connect is None):
        said = f"{lead} leads, and dials no actor" if connect else f"missing; {name} dials {lead}"
        raise ConfigError(f"--connect: {said}")
    return name, connect


async def _over(endpoint: ZmqEndpoint, reason: str, *, with_parent: bool) -> Finish:
    """Tell every actor that asks that the job is done, until this process is stopped."""

    async def tell() -> Granted:
        await tell_late(endpoint, reason)
        return Granted(0)

    await _unless_left(tell, with_parent=with_parent)
    await endpoint.aclose()
    return Finish("done", reason)


async def serve_learner(
    job: Job, folder: Path, connect: Sequence[str], name: str, terms: Terms
) -> Finish:
    """Run one learner against the syncers at ``connect``, one address for each, in order; it waits
    for those that are late.

    Raises:
        SnapshotError: the snapshot to continue from cannot be used.
        ConfigError: the job has no such learner or another number of syncers, an address is none,
            or its keys cannot be used.
    """
    for address in connect:
        check_dial("--connect", address)
    syncers = job.syncer_names()
    if len(connect) != len(syncers):
        names = ", ".join(syncers)
        raise ConfigError(f"--connect: {len(connect)} addresses for {len(syncers)}: {names}")
    if name not in job.learner_names():
        names = job.learner_names()
        raise ConfigError(f"--name {name}: this job has {names[0]} to {names[-1]}")
    curve = curve_of(job, name)
    async with open_context() as context:
        found = await _number(job, folder, name, (context, syncers[0], connect[0]), terms)
        if isinstance(found, Finish):
            return found
        incarnation, start_point = found
        endpoint = new_endpoint(context, curve)
        for syncer, address in zip(syncers, connect, strict=True):
            await _dial(endpoint, syncer, address, incarnation)
        own, start_point = (start_point, None) if terms.alone else (None, start_point)
        channel, beside, notes = endpoint, None, Notes()
        if job.tape.ships:
            lead = syncers[0], connect[0]
            channel, beside = await ship_tapes(
                job, incarnation, folder, endpoint, note=notes.write, lead=lead
            )
        hosted = Hosted(
            job, incarnation, folder, channel,
            start_point=start_point, own=own, beside=beside, notes=notes,
        )  # fmt: skip
        return await _serve(hosted, endpoint, terms, None)


async def _dial(endpoint: ZmqEndpoint, syncer: str, address: str, incarnation: str) -> None:
    try:
        await dial(endpoint, syncer, address, incarnation)
    except OSError as error:
        raise ConfigError(f"--connect {address}: {error.strerror}") from None


async def _number(
    job: Job, folder: Path, name: str, lead: tuple[object, str, str], terms: Terms
) -> tuple[str, JobStartPoint | None] | Finish:
    """An actor's incarnation, which the lead gives, and the snapshot that it begins with; or how
    it ends without one.

    Raises:
        SnapshotError: the snapshot cannot be used.
        ConfigError: the address is invalid.
    """
    context, leader, address = lead
    here = newest_on_tape(folder / TAPES, name)
    exact, start_point = 0, None
    if terms.alone:
        start_point = who_returns(job, name, terms.snapshot, trust=terms.trust)
        here = max(here, start_point.known(name))
    elif terms.snapshot and not here:
        start_point = said_start_point(job, terms.snapshot, name, trust=terms.trust)
        exact = number_of(start_point.incarnation(name))
    endpoint = new_endpoint(context, curve_of(job, name))
    ask = partial(
        ask_for_number,
        endpoint,
        address,
        (name, leader),
        want_of(job, here, exact, folder),
        patience_s=terms.patience_s,
        waiting=partial(_note_waiting, folder, name, f"{leader} at {address}"),
    )
    try:
        answer = await _unless_left(ask, with_parent=terms.with_parent)
    except Exception as error:
        match first_of(error):
            case OSError() as found:
                raise ConfigError(f"--connect {address}: {found.strerror}") from None
            case DeniedError() as found:
                return Finish("bad-input", str(found))
            case OverError() as found:
                return Finish("done", str(found))
            case SilentError() as found:
                return Finish("left", str(found))
            case _:
                raise
    finally:
        await endpoint.aclose()
    if isinstance(answer, Finish):
        return answer
    refuse_unshared(job, folder, leader)
    if answer.warning:
        SafeConsole(stderr=True, markup=False).print(
            f"warning: {one_line(answer.warning)}", soft_wrap=True
        )
    if exact and answer.number != exact:
        start_point = None  # It has gone on from there before, elsewhere.
    return f"{name}.{answer.number}", start_point


def refuse_unshared(job: Job, folder: Path, lead: str) -> None:
    """Refuse a job whose snapshots would never be complete: each actor writes its parts on its own
    host, and the lead looks for them in its own place. The lead has written its address file to its
    run folder by now, so the file shows whether this folder is the same.

    Raises:
        ConfigError: this actor's place is another one.
    """
    if not job.snapshot.wanted or job.snapshot.place or address_file(folder, lead).exists():
        return
    raise ConfigError(
        f"no snapshot would stand: {folder} is not the run folder of {lead}, so {SNAPSHOTS} in it "
        "is another place; set snapshot.place to a folder that all hosts share, or a URL"
    )


async def _unless_left(
    ask: Callable[[], Awaitable[Granted]], *, with_parent: bool
) -> Granted | Finish:
    """The answer, or how this process ends if it must leave before there is one."""
    left: list[Finish] = []
    answers: list[Granted] = []
    async with trio.open_nursery() as nursery:

        def leave(reason: str) -> None:
            left.append(Finish("left", reason))
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop_on_signal, leave, leave)
        if with_parent:
            nursery.start_soon(stop_with_parent, leave, leave)
        answers.append(await ask())
        nursery.cancel_scope.cancel()
    return answers[0] if answers else left[0]


def _note_waiting(folder: Path, name: str, whom: str) -> None:
    with closing(ActorLog(folder / LOG_FILE, f"{name}.0", MonotonicTime().began)) as log:
        log.observe("waiting", 0.0, 0, {"for": f"a number from {whom}"})


async def _serve(
    hosted: Hosted,
    endpoint: ZmqEndpoint,
    terms: Terms,
    numbers: Registrar | Gate | None,
    losses: LossLog | None = None,
) -> Finish:
    keep_freed_memory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, hosted.request_leave, hosted.request_leave)
        nursery.start_soon(Refusals(endpoint, hosted).run)
        nursery.start_soon(give_back_spare)
        nursery.start_soon(leave_when_alone, hosted, terms.patience_s)
        if numbers is not None:
            nursery.start_soon(numbers.run)
        if losses is not None:
            nursery.start_soon(losses.run)
        if terms.with_parent:
            requests = hosted.request_stop, hosted.request_leave
            nursery.start_soon(stop_with_parent, *requests)
        else:
            nursery.start_soon(follow, hosted.folder, actor_of(hosted.incarnation), SafeConsole())
        finish = await hosted.run()
        nursery.cancel_scope.cancel()
    if losses is not None:
        losses.draw()
    if finish.status == "left":
        endpoint.hurry(LEAVE_LINGER_S)
    await hosted.endpoint.aclose()
    return finish


async def leave_when_alone(hosted: Hosted, patience_s: float) -> None:
    """Ask an actor to leave once it has had no link for ``patience_s`` seconds.

    The links are read from outside, so that only the request is an event.
    """
    since = trio.current_time()
    while patience_s < math.inf:
        await trio.sleep(min(LOOK_S, patience_s / 4))
        if hosted.driver is None or hosted.driver.actor.links.peers():
            since = trio.current_time()
        elif trio.current_time() - since > patience_s:
            syncs = actor_of(hosted.incarnation) in hosted.job.syncer_names()
            whom = "learner" if syncs else "syncer"
            hosted.request_leave(f"no {whom} was there for {patience_s:g} s (--patience)")
            return


def write_address(folder: Path, name: str, bound: str, advertise: str) -> None:
    """Write a syncer's address file: the advertised address, or the one that it is bound to.

    A syncer that listens on all interfaces is bound to an address that cannot be dialled. Without
    ``--advertise`` the file then has the address by which this machine reaches it.
    """
    host, _, port = bound.rpartition(":")
    if advertise.startswith("tcp://"):
        stem, _, theirs = advertise.removeprefix("tcp://").rpartition(":")
        if not stem and theirs:
            advertise = f"{advertise}:{port}"
        elif theirs in ("*", "0"):
            advertise = f"tcp://{stem}:{port}"
    elif host in ("tcp://0.0.0.0", "tcp://[::]"):
        advertise = f"tcp://127.0.0.1:{port}" if "[" not in host else f"tcp://[::1]:{port}"
    partial_file = folder / f".{name}.address.partial"
    partial_file.write_text(advertise or bound)
    partial_file.replace(address_file(folder, name))


def who_leads(job: Job, folder: Path, name: str, terms: Terms) -> tuple[str, JobStartPoint | None]:
    """The next incarnation of the leading syncer, and the snapshot that it continues from.

    If it has run in this folder before, it has used the snapshot then, and continues from its own
    merges when it is started again by the same command.

    Raises:
        SnapshotError: the snapshot cannot be used.
        ConfigError: what was given before cannot be read or written.
    """
    try:
        record = Record(folder)
        number = record.newest(name) + 1
        start_point = None
        if terms.snapshot and number == 1:
            start_point = said_start_point(job, terms.snapshot, name, trust=terms.trust)
            if not terms.fresh_learners:
                refuse_without_learners(start_point, job)
            number = number_of(start_point.incarnation(name))
        record.note(name, number)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror}") from None
    return f"{name}.{number}", start_point


def who_returns(job: Job, name: str, snapshot: str, *, trust: bool = False) -> JobStartPoint:
    """The snapshot from which a learner takes its own state.

    Raises:
        ConfigError: no snapshot is named.
        SnapshotError: the learner is not in it, or it cannot be used.
    """
    if not snapshot:
        raise ConfigError("--alone: needs --from SNAPSHOT, with this learner's state")
    start_point = said_start_point(job, snapshot, name, trust=trust)
    if not start_point.starts:
        raise SnapshotError(f"--from {snapshot}: {name} is not in {start_point.snapshot}")
    return start_point


def check_bind(job: Job, bind: str) -> None:
    """Refuse to listen to everyone without keys, unless the job file says that this is meant.

    Raises:
        ConfigError: it is no address; or it is not loopback, and neither ``transport.keys`` nor
            ``insecure`` is set.
    """
    check_listen("--bind", bind)
    if job.transport.keys or job.transport.insecure:
        return
    if not is_loopback(bind):
        raise ConfigError(
            f"--bind {bind}: any process that reaches this address could take part; make keys with "
            "`ddloco keys DIR` and name them with --keys DIR or transport.keys, or set "
            "transport.insecure = true if the network is yours alone"
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
