"""What an engine is asked to start: the actors of a job, where they run, and what they are told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddloco.job.config import Job, Launch
from ddloco.stage.files.run_folder import address_file
from ddloco.stage.files.toml import ConfigError


@dataclass(frozen=True)
class EngineJob:
    """A job for an engine; paths are absolute.

    Attributes:
        here: the folder from which the task is imported.
        overrides: of the job file, from the command line.
    """

    job: Job
    settings: Launch
    file: Path
    folder: Path
    here: Path
    learners: int
    overrides: Sequence[str] = ()

    def command(self, role: str, file: str = "") -> list[str]:
        """What each command of an actor begins with; ``file`` is the job file where it runs."""
        sets = [f"--set={each}" for each in self.overrides]
        return ["ddloco", role, file or str(self.file), *sets, "--join"]

    def address(self, syncer: str) -> str:
        """The file in a shared run folder that has the address of a syncer, wherever that runs."""
        return f"file:{address_file(self.folder, syncer)}"

    def connection(self, name: str, address: Callable[[str], str]) -> list[str]:
        """The option that leads an actor to those that it dials."""
        dialed = [address(each) for each in self.job.dials(name)]
        return ["--connect", *dialed] if dialed else []


def check_order(order: EngineJob) -> None:
    """Refuse what no engine could carry out."""
    check_count("--learners", order.learners, order.job)
    check_relays(order.job)
    for path in (order.file, order.folder, order.here):
        if not str(path).isprintable():
            raise ConfigError(f"{str(path)!a}: want a path of printable characters")
    for each in order.overrides:
        if not each.isprintable():
            raise ConfigError(f"--set {each[:80]!a}: want printable characters, on one line")


def check_keys(order: EngineJob) -> None:
    require_keys(order, "transport.keys", order.job.transport.keys)


def require_keys(order: EngineJob, key: str, given: str) -> None:
    """Refuse a job of several hosts without keys, unless its network is said to be its own."""
    if not given and not order.job.transport.insecure:
        said = "missing; a syncer listens to other hosts with keys, or with transport.insecure"
        raise ConfigError(f"{key}: {said}")


def check_relays(job: Job) -> None:
    """Refuse a job with relays: no engine knows which of its hosts are one site."""
    for name in job.relay_names():
        raise ConfigError(
            f"relay.{name}: engines place no relays; start its actors with ddloco syncer, ddloco "
            "relay and ddloco learner, or leave it out"
        )


def check_count(option: str, count: int, job: Job) -> None:
    if not 1 <= count <= job.job.learners:
        raise ConfigError(f"{option} {count}: want 1 to {job.job.learners}, which is job.learners")
