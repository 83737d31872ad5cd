"""A real job under the script that ``ddloco launch --on local`` prints."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.installed import DDLOCO, WORK
from tests.processes.conftest import replay

LONG = ("--set=job.steps=120", "--set=task.step_s=0.05", "--set=job.learners=3")


@pytest.mark.slow
def test_a_killed_learner_is_started_again_and_the_job_ends(job):
    """A crash is restarted under the same name, one more learner joins, and the run replays."""
    launch = [*DDLOCO, "launch", str(job.file), "--on", "local", "--dir", str(job.run_folder)]
    launch += [*LONG, "--learners", "2", "--submit"]
    path = f"{Path(DDLOCO[0]).parent}:{os.environ['PATH']}"
    how = {"cwd": WORK, "env": {**os.environ, "PATH": path}, "start_new_session": True}
    running = [subprocess.Popen(launch, **how)]
    try:
        job.wait_for("merge", 8)
        keeper = (job.run_folder / "local" / "learner-1.pid").read_text().strip()
        child = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()[0]
        os.kill(int(child), signal.SIGKILL)
        running.append(subprocess.Popen([*launch, "--scale", "3"], **how))
        job.wait_for("joined", 4)
        assert [0, 0] == [each.wait(180) for each in running]
    finally:
        for each in running:
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()

    replayed = replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
