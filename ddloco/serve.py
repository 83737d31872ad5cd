"""One actor in a process of its own: what ``ddloco syncer`` and ``ddloco learner`` run."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import trio
from rich.console import Console

from clocks import actor_of, number_of
from ddloco.cluster import dial, new_endpoint
from ddloco.config import Job
from ddloco.display import follow
from ddloco.folder import address_file
from ddloco.host import TAPES, Hosted
from ddloco.keys import curve_of
from ddloco.memory import give_back_spare, keep_freed_memory
from ddloco.quay import ship_tape, take_in_tapes
from ddloco.refusals import Refusals
from ddloco.restoring import JobBeginning, begin_with
from ddloco.sections import ConfigError
from ddloco.signals import stop_on_signal, stop_with_parent
from ddloco.stage.beginning import place_and_id
from ddloco.stage.effects import Finish
from replay.chain import whose
from replay.tape import SUFFIX
from snapshot import SnapshotError
from transport.zeromq import ZmqEndpoint, open_context


async def serve_syncer(
    job: Job,
    folder: Path,
    bind: str,
    name: str,
    connect: str | None,
    *,
    with_parent: bool,
    snapshot: str = "",
) -> Finish:
    """Run a syncer, listening on ``bind``; the address is written to the run folder.

    Args:
        job: the resolved job.
        folder: the run folder.
        bind: where to listen.
        name: which shard this is; empty for the one that leads.
        connect: where the shard that leads listens; needed by the others.
        with_parent: end when standard input does.
        snapshot: to go on from, unless it has gone on from there already.

    Raises:
        SnapshotError: the snapshot cannot be used.
        ConfigError: the address cannot be bound, or is open to everyone without keys or a word;
            the job has no such shard; or the keys cannot be used.
    """
    check_bind(job, bind)
    lead, *others = job.syncer_names()
    name = name or lead
    if name not in (lead, *others):
        names = f"{lead} to {others[-1]}" if others else f"one syncer, {lead}"
        raise ConfigError(f"--name {name}: this job has {names}")
    if (name == lead) != (connect is None):
        said = f"{lead} leads, and dials nobody" if connect else f"missing; {name} dials {lead}"
        raise ConfigError(f"--connect: {said}")
    curve = curve_of(job, name)
    incarnation, beginning = who_begins(job, folder, name, snapshot)
    async with open_context() as context:
        endpoint = new_endpoint(context, curve)
        try:
            address = await endpoint.listen(bind)
        except OSError as error:
            raise ConfigError(f"--bind {bind}: {error.strerror}") from None
        if connect is not None:
            await _dial(endpoint, lead, connect, incarnation)
        partial = folder / f".{name}.address.partial"
        partial.write_text(address)
        partial.replace(address_file(folder, name))
        hosted = Hosted(job, incarnation, folder, endpoint, beginning=beginning)
        if job.tape.ships and connect is None:
            take_in_tapes(hosted)
        elif job.tape.ships and connect is not None:
            await ship_tape(hosted, lead, connect)
        return await _serve(hosted, endpoint, with_parent=with_parent)


async def serve_learner(
    job: Job,
    folder: Path,
    connect: Sequence[str],
    name: str,
    *,
    with_parent: bool,
    snapshot: str = "",
    alone: bool = False,
) -> Finish:
    """Run one learner against the syncers at ``connect``, one address for each, in order; it waits
    for those that are late. With ``alone`` the job has gone on without it, and only its own state
    is that of the snapshot.

    Raises:
        SnapshotError: the ``snapshot`` to go on from cannot be used.
        ConfigError: the job has no such learner or another number of syncers, an address is none,
            or its keys cannot be used.
    """
    syncers = job.syncer_names()
    if len(connect) != len(syncers):
        names = ", ".join(syncers)
        raise ConfigError(f"--connect: {len(connect)} addresses for {len(syncers)}: {names}")
    if name not in job.learner_names():
        names = job.learner_names()
        raise ConfigError(f"--name {name}: this job has {names[0]} to {names[-1]}")
    curve = curve_of(job, name)
    incarnation, beginning = who_begins(job, folder, name, "" if alone else snapshot)
    own = None
    if alone:
        incarnation, own = who_returns(job, folder, name, snapshot)
    async with open_context() as context:
        endpoint = new_endpoint(context, curve)
        for syncer, address in zip(syncers, connect, strict=True):
            await _dial(endpoint, syncer, address, incarnation)
        hosted = Hosted(job, incarnation, folder, endpoint, beginning=beginning, own=own)
        if job.tape.ships:
            await ship_tape(hosted, syncers[0], connect[0])
        return await _serve(hosted, endpoint, with_parent=with_parent)


async def _dial(endpoint: ZmqEndpoint, syncer: str, address: str, incarnation: str) -> None:
    try:
        await dial(endpoint, syncer, address, incarnation)
    except OSError as error:
        raise ConfigError(f"--connect {address}: {error.strerror}") from None


async def _serve(hosted: Hosted, endpoint: ZmqEndpoint, *, with_parent: bool) -> Finish:
    keep_freed_memory()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_on_signal, hosted.request_stop)
        nursery.start_soon(Refusals(endpoint, hosted).run)
        nursery.start_soon(give_back_spare)
        if with_parent:
            nursery.start_soon(stop_with_parent, hosted.request_stop)
        else:
            nursery.start_soon(follow, hosted.folder, actor_of(hosted.incarnation), Console())
        finish = await hosted.run()
        nursery.cancel_scope.cancel()
    await hosted.endpoint.aclose()
    return finish


def who_begins(job: Job, folder: Path, name: str, snapshot: str) -> tuple[str, JobBeginning | None]:
    """An actor's next incarnation, and the snapshot that it goes on from.

    One that has a tape here has gone on from it before: whoever starts it again with the same words
    wants it to go on from there.

    Raises:
        SnapshotError: the snapshot cannot be used.
    """
    incarnation = next_incarnation(folder, name)
    if not snapshot or number_of(incarnation) > 1:
        return incarnation, None
    beginning = begin_with(*place_and_id(snapshot), job, name)
    return beginning.incarnation(name), beginning


def who_returns(job: Job, folder: Path, name: str, snapshot: str) -> tuple[str, JobBeginning]:
    """A new incarnation of a learner, and the snapshot that it has its state from.

    Raises:
        ConfigError: no snapshot is named.
        SnapshotError: the learner is not in it, or it cannot be used.
    """
    if not snapshot:
        raise ConfigError("--alone: needs --from SNAPSHOT, with this learner's state")
    beginning = begin_with(*place_and_id(snapshot), job, name)
    if not beginning.starts:
        raise SnapshotError(f"--from {snapshot}: {name} is not in {beginning.snapshot}")
    here = number_of(next_incarnation(folder, name))
    return f"{name}.{max(here, beginning.known(name) + 1)}", beginning


def next_incarnation(folder: Path, name: str) -> str:
    """The actor's name with the number behind those that have a tape in this folder."""
    there = (whose(path)[0] for path in (folder / TAPES).glob(f"{name}.*{SUFFIX}"))
    known = (number_of(each) for each in there if actor_of(each) == name)
    return f"{name}.{max(known, default=0) + 1}"


def check_bind(job: Job, bind: str) -> None:
    """Refuse to listen to everyone without keys, unless the job file says that this is meant.

    Raises:
        ConfigError: it is not loopback, and neither ``transport.keys`` nor ``insecure`` is set.
    """
    if job.transport.keys or job.transport.insecure:
        return
    if not is_loopback(bind):
        raise ConfigError(
            f"--bind {bind}: whoever reaches this address could take part; make keys with "
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
