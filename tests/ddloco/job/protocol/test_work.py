"""What work says of itself."""

from ddloco.job.protocol.work import Evaluate, MergeFragment, Overwrite, Recover, RunStep, Share


def test_what_work_reads_and_makes():
    """Handles of every kind of work, so that what is missing is known."""
    step = RunStep(1, 4, (Overwrite(0, 3, "in/7"),), "host/4")
    out = ("t2", "m2", "w2")
    merge = MergeFragment(2, 8, 1, "t", "m", (Share("a", "in/9", 1.0, 4),), {"b.1": 3}, {}, out)

    assert (step.reads, step.makes) == (("in/7",), ("host/4",))
    assert (merge.reads, merge.makes) == (("t", "m", "in/9"), ("t2", "m2", "w2"))
    assert (Evaluate(3, ("a", "b")).reads, Evaluate(3, ("a", "b")).makes) == (("a", "b"), ())
    assert (Recover(4).reads, Recover(4).makes) == ((), ())
