"""Tapes of simulated actors: like any other, except for what their fingerprint names."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ddloco.config.job import Job
from ddloco.config.run_folder import LOG_FILE, TAPES
from ddloco.protocol.tape_facts import ARITHMETIC, DEVICE, SEMANTICS, SIMULATED
from ddloco.runtime.log import ActorLog
from ddloco.tapes.code_version import code_version
from replay import Header, Recorder, TapeWriter


def pen(job: Job, folder: Path | None, *, arithmetic: bool) -> Callable[[str], Recorder | None]:
    """Makes recorders for incarnations, in a run folder; without one, nothing is recorded."""
    if folder is None:
        return lambda _: None

    def recorder(incarnation: str) -> Recorder:
        header = header_of(job, incarnation, arithmetic=arithmetic)
        return Recorder(TapeWriter(folder / TAPES / f"{incarnation}.tape", header))

    return recorder


def header_of(job: Job, incarnation: str, *, arithmetic: bool) -> Header:
    """How the tape of a simulated incarnation begins."""
    return Header(
        incarnation=incarnation,
        job_id=job.id,
        job=job.as_plain(),
        code=code_version(),
        fingerprint={
            DEVICE: SIMULATED,
            ARITHMETIC: str(arithmetic),
            "numpy": np.__version__,
        },
        semantics=SEMANTICS,
    )


def logbook(folder: Path | None) -> Callable[[str], ActorLog | None]:
    """Makes the logs of incarnations, in a run folder; without one, nothing is logged."""
    return lambda incarnation: ActorLog(folder / LOG_FILE, incarnation) if folder else None
