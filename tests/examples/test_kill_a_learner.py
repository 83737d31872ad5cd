"""The story of a killed learner: told from its tapes, and replayed."""

from examples import kill_a_learner


def test_the_story_is_told_and_the_run_replays(capfd):
    """What the learner missed, why, how it came back; and the replay is identical."""
    kill_a_learner.main()
    out = capfd.readouterr().out
    assert "36 merges were done; learner-1 is not in " in out
    assert "it came back as learner-1.2" in out
    assert "identical: " in out
