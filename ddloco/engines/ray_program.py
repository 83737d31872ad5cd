"""A job on Ray: the Python program that starts it, to be run where Ray's cluster can be reached."""

import sys

from ddloco.engines.orders import EngineJob, check_keys

SUBMIT = (sys.executable, "-")

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

SCALE = """\
# Makes the job {name} on Ray have {learners} learners:  python THIS_FILE
import ddloco.ray

job = ddloco.ray.attach(
    {file!r},
    {folder!r},
    resources={resources!r},  # Of each learner.
    overrides={overrides!r},
)
job.scale({learners})
"""


def launch(order: EngineJob) -> str:
    """The program that starts all actors of a job, and waits for them."""
    return _filled(TEXT, order, order.learners)


def scale(order: EngineJob, count: int) -> str:
    """The program that finds a running job by its folder, and changes its learners."""
    return _filled(SCALE, order, count)


def _filled(text: str, order: EngineJob, learners: int) -> str:
    check_keys(order)
    return text.format(
        name=order.job.job.name,
        file=str(order.file),
        folder=str(order.folder),
        learners=learners,
        resources=order.settings.ray.resources,
        overrides=list(order.overrides),
    )
