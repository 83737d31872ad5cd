"""The keys of a job's actors; ``stage.files.keys`` reads and makes them."""

from pathlib import Path

import msgspec

from ddloco.job.config import LEARNERS_MAX, Job
from ddloco.stage.files.faults import SYNCER
from ddloco.stage.files.keys import NAME, OBSERVER, OWNER, load_curve
from ddloco.stage.files.toml import ConfigError
from transport.curve_auth import Curve


def names_for(learners: int, more: str = "") -> tuple[str, ...]:
    """The names of a job's actors that need keys; ``more`` has further names, separated by
    commas."""
    if not 1 <= learners <= LEARNERS_MAX:
        raise ConfigError(f"--learners {learners}: a job has 1 to {LEARNERS_MAX} learners")
    others = more.split(",") if more else []
    for name in others:
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"--names {more}: {name!r} is not a name; want letters, digits, - and _"
            )
    learner_names = [f"learner-{index}" for index in range(learners)]
    return tuple(dict.fromkeys([SYNCER, OWNER, OBSERVER, *learner_names, *others]))


def with_keys(job: Job, folder: Path | None) -> Job:
    if folder is None:
        return job
    transport = msgspec.structs.replace(job.transport, keys=str(folder))
    return msgspec.structs.replace(job, transport=transport)


def curve_of(job: Job, actor: str) -> Curve | None:
    """The keys of an actor of a job; None for a job without keys."""
    return load_curve(Path(job.transport.keys), actor) if job.transport.keys else None


def keys_of(job: Job, kind: str) -> dict[str, Curve]:
    """The keys of a whole job by actor; empty over inproc, where nothing leaves the process."""
    if kind == "inproc":
        return {}
    found = {name: curve_of(job, name) for name in job.names()}
    return {name: curve for name, curve in found.items() if curve is not None}
