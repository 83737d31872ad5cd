"""What a replay says of two results that differ."""

from ddloco.protocol.events import StepFinished
from ddloco.replayer.job_executor import JobExecutor


def test_the_step_whose_loss_differs_is_named():
    """With what its number counts, as in the other lines about steps."""
    recorded, found = (StepFinished(7, 40, loss, 8, b"batch") for loss in (0.5, 0.25))
    said = JobExecutor._explained(None, recorded, found, "a hint")
    assert said == "the arithmetic differs: the same batch has another loss at step 40"
