"""A job on Ray: the Python program that starts it, to be run where Ray's cluster can be reached."""

import sys

from ddloco.engines.orders import Order
from ddloco.stage.files.toml import ConfigError

SUBMIT = (sys.executable, "-")
"""What reads the text and runs it."""

RESCALE = SUBMIT

TEXT = """\
# Runs the job {name} on Ray:  python THIS_FILE
# Each actor of the job is the child of a Ray actor, which starts it again after 75 and crashes.
import sys

import ddloco.ray

job = ddloco.ray.run(
    {file!r},
    {folder!r},  # In a file system that all nodes share, so that a syncer can move.
    learners={learners},
    resources={resources!r},  # Of each learner.
    overrides={overrides!r},
)
# The processes are independent of this program; job.scale(N) changes the number of learners.
sys.exit(max(job.wait().values()))
"""


def launch(order: Order) -> str:
    """The program that starts all actors of a job, and waits for them."""
    return TEXT.format(
        name=order.job.job.name,
        file=str(order.file),
        folder=str(order.folder),
        learners=order.learners,
        resources=order.settings.ray.resources,
        overrides=list(order.overrides),
    )


def scale(order: Order, count: int) -> str:
    """Nothing prints it: the program that has the job scales it.

    Raises:
        ConfigError: always.
    """
    said = f"call job.scale({count}) in the program that started {order.job.job.name}"
    raise ConfigError(f"--scale: with --on ray, {said}")
