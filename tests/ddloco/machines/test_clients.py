"""Who takes part in a round."""

from collections import Counter

from ddloco.job.config import job_from
from ddloco.machines.clients import after_step, clients, not_in_round


def made(share, learners=10, seed=0):
    """A job of federated averaging."""
    table = {"task": "none:none", "learners": learners, "method": "fedavg", "seed": seed}
    return job_from({"job": table, "sync": {"clients": share}}, "test")


def test_all_are_there_without_a_share():
    """In the order of their names."""
    assert made(1.0).learner_names() == clients(made(1.0), 24)


def test_a_share_is_drawn_for_each_round_anew():
    """Three of ten, each about as often as the others."""
    job = made(0.3)
    rounds = [clients(job, t) for t in range(0, 24000, 24)]
    assert {3} == {len(each) for each in rounds}
    count = Counter(name for each in rounds for name in each)
    assert set(job.learner_names()) == set(count)
    assert all(220 < times < 380 for times in count.values()), count
    assert clients(made(0.3, seed=1), 24) != clients(job, 24) or clients(job, 48) != clients(
        job, 24
    )


def test_the_quorum_is_the_number_that_is_drawn():
    """At least one, and no more than a share asks for by rounding."""
    assert [1, 1, 2, 3] == [made(share, 10).sync.quorum for share in (0.01, 0.1, 0.11, 0.3)]


def test_who_is_not_there_is_told_why():
    """Not drawn, or not yet at the global step."""
    job = made(0.3)
    there, *_ = clients(job, 24)
    away = next(name for name in job.learner_names() if name not in clients(job, 24))
    assert "not drawn" in not_in_round(job, 24, away, 24)
    assert "global step 20 of 24" in not_in_round(job, 24, there, 20)
    assert not_in_round(job, 24, there, 24) is None


def test_local_steps_end_a_round_early():
    """With the last of them a learner has come to the end of the round, or of the job."""
    table = {"task": "none:none", "method": "fedavg", "steps": 22}
    own = {"learner-0": {"local_steps": 3}, "learner-1": {"local_steps": 1}}
    job = job_from({"job": table, "sync": {"interval": 8}, "learner": own}, "test")

    def way(name):
        position, seen = 0, []
        while position < 22:
            position = after_step(job, name, position)
            seen.append(position)
        return seen

    assert [1, 2, 8, 9, 10, 16, 17, 18, 22] == way("learner-0")
    assert [8, 16, 22] == way("learner-1")
    assert list(range(1, 23)) == way("learner-2")
