"""A job whose last step was lowered below what is merged is done, and says so to learners that
come."""

import socket

import numpy as np
import pytest
import tomli_w
import trio

from ddloco.job.config import job_from
from ddloco.job.protocol.work import Kept
from ddloco.machines.outer.optimizers.table import zero_state
from ddloco.roles.job_program import program_of
from ddloco.roles.past_job import past_end
from ddloco.stage.actors.effects import Finish
from ddloco.stage.files.run_folder import JOB_FILE, KEPT
from ddloco.stage.nodes.serve import Terms, serve_role
from ddloco.workers.fragment_store import FragmentFolder, StoredFragment, theta_digest


def job_of(steps, **sync):
    """A job that ran, or is to run."""
    return job_from({"job": {"task": "json:loads", "steps": steps}, "sync": sync}, "test")


@pytest.fixture
def folder(tmp_path):
    """The run folder of a job of 40 steps, of which 36 are merged."""
    job = job_of(40)
    (tmp_path / JOB_FILE).write_text(tomli_w.dumps(job.as_plain()))
    ones = np.ones(4, np.float32)
    (tmp_path / KEPT / "syncer").mkdir(parents=True)
    kept = FragmentFolder(tmp_path / KEPT / "syncer", job.id)
    for p, version in enumerate((34, 36)):
        state = zero_state(job.outer, ones)
        digest = theta_digest(ones, state)
        kept.put(StoredFragment(Kept(p, version, {}, {}, digest), ones, state))
    return tmp_path


@pytest.mark.parametrize(
    ("job", "past"),
    [
        (job_of(20), True),
        (job_of(36), True),
        (job_of(37), False),
        (job_of(40), False),
        (job_of(20, staleness=7), False),
    ],
    ids=["fewer", "just as many", "more than are merged", "the same", "something else, too"],
)
def test_a_job_is_past_its_end_if_only_its_steps_were_lowered(folder, job, past):
    """By as much as nothing is left to merge."""
    reason = past_end(job, folder, "syncer")
    assert past == bool(reason)
    if past:
        assert reason.startswith(f"job.steps is {job.job.steps}, and {folder} holds the merge of ")


def test_what_cannot_be_read_is_not_past_its_end(folder, tmp_path_factory):
    """Those who need it say what is wrong."""
    (folder / KEPT / "syncer" / "fragment-0000.safetensors").write_bytes(b"?")
    assert past_end(job_of(20), folder, "syncer") == ""
    assert past_end(job_of(20), tmp_path_factory.mktemp("empty"), "syncer") == ""


async def test_a_learner_of_such_a_job_is_told(folder, tmp_path_factory):
    """It ends as done, in one line, and does not wait for merges that never come."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    finishes = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            at, program = {"syncer": address}, program_of(job_of(20))
            over = Terms(over=lambda: past_end(job_of(20), folder, "syncer"))
            nursery.start_soon(serve_role, program, "syncer", folder, at, over)
            own = tmp_path_factory.mktemp("learner")
            finishes.append(await serve_role(program, "learner-0", own, at, Terms(signals=False)))
            nursery.cancel_scope.cancel()
    [finish] = finishes
    assert isinstance(finish, Finish)
    assert finish.status == "done"
    assert "holds the merge of global step 36" in finish.reason
