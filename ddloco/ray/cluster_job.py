"""A job on a Ray cluster, as its user sees it: started, scaled, looked at, stopped."""

import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from clocks import read_text, replace_file
from ddloco.engines.orders import check_count, check_relays
from ddloco.job.config import Job, load_job
from ddloco.ray.keeper import Errand, JobBoard, Keeper
from ddloco.stage.files.run_folder import make_folder
from ddloco.stage.files.toml import ConfigError

HEAD = {"node:__internal_head__": 0.001}
"""The resource that only the head node has."""

NAMESPACE = "ddloco"
"""Of the detached actors, so that they are found from any program."""

REPLY_S = 30.0
"""For a keeper or the board to answer."""

LOOK_S = 0.5

RAY_FILE = "ray"
"""In the run folder: what the names of the job's Ray actors begin with."""


def run(
    job: str | Path,
    folder: str | Path,
    *,
    learners: int | None = None,
    resources: Mapping[str, float] | None = None,
    overrides: Sequence[str] = (),
) -> "ClusterJob":
    """Start a job on the Ray cluster that this program is connected to, or that ``ray.init`` finds.

    Args:
        job: the job file.
        folder: the run folder, in one that all nodes share, so that a syncer can move.
        learners: how many; by default job.learners.
        resources: what Ray gives each learner, such as ``{"GPU": 1}``.
        overrides: of the job file, such as ``"sync.quorum=2"``.

    Raises:
        ConfigError: the job is invalid or has relays, or Ray is not installed.
    """
    ray, loaded, path = _ray(), load_job(Path(job), overrides), Path(job)
    count = loaded.job.learners if learners is None else learners
    check_count("learners", count, loaded)
    check_relays(loaded)
    if not ray.is_initialized():
        ray.init()
    mark = f"{loaded.job.name}-{uuid.uuid4().hex[:8]}"
    place = Path(folder).absolute()
    make_folder(place)
    replace_file(place / RAY_FILE, [mark.encode()])
    started = ClusterJob(
        ray,
        loaded,
        read_text(path),
        place,
        mark=mark,
        resources=resources or {},
        overrides=overrides,
    )
    started.scale(count)
    return started


def attach(
    job: str | Path,
    folder: str | Path,
    *,
    resources: Mapping[str, float] | None = None,
    overrides: Sequence[str] = (),
) -> "ClusterJob":
    """The job that runs in a folder, started by another program; see ``run`` for the arguments.

    Raises:
        ConfigError: the job is invalid, Ray is not installed, or no job was started there.
    """
    ray, loaded, place = _ray(), load_job(Path(job), overrides), Path(folder).absolute()
    try:
        mark = read_text(place / RAY_FILE).strip()
    except OSError as error:
        said = f"{place / RAY_FILE}: {error.strerror}; no job was started there on Ray"
        raise ConfigError(said) from None
    if not ray.is_initialized():
        ray.init()
    try:
        ray.get_actor(f"{mark}-board", namespace=NAMESPACE)
    except ValueError:
        raise ConfigError(f"{place}: its job is not on this Ray cluster any more") from None
    text = read_text(job)
    return ClusterJob(
        ray, loaded, text, place, mark=mark, resources=resources or {}, overrides=overrides
    )


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise ConfigError("ray: not installed; pip install 'ddloco[ray]'") from None


class ClusterJob:
    """A job on a Ray cluster; its processes outlive the program that started them."""

    def __init__(
        self,
        ray: Any,
        job: Job,
        text: str,
        folder: Path,
        *,
        mark: str,
        resources: Mapping[str, float],
        overrides: Sequence[str],
    ) -> None:
        self._ray, self._job, self._text = ray, job, text
        self._folder = folder
        self._resources = dict(resources)
        self._options = [f"--set={each}" for each in overrides]
        self._mark = mark
        self._board = self._found("board")
        if self._board is None:
            board = ray.remote(JobBoard).options(
                name=f"{self._mark}-board",
                lifetime="detached",
                namespace=NAMESPACE,
                num_cpus=0,
                resources=HEAD,
            )
            self._board = board.remote()
        found = {name: self._found(name) for name in job.names()}
        self.keepers: dict[str, Any] = {
            name: each or self._keeper(name, {})
            for name, each in found.items()
            if each is not None or name in job.syncer_names()
        }

    def scale(self, learners: int) -> None:
        """Make it so many learners; those with the highest numbers leave for good.

        Raises:
            ConfigError: the job has fewer names.
        """
        check_count("learners", learners, self._job)
        names = self._job.learner_names()
        for name in names[learners:]:
            if name in self.keepers:
                keeper = self.keepers.pop(name)
                self._ray.get(keeper.leave.remote(), timeout=REPLY_S)
                self._ray.kill(keeper)
        for name in names[:learners]:
            if name not in self.keepers:
                self.keepers[name] = self._keeper(name, self._resources)

    def status(self) -> dict[str, dict[str, Any]]:
        """Node and final exit code of each process that has run; the code is None until then."""
        return self._ray.get(self._board.status.remote(), timeout=REPLY_S)

    def wait(self) -> dict[str, int]:
        """Wait until all have ended; returns the exit code of each."""
        while True:
            found = {name: each["code"] for name, each in self.status().items()}
            codes = {name: found.get(name) for name in self.keepers}
            done = {name: code for name, code in codes.items() if code is not None}
            if len(done) == len(codes):
                return done
            time.sleep(LOOK_S)

    def stop(self) -> dict[str, int]:
        """End the job for all, in good order, and its Ray actors; returns the exit codes."""
        found = self._ray.get(self._board.addresses.remote(), timeout=REPLY_S)
        lead = found.get(self._job.syncer_names()[0])
        if lead:
            keys = ["--keys", self._job.transport.keys] if self._job.transport.keys else []
            command = [sys.executable, "-m", "ddloco", "stop", lead, "--timeout", "60", *keys]
            subprocess.run(command, check=False)  # noqa: S603
        codes = self.wait() if lead else {}
        for actor in (*self.keepers.values(), self._board):
            self._ray.kill(actor)
        return codes

    def _found(self, name: str) -> Any:
        """A Ray actor of this job that is there; None if there is none."""
        try:
            return self._ray.get_actor(f"{self._mark}-{name}", namespace=NAMESPACE)
        except ValueError:
            return None

    def _keeper(self, name: str, resources: Mapping[str, float]) -> Any:
        job, ships = self._job, self._job.tape.ship
        syncer = name in job.syncer_names()
        errand = Errand(
            name=name,
            syncers=job.syncer_names(),
            text=self._text,
            options=self._options,
            folder=str(self._folder) if syncer or not ships else None,
            here=str(Path.cwd()),
            mark=self._mark,
        )
        more = {key: each for key, each in resources.items() if key not in ("CPU", "GPU")}
        made = self._ray.remote(Keeper).options(
            name=f"{self._mark}-{name}",
            lifetime="detached",
            namespace=NAMESPACE,
            max_restarts=-1,
            num_cpus=resources.get("CPU", 1),
            num_gpus=resources.get("GPU", 0),
            resources=more,
        )
        return made.remote(errand, self._board)
