"""What a replay knows of work; whole replays are tested in tests/processes."""

from ddloco.effects import Evaluate, MergeFragment, Overwrite, Recover, RunStep, Share, handles_of


def test_what_work_reads_and_makes():
    """Handles of every kind of work, so that what is missing is known."""
    step = RunStep(1, 4, (Overwrite(0, 3, "in/7"),), "host/4")
    out = ("t2", "m2", "w2")
    merge = MergeFragment(2, 8, 1, "t", "m", (Share("a", "in/9", 1.0, 4),), {"b.1": 3}, {}, out)

    assert (("in/7",), ("host/4",)) == handles_of(step)
    assert (("t", "m", "in/9"), ("t2", "m2", "w2")) == handles_of(merge)
    assert (("a", "b"), ()) == handles_of(Evaluate(3, ("a", "b")))
    assert ((), ()) == handles_of(Recover(4))
