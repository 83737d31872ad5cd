"""Which of a learner's processes a process is, and where they meet."""

import math
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddloco.job.config import Worker
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.fork_protocol import Rank

PLACE = re.compile(r"[^\s:/]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\]:[0-9]{1,5}")


@dataclass(frozen=True)
class _Engine:
    """The variables in which an engine tells a process which of its tasks it is, among all and on
    this host. JAX finds the coordinator in others that the engine sets."""

    number: str
    of: str
    here: str
    of_here: str


ENGINES = (
    _Engine("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    _Engine(*(f"OMPI_COMM_WORLD_{each}" for each in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))),
)


JOBSET = "JOB_COMPLETION_INDEX"
"""The variable that numbers the pods of a job of Kubernetes, such as a JobSet's, which says neither
how many there are nor where the first one is."""


def rank_of(
    name: str, worker: Worker, number: int | None, coordinator: str, env: Mapping[str, str]
) -> Rank | None:
    """Return which of a learner's processes this one is; None if it has one, or all are on this
    host. The options or, from Slurm or Open MPI, the environment may say it. ``ConfigError`` if an
    option is wrong, or one is missing."""
    of = worker.processes
    if coordinator and not PLACE.fullmatch(coordinator):
        raise ConfigError(f"--coordinator {coordinator}: want HOST:PORT, of the host of rank 0")
    if of == 1:
        if number is not None or coordinator:
            option = f"--rank {number}" if number is not None else f"--coordinator {coordinator}"
            cure = f'set processes in [worker] or [learner."{name}"] of the job file'
            raise ConfigError(f"{option}: {name} has one process; {cure}")
        return None
    told, devices = _told_by_engine(of, env)
    if told is None and coordinator and env.get(JOBSET, "").isdecimal():
        told = int(env[JOBSET])
    if number is None:
        number = told
    elif not coordinator and told is None:
        raise ConfigError(f"--rank {number}: want --coordinator HOST:PORT, too: where rank 0 is")
    if number is None:
        if coordinator:
            raise ConfigError(f"--coordinator {coordinator}: want --rank, too: 0 to {of - 1}")
        return None
    if not 0 <= number < of:
        raise ConfigError(f"--rank {number}: {name} has {of} processes, 0 to {of - 1}")
    return Rank(number, of, coordinator, worker.stall_s, devices)


def _told_by_engine(of: int, env: Mapping[str, str]) -> tuple[int | None, tuple[int, ...]]:
    """The rank that an engine gave this process, if it gave out as many as the learner has; and the
    GPU that it uses, if it has one of several tasks on its host."""
    for engine in ENGINES:
        if env.get(engine.of) == str(of) and env.get(engine.number, "").isdecimal():
            alone = re.match(r"1(\D|$)", env.get(engine.of_here, "1"))
            here = env.get(engine.here, "")
            devices = (int(here),) if alone is None and here.isdecimal() else ()
            return int(env[engine.number]), devices
    return None, ()


def local_ranks(worker: Worker) -> Sequence[Rank | None]:
    """All processes of a learner, on this host, whose GPUs they share; None for the only one."""
    if worker.processes == 1:
        return [None]
    each = max(1, math.prod(worker.mesh.values()) // worker.processes)
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = f"127.0.0.1:{free.getsockname()[1]}"
    of = worker.processes
    return [
        Rank(n, of, place, worker.stall_s, tuple(range(n * each, (n + 1) * each)))
        for n in range(of)
    ]
