"""Golden tapes: runs of former versions replay, or are refused in one line that says what reads
them. A change that breaks this breaks the tapes of users."""

from pathlib import Path

import pytest
import trio

from ddloco.cli.tape_verify import verify_folder
from ddloco.debugger.recorded_job import open_job
from ddloco.replayer.replay_of import replay_of
from replay.tape import FORMAT_VERSION

GOLDEN = Path(__file__).parents[1] / "tapes"


def test_there_are_tapes_of_every_format():
    """A new format gets golden tapes of its own, beside the old ones."""
    assert {each.name for each in GOLDEN.iterdir()} == {
        f"format-{version}" for version in range(1, FORMAT_VERSION + 1)
    }


@pytest.mark.parametrize("folder", sorted(GOLDEN.iterdir()), ids=lambda each: each.name)
def test_golden_tapes_replay_to_the_bit(folder):
    """Two learners, one killed and back; without arithmetic, so that every processor agrees."""
    report = trio.run(replay_of(folder).run)
    assert report.identical, report.divergence
    assert report.events > 200
    held, lines = verify_folder(folder, as_json=False)
    assert held, lines


@pytest.mark.parametrize("folder", sorted(GOLDEN.iterdir()), ids=lambda each: each.name)
def test_golden_tapes_are_explained(folder):
    """The debugger steps them: merges, losses, and the crash."""
    run = open_job(folder)
    merges = list(run.merges())
    assert [each.t for each in merges] == list(range(2, 25, 2))
    assert "learner-1.2" in run.learners
    assert any(each.learner == "learner-1" for merge in merges for each in merge.absent)
