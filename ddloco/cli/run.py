"""``ddloco run`` until its job has been loaded; ``run_job`` does the rest.

What the job needs takes about a second to import, and so does JAX in the fork server of its
workers: with two modules, one is imported while the other is.
"""

import argparse
import os

from ddloco.cli.ask import complain
from ddloco.job.config import load_job
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.environment import worker_environment
from ddloco.workers.forking import start_early


def run(given: argparse.Namespace) -> int:
    """``ddloco run``: run a whole job on this machine."""
    try:
        job = load_job(given.job, given.overrides, given.chaos)
    except ConfigError as error:
        return complain(error)
    # With --processes, each process has a server of its own.
    names = () if given.processes else job.names()
    start_early(worker_environment(os.environ, job.worker_of(name), name=name) for name in names)
    from ddloco.cli.run_job import run_loaded  # noqa: PLC0415, see above

    return run_loaded(given, job)
