"""``ddloco doctor``: looks at the machine before a run, and says what is in the way.

Each finding is one line: what was looked at, whether it is well, and the way out if it is not. With
a job its task is run for some steps in a worker process, as a learner would run it.
"""

import argparse
import json
import math
import os
import re
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

import trio
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ddloco.api.model_folder import NoExportError, write_model_folder
from ddloco.cli.ask import complain
from ddloco.job.config import LEARNERS_MAX, Job
from ddloco.job.job_folder import check_place, load_own_job
from ddloco.job.keys import keys_of
from ddloco.job.needs import SYNCER_BYTES_S, needs_in_words, needs_of, size, wire_bytes
from ddloco.job.protocol.fragment_plan import FragmentPlan
from ddloco.stage.arrays.shared_memory import MEMORY_FOLDER, SharedMemory
from ddloco.stage.files.addresses import check_listen
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, HELD
from ddloco.stage.process.memory import available
from ddloco.workers import rpc
from ddloco.workers.layout import tensors_of
from ddloco.workers.merge_kernel import CompiledKernel, merge_kernel
from ddloco.workers.process import WorkerDiedError, WorkerProcess, WorkerRequestError, open_worker
from ddloco.workers.quantization_kernel import CompiledQuantizer, quantizer
from ddloco.workers.task import TaskError, task_digests
from ddloco.workers.task_sources import kept_modules

PYTHON_MIN = (3, 11)

STEPS_TIMED = 5
"""Steps whose median is the time of a step; the first one compiles and is not among them."""

FILES_AN_ACTOR = 24
"""File descriptors that an actor with its worker needs, roughly: sockets, pipes, tape and log."""

FILES_OWN = 64

WORKER_BYTES = 400 * 2**20
"""Memory of an actor and its worker before the parameters: Python, JAX and their libraries."""

COPIES_HOST = 4
"""Copies of the parameters on the host, for an actor: two of the last step, those that are sent,
and those that arrive."""

DISK_FREE_MIN = 2**30
"""Tapes and snapshots of a short run fit into this; a full disk ends a run."""

WALL_CLOCK_MIN = 1_735_689_600.0
"""1 January 2025: a wall clock before it was never set."""

RATES_GBIT = (0.1, 1.0, 10.0)

CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
"""Where Linux says what its TCP does when packets are lost."""

FOR_LOSSES = "bbr"
"""The congestion control that does not take each lost packet for a line that is full."""

Status = Literal["ok", "warning", "problem"]


class Checked(Struct, frozen=True):
    """What was looked at, and how it is.

    Attributes:
        status: "ok"; "warning", if a run may work anyway; "problem", if it will not.
        said: what was found, with units.
        remedy: what helps; empty if nothing is wrong.
    """

    check: str
    status: Status
    said: str
    remedy: str = ""

    def line(self) -> str:
        end = f"; {self.remedy}" if self.remedy else ""
        return f"{self.status:8} {self.check:12} {self.said}{end}"


class NetworkRates(Struct, frozen=True):
    """What the network carries, in Gbit/s, and for how many learners; None where it is not said."""

    learner: float | None = None
    syncer: float | None = None
    learners: int | None = None

    def of(self, job: Job) -> Job:
        if self.learners is None:
            return job
        return replace(job, job=replace(job.job, learners=self.learners))


def doctor(given: argparse.Namespace) -> int:
    options = {
        "--set": given.overrides,
        "--gbit": given.gbit,
        "--syncer-gbit": given.syncer_gbit,
        "--learners": given.learners,
    }
    needless = [name for name, said in options.items() if said]
    if given.job is None and needless:
        return complain(f"{needless[0]}: nothing to apply it to; name the job file, too")
    try:
        job = None
        if given.job is not None:
            job = load_own_job(given.job, given.overrides, trust=given.trust)
        if given.bind:
            check_listen("--bind", given.bind)
    except ConfigError as error:
        return complain(error)
    for option, rate in (("--gbit", given.gbit), ("--syncer-gbit", given.syncer_gbit)):
        if rate is not None and not 0 < rate < math.inf:
            return complain(f"{option} {rate:g}: want Gbit/s, more than 0")
    if given.learners is not None and not 1 <= given.learners <= LEARNERS_MAX:
        return complain(f"--learners {given.learners}: want 1 to {LEARNERS_MAX:,}")
    lines = NetworkRates(given.gbit, given.syncer_gbit, given.learners)
    found: list[Checked] = []
    for each in findings(job, given.job, given.bind, lines):
        found.append(each)
        if not given.json:
            print(each.line(), flush=True)
    if given.json:
        print(json.dumps([to_builtins(each) for each in found], indent=2))
    return FOUND if any(each.status == "problem" for each in found) else HELD


def findings(
    job: Job | None, file: Path | None, bind: str, lines: NetworkRates
) -> Iterator[Checked]:
    yield python()
    yield from packages()
    yield arithmetic("merges", compiled=isinstance(merge_kernel(), CompiledKernel))
    yield arithmetic("compression", compiled=isinstance(quantizer(), CompiledQuantizer))
    yield clock(time.time())
    yield files(job, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield disk(Path.cwd())
    yield port(bind)
    yield from tcp(CONGESTION)
    if job is None or file is None:
        yield memory(0, 0, available())
        yield shared(0, MEMORY_FOLDER)
        return
    yield keys_of_job(job)
    yield place(job)
    yield from of_task(job, file, lines)


def python() -> Checked:
    said = f"{'.'.join(map(str, sys.version_info[:3]))} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return Checked("python", "problem", said, "install Python 3.11 or newer")
    return Checked("python", "ok", said)


def packages(
    wanted: Callable[[str], list[str] | None] = requires, installed: Callable[[str], str] = version
) -> Iterator[Checked]:
    found: list[str] = []
    try:
        all_of_them = wanted("ddloco") or ()
    except PackageNotFoundError:
        said = "ddloco runs from its sources, so which packages it needs is not known here"
        yield Checked("packages", "warning", said, "install it, such as with pip install .")
        return
    for said in all_of_them:
        if "extra" in said:
            continue
        name, least = re.split(r"\s*>=\s*", said.partition(";")[0].strip(), maxsplit=1)
        remedy = f"pip install '{name}>={least}'"
        try:
            have = installed(name)
        except PackageNotFoundError:
            yield Checked("packages", "problem", f"{name} is missing", remedy)
            continue
        if _numbers(have) < _numbers(least):
            yield Checked("packages", "problem", f"{name} {have} is too old", remedy)
            continue
        found.append(f"{name} {have}")
    key = ("jax", "jaxlib", "numpy", "optax", "pyzmq")
    shown = [each for each in found if each.split()[0] in key]
    yield Checked("packages", "ok", f"{', '.join(shown)}, and {len(found) - len(shown)} more")


def arithmetic(check: str, *, compiled: bool) -> Checked:
    if compiled:
        return Checked(check, "ok", "the arithmetic is compiled")
    said = "the arithmetic is numpy's: the same bits, more slowly"
    return Checked(check, "ok", said, "to compile it, install a C compiler, then ddloco again")


def _numbers(said: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", said)[:3])


def clock(now: float) -> Checked:
    """Whether the wall clock was set; only dates in logs depend on it."""
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < WALL_CLOCK_MIN:
        return Checked("clock", "warning", said, "set the clock, or dates in logs are wrong")
    return Checked("clock", "ok", said)


def files(job: Job | None, most: int) -> Checked:
    need = FILES_OWN + FILES_AN_ACTOR * (len(job.names()) if job is not None else 4)
    said = f"{most} file descriptors for a process, about {need} needed"
    if most == resource.RLIM_INFINITY or most >= need:
        return Checked("files", "ok", said)
    return Checked("files", "problem", said, f"ulimit -n {need}, or ddloco run --processes")


def disk(folder: Path) -> Checked:
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        said = f"{folder} cannot be written: {error.strerror}"
        return Checked("disk", "problem", said, "choose another --dir")
    said = f"{size(free)} free in {folder}"
    if free < DISK_FREE_MIN:
        return Checked("disk", "warning", said, "a full disk ends a run: make room")
    return Checked("disk", "ok", said)


def port(bind: str) -> Checked:
    said = bind or "tcp://127.0.0.1:*"
    host, _, number = said.removeprefix("tcp://").rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            None if host == "*" else host.strip("[]"),
            0 if number == "*" else int(number),
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(address)
            tried.listen()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return Checked("port", "problem", f"{said}: {reason}", "choose another address or port")
    return Checked("port", "ok", f"{said} can be listened on")


def tcp(setting: Path) -> Iterator[Checked]:
    """What the system's TCP does when packets are lost; nothing if the system does not tell."""
    with suppress(OSError):
        name = setting.read_text().strip()
        remedy = f"on lines that lose packets {FOR_LOSSES} carries several times as much"
        said = f"congestion control {name}"
        yield Checked("tcp", "ok", said, "" if name == FOR_LOSSES else remedy)


def keys_of_job(job: Job) -> Checked:
    """Whether the job's keys are there, and readable by their owner only."""
    if not job.transport.keys:
        return Checked("keys", "ok", "none; a syncer then listens on loopback only")
    try:
        found = keys_of(job, "tcp")
    except ConfigError as error:
        return Checked("keys", "problem", str(error), "see ddloco keys --help")
    return Checked("keys", "ok", f"{len(found)} keys in {job.transport.keys}")


def place(job: Job) -> Checked:
    try:
        check_place(job)
    except ConfigError as error:
        return Checked("snapshots", "problem", str(error), "change snapshot.place")
    said = job.snapshot.place or "in the run folder"
    return Checked("snapshots", "ok", said if job.snapshot.wanted else f"{said}; none scheduled")


def memory(need: int, actors: int, free: int) -> Checked:
    if not need:
        return Checked("memory", "ok", f"{size(free)} available")
    said = f"{size(free)} available, about {size(need)} needed by {actors} actors on this machine"
    if need > free:
        remedy = "use fewer learners here, a smaller batch or model, or more machines"
        return Checked("memory", "problem", said, remedy)
    if need > 0.8 * free:
        return Checked("memory", "warning", said, "close other programs")
    return Checked("memory", "ok", said)


def shared(need: int, folder: Path) -> Checked:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        said = f"{folder}: {error.strerror}"
        return Checked(
            "shared", "warning", said, f"slower files in {tempfile.gettempdir()} are used"
        )
    said = f"{size(free)} free in {folder}" + (f", about {size(need)} needed" if need else "")
    if need > free:
        remedy = "enlarge it (docker run --shm-size); slower files are used when it is full"
        return Checked("shared", "warning", said, remedy)
    return Checked("shared", "ok", said)


# What only the task can tell.


def of_task(job: Job, file: Path, lines: NetworkRates) -> Iterator[Checked]:
    try:
        task_digests(job.job.task, file.parent)
        tried = trio.run(_try, job, file)
    except (TaskError, WorkerRequestError, ConfigError) as error:
        remedy = "correct the task; its traceback, if it raised, is above"
        yield Checked("task", "problem", str(error), remedy)
        return
    except TooLargeError as error:
        yield devices(error.found, job)
        return
    except WorkerDiedError as error:
        said = str(error)
        remedy = "try a smaller model or batch" if "killed" in said else "see [worker] env"
        yield Checked("task", "problem", said, remedy)
        return
    except BaseExceptionGroup as group:
        yield Checked("task", "problem", str(group.exceptions[0]), "correct the task")
        return
    plan, actors = tried.plan, len(job.names())
    params = sum(leaf.nbytes for fragment in plan.fragments for leaf in fragment)
    count = sum(leaf.size for fragment in plan.fragments for leaf in fragment)
    said = (
        f"{job.job.task}: {count:,} parameters, {size(params)} in {len(plan.fragments)} fragments"
    )
    yield Checked("task", "ok", f"{said}; {tried.device}")
    yield devices(tried.devices, job)
    yield step(tried, job)
    yield tried.evaluation
    yield from exported(job, file, tried.tensors)
    host = COPIES_HOST * plan.total_bytes
    yield memory((max(tried.peak, WORKER_BYTES) + host) * actors, actors, available())
    yield shared(host * actors, MEMORY_FOLDER)
    yield round_trip(plan, job, tried.step_s, lines.learner)
    if job.job.method == "decoupled-diloco":
        yield hub(plan, lines.of(job), tried.step_s, lines.syncer)


class Tried(Struct, frozen=True):
    """What running the task for some steps has told.

    Attributes:
        first_s: seconds of the first step, which compiles and is executed twice.
        step_s: the median of the others.
        tokens: in a batch.
        peak: most memory of the worker, in bytes.
        devices: its devices, and what a step needs of them.
        evaluation: whether the parameters can be evaluated, which else runs at the end only.
        tensors: the parameters after these steps, by name.
    """

    plan: FragmentPlan
    device: str
    first_s: float
    step_s: float
    tokens: int
    peak: int
    devices: rpc.Devices
    evaluation: Checked
    tensors: dict[str, Any]


class TooLargeError(Exception):
    """A step does not fit the devices, so none was run."""

    def __init__(self, found: rpc.Devices) -> None:
        super().__init__("a step does not fit the devices")
        self.found = found


async def _try(job: Job, file: Path) -> Tried:
    """Run steps as the first learner does; the first one is run twice and compared."""
    async with _worker(job, file) as (process, arena):
        name = job.learner_names()[0]
        request = rpc.preparation(job, name)
        prepared = await process.expect(request, rpc.Prepared)
        try:
            plan = job.sendable_plan(prepared.leaves)
        except ValueError as error:
            raise ConfigError(f"task {job.job.task}: {error}") from None
        await process.expect(rpc.Lay(plan), rpc.Laid)
        found = await process.expect(rpc.MeasureDevices(), rpc.Devices)
        if devices(found, job).status == "problem":
            raise TooLargeError(found)
        region = arena.allocate(plan.total_bytes)
        out = rpc.span_of(region)
        await process.expect(rpc.Fill(out), rpc.Ready)
        times: list[float] = []
        tokens = 0
        for number in range(1, STEPS_TIMED + 2):
            begun = time.perf_counter()
            trained = await process.expect(rpc.Train(number, (), out, 0), rpc.Trained)
            times.append(time.perf_counter() - begun)
            tokens = trained.tokens
            if not math.isfinite(trained.loss):
                raise ConfigError(f"task {job.job.task}: loss is {trained.loss} at step {number}")
        first, *others = times
        median = sorted(others)[len(others) // 2]
        device = prepared.fingerprint.get("device", "")
        peak, scored = _peak(await process.pid()), await _scored(process)
        tensors: dict[str, Any] = {}
        for p in range(len(plan.fragments)):
            start, stop = plan.fragment_slice(p)
            tensors |= tensors_of(plan, p, region.data[start:stop].copy())
        return Tried(plan, device, first, median, tokens, peak, found, scored, tensors)


async def _scored(process: WorkerProcess) -> Checked:
    """Evaluate the parameters as they are, as is done at the end of a job."""
    begun = time.perf_counter()
    try:
        scored = await process.expect(rpc.Score(None), rpc.Scored)
    except WorkerRequestError as error:
        remedy = "correct evaluate; at the end of the job the held-out loss would be unknown"
        return Checked("evaluation", "problem", str(error), remedy)
    if scored.loss is None:
        return Checked("evaluation", "ok", "the task has no evaluate(params): no held-out loss")
    took = f"held-out loss {scored.loss:.4g}, in {time.perf_counter() - begun:.1f} s"
    return Checked("evaluation", "ok", took)


def exported(job: Job, file: Path, tensors: dict[str, Any]) -> Iterator[Checked]:
    """Whether the parameters can be written as a model folder, if the task says how."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            files = write_model_folder(Path(folder) / "model", tensors, str(file), job=job)
        except NoExportError:
            return
        except (TaskError, ConfigError) as error:
            remedy = "correct hugging_face; the model could not be exported"
            yield Checked("export", "problem", str(error), remedy)
            return
    yield Checked("export", "ok", f"{len(files)} files, {size(sum(files.values()))}")


@asynccontextmanager
async def _worker(job: Job, file: Path) -> AsyncIterator[tuple[WorkerProcess, SharedMemory]]:
    kept = kept_modules(file.parent, job.job.task)
    worker = job.worker_of(job.learner_names()[0])
    with closing(SharedMemory()) as arena:
        async with open_worker("doctor.1", arena, worker, kept=kept) as process:
            yield process, arena


def _peak(pid: int) -> int:
    """The most memory that a process has had, in bytes; 0 if the system does not tell."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) * 1024 if found is not None else 0
    return 0


def devices(found: rpc.Devices, job: Job) -> Checked:
    """Whether a step of the first learner fits its devices."""
    worker = job.worker_of(job.learner_names()[0])
    mesh = " ".join(f"{axis}={count}" for axis, count in worker.mesh.items())
    said = f"{found.count} of kind {found.kind}" + (f", mesh {mesh}" if mesh else "")
    said += f", {worker.processes} processes" if worker.processes > 1 else ""
    said += f"; a step needs {size(found.step_bytes)} on each"
    if found.limit_bytes is None:
        return Checked("devices", "ok", f"{said}, which is memory of this machine")
    said += f", where {size(found.limit_bytes)} may be used"
    if found.step_bytes > found.limit_bytes:
        remedy = "divide parameters on more devices (worker.mesh), or use a smaller batch"
        return Checked("devices", "problem", said, remedy)
    if found.step_bytes > 0.9 * found.limit_bytes:
        return Checked("devices", "warning", said, "little is left for what other programs take")
    return Checked("devices", "ok", said)


def step(tried: Tried, job: Job) -> Checked:
    """How long a step takes; that it is deterministic, the worker has checked."""
    rate = tried.tokens / tried.step_s if tried.step_s else 0.0
    said = (
        f"{tried.step_s * 1e3:.1f} ms ({rate:,.0f} tokens/s), after {tried.first_s:.1f} s for the "
        "first; two runs of the same step gave the same bits"
    )
    cores = len(os.sched_getaffinity(0))
    busy = sum(job.worker_of(name).threads for name in job.learner_names())
    if busy > cores and tried.device.startswith("cpu"):
        said += f"; {busy} threads of {job.job.learners} learners share {cores} cores"
        return Checked("step", "warning", said, "fewer learners on this machine train as fast")
    return Checked("step", "ok", said)


def round_trip(plan: FragmentPlan, job: Job, step_s: float, gbit: float | None) -> Checked:
    """What one round of all fragments costs on the network, and whether the overlap hides it."""
    up, down = wire_bytes(plan, job.compress.up), wire_bytes(plan, job.compress.down)
    bits = 8 * max(a + b for a, b in zip(up, down, strict=True))
    hidden = job.sync.overlap * step_s
    rates = RATES_GBIT if gbit is None else (gbit,)
    times = [f"{bits / (rate * 1e9) * 1e3:,.1f} ms at {rate:g}" for rate in rates]
    least = bits / hidden / 1e9 if hidden else math.inf
    said = (
        f"a learner sends {size(sum(up))} and receives {size(sum(down))} in {job.sync.interval} "
        f"steps; the largest fragment takes {', '.join(times)} Gbit/s, and "
        f"{job.sync.overlap} steps of overlap hide {hidden * 1e3:,.1f} ms, enough for "
        f"{least:.2g} Gbit/s or more"
    )
    if least > rates[-1]:
        remedy = "raise sync.fragments, sync.interval or sync.overlap, or set compress.up"
        return Checked("network", "warning", said, remedy)
    return Checked("network", "ok", said)


def hub(plan: FragmentPlan, job: Job, step_s: float, gbit: float | None) -> Checked:
    """What a job needs of its syncers, and whether there are enough of them."""
    line = SYNCER_BYTES_S if gbit is None else gbit * 1e9 / 8
    need = needs_of(job, plan, step_s=step_s, line_bytes_s=line)
    said = needs_in_words(job, need, line)
    if need.shards <= job.job.syncers:
        return Checked("syncers", "ok", said)
    if need.shards > len(plan.fragments):
        less = "raise sync.interval, or set compress.up and compress.down"
        remedy = f"more than the {len(plan.fragments)} fragments; {less}"
    else:
        remedy = f"set job.syncers = {need.shards}, each on a host of its own, or raise "
        remedy += "sync.interval, or set compress.up and compress.down"
    return Checked("syncers", "warning", said, remedy)
