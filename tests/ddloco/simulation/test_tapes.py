"""Tapes of simulated actors: who says so, and what is left where no folder is given."""

from ddloco.job.protocol.tape_facts import ARITHMETIC, DEVICE, SEMANTICS, SIMULATED, is_simulated
from ddloco.simulation.tapes import log_maker, recorder_maker
from replay import open_tapes
from tests.lab import hostile_world


def test_without_a_folder_nothing_is_left(make_job):
    """No recorder, no log."""
    assert recorder_maker(make_job(), None, arithmetic=True)("learner-0.1") is None
    assert log_maker(None)("learner-0.1") is None


def test_a_tape_says_that_it_is_simulated(tmp_path):
    """In its fingerprint, with whether there were numbers; job and behaviours as in a live run."""
    drawn = hostile_world.draw(3, tmp_path)
    hostile_world.happen(drawn)
    for tape in open_tapes(tmp_path):
        header = tape.header
        assert is_simulated(header)
        assert (SIMULATED, "True") == (header.fingerprint[DEVICE], header.fingerprint[ARITHMETIC])
        assert (drawn.job.id, SEMANTICS) == (header.job_id, header.semantics)
        assert drawn.job.as_plain() == header.job
        assert tape.closed is not None or "crash" in {fault.what for fault in drawn.faults}


def test_a_log_stands_beside_the_tapes(tmp_path):
    """With what actors observed."""
    hostile_world.run_seed(3, tmp_path)
    [log] = tmp_path.glob("*.jsonl")
    assert '"merge"' in log.read_text()
