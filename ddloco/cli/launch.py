"""The command ``ddloco launch``: a job for an engine that places and restarts its processes."""

import argparse
import subprocess
from pathlib import Path

from ddloco.cli.ask import complain
from ddloco.engines import kubernetes, local, ray_program, skypilot, slurm
from ddloco.engines.orders import EngineJob, check_count, check_order
from ddloco.job.config import load_job, load_launch
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import FOUND, HELD

ENGINES = {
    "local": local,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "ray": ray_program,
    "skypilot": skypilot,
}


def launch(given: argparse.Namespace) -> int:
    engine = ENGINES[given.on]
    try:
        text = _text(given)
    except ConfigError as error:
        return complain(error)
    if not given.submit:
        print(text, end="")
        return HELD
    return _submit(engine.SUBMIT if given.scale is None else engine.RESCALE, text)


def _text(given: argparse.Namespace) -> str:
    engine = ENGINES[given.on]
    job = load_job(given.job, given.overrides)
    order = EngineJob(
        job=job,
        settings=load_launch(given.job, given.overrides),
        file=given.job.absolute(),
        folder=given.folder.absolute(),
        here=Path.cwd(),
        learners=job.job.learners if given.learners is None else given.learners,
        overrides=given.overrides,
    )
    check_order(order)
    if given.scale is None:
        return engine.launch(order)
    check_count("--scale", given.scale, job)
    if given.scale == order.learners:
        raise ConfigError(f"--scale {given.scale}: there are as many; see --learners")
    return engine.scale(order, given.scale)


def _submit(client: tuple[str, ...], text: str) -> int:
    try:
        code = subprocess.run(client, input=text, text=True, check=False).returncode  # noqa: S603
    except OSError as error:
        return complain(f"{client[0]}: cannot be started: {error.strerror}", FOUND)
    if code:
        return complain(f"{client[0]} ended with exit code {code}; see above", FOUND)
    return HELD
