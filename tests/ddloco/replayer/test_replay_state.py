"""What is said at the end of a replay of actors that have no tape."""

from ddloco.replayer.replay_state import ReplayState
from ddloco.replayer.report import Report


def state(missing, optional):
    """The state of a replay without any tape."""
    return ReplayState(
        [],
        missing,
        Report(),
        optional=optional,
        start_point=None,
        counted={},
        progress=lambda _: None,
        limits=None,
    )


def test_a_learner_that_never_took_part_is_no_gap():
    """Nothing came from it, so there is nothing that was not compared."""
    report = state(["learner-1"], ["learner-0", "learner-1"]).conclude()

    assert report.identical
    assert report.notes == ["learner-1: never took part"]


def test_a_learner_that_sent_a_message_must_have_a_tape():
    """And a syncer in any case."""
    replay = state(["learner-1", "syncer"], ["learner-0", "learner-1"])
    assert not replay.posted_by("learner-1.1", 3)

    report = replay.conclude()

    assert not report.identical
    assert report.gaps == [
        "learner-1: no tape; 1 of its messages were taken from the others' tapes",
        "syncer: no tape",
    ]
