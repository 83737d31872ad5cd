"""What a replay says of two results that differ."""

from types import SimpleNamespace

from msgspec.structs import replace

from ddloco.job.protocol.fragment_plan import Leaf
from ddloco.job.protocol.work import InstallState, Overwrite, RunStep, StepFinished
from ddloco.replayer.job_executor import JobExecutor
from ddloco.replayer.report import Report
from ddloco.stage.actors.effects import CaptureState
from ddloco.stage.arrays.array_table import ArrayTable


def test_the_step_whose_loss_differs_is_named():
    """With what its number counts, as in the other lines about steps."""
    recorded, found = (StepFinished(7, 40, loss, 8, b"batch") for loss in (0.5, 0.25))
    said = JobExecutor._explained(None, recorded, found, "a hint")
    assert said.said == "the arithmetic differs: the same batch has another loss at step 40"


class Done:
    """Does any work."""

    def do(self, work):
        return work


def test_a_snapshot_of_a_worker_whose_state_is_not_known_is_not_written_again():
    """It cannot be compared, as no step can; the arrays that it names may all be known."""
    arrays = ArrayTable()
    executor = JobExecutor(None, None, Done(), arrays, None, None, Report())
    capture = CaptureState(3, "syncer.1-9", b"", ())
    assert executor.begin(capture) is capture
    arrays.put("theta/0/4", None)
    assert executor.begin(RunStep(4, 1, (Overwrite(0, 4, "theta/0/4"),), "")) is None
    assert executor.begin(capture) is None
    whole = InstallState(5, ())
    assert executor.begin(whole) is whole
    assert executor.begin(capture) is capture


def test_the_first_tensor_that_an_update_changes_otherwise_is_named():
    """The batch and the loss, which is of the parameters before the update, are the same."""
    leaves = [Leaf("a/w", (3,), "float32"), Leaf("b/w", (2,), "float32")]
    job = SimpleNamespace(plan=lambda _: SimpleNamespace(fragments=[leaves[:1], leaves[1:]]))
    this = SimpleNamespace(job=job, started=SimpleNamespace(leaves=leaves))
    recorded, found = (
        StepFinished(7, 40, 0.5, 8, b"batch", tensors=b"same" + each) for each in (b"one.", b"two.")
    )
    said = JobExecutor._explained(this, recorded, found, "a hint")
    assert said.said == "the arithmetic differs: the update of step 40 differs in b/w"


def test_what_a_task_reads_otherwise_is_named_once():
    """As soon as both runs have read it; a batch may be drawn a step earlier or later."""
    told = []
    started = SimpleNamespace(incarnation="learner-0.1")
    executor = JobExecutor(started, None, None, None, None, None, Report(), told.append)
    step = StepFinished(1, 1, 0.5, 8, b"batch")
    for then, now in (
        ({"task.env.A": "1"}, {}),
        ({"task.env.B": "2"}, {"task.env.A": "3"}),
        ({}, {}),
    ):
        assert executor.difference(replace(step, reads=then), replace(step, reads=now)) is None
    executor.difference(replace(step, reads={}), replace(step, reads={"task.env.B": "2"}))
    assert told == ["learner-0.1: the variable A, which the task reads, was 1, is 3"]
