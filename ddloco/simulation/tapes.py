"""Tapes of simulated actors, which differ from others only in their fingerprint."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ddloco.job.config import Job
from ddloco.job.protocol.tape_facts import ARITHMETIC, DEVICE, SEMANTICS, SIMULATED
from ddloco.stage.files.run_folder import LOG_FILE, TAPES
from ddloco.stage.process.code_version import code_version
from ddloco.stage.process.log import ActorLog
from replay import Recorder, TapeHeader, TapeWriter


def recorder_maker(
    job: Job, folder: Path | None, *, arithmetic: bool
) -> Callable[[str], Recorder | None]:
    if folder is None:
        return lambda _: None

    def recorder(incarnation: str) -> Recorder:
        header = header_of(job, incarnation, arithmetic=arithmetic)
        return Recorder(TapeWriter(folder / TAPES / f"{incarnation}.tape", header))

    return recorder


def header_of(job: Job, incarnation: str, *, arithmetic: bool) -> TapeHeader:
    return TapeHeader(
        incarnation=incarnation,
        job_id=job.id,
        job=job.as_plain(),
        code=code_version(),
        fingerprint={DEVICE: SIMULATED, ARITHMETIC: str(arithmetic), "numpy": np.__version__},
        semantics=SEMANTICS,
    )


def log_maker(folder: Path | None) -> Callable[[str], ActorLog | None]:
    return lambda incarnation: ActorLog(folder / LOG_FILE, incarnation) if folder else None
