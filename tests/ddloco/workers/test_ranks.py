"""Which of a learner's processes a process is: from options, from an engine, or all are here."""

import pytest

from ddloco.job.config import Worker
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.fork_protocol import Rank
from ddloco.workers.ranks import local_ranks, rank_of

FOUR = Worker(processes=4, stall_s=7.0)
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}
ONE_EACH = {"SLURM_STEP_TASKS_PER_NODE": "1(x4)", "SLURM_LOCALID": "0"}
TWO_EACH = {"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_LOCALID": "0"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("worker", "number", "coordinator", "env", "found"),
    [
        (Worker(), None, "", SLURM, None),
        (FOUR, None, "", {}, None),
        (FOUR, 1, "host:7777", {}, Rank(1, 4, "host:7777", 7.0)),
        (FOUR, 0, "[::1]:7777", {}, Rank(0, 4, "[::1]:7777", 7.0)),
        (FOUR, None, "", SLURM, Rank(2, 4, "", 7.0)),
        (FOUR, None, "", MPI, Rank(3, 4, "", 7.0)),
        (FOUR, None, "", SLURM | ONE_EACH, Rank(2, 4, "", 7.0)),
        (FOUR, None, "", SLURM | TWO_EACH, Rank(2, 4, "", 7.0, (0,))),
        (FOUR, None, "", MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, Rank(3, 4, "", 7.0)),
        (FOUR, None, "host:7777", SLURM, Rank(2, 4, "host:7777", 7.0)),
        (FOUR, 1, "", SLURM, Rank(1, 4, "", 7.0)),
        (FOUR, None, "pod-0:1", {"JOB_COMPLETION_INDEX": "3"}, Rank(3, 4, "pod-0:1", 7.0)),
        (FOUR, None, "", {"JOB_COMPLETION_INDEX": "3"}, None),
        (Worker(processes=3), None, "", SLURM, None),
        (FOUR, None, "", {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "8"}, None),
    ],
)
def test_where_it_is_told(worker, number, coordinator, env, found):
    """Another number of tasks than the learner has processes is about something else."""
    assert rank_of("learner-0", worker, number, coordinator, env) == found


@pytest.mark.parametrize(
    ("worker", "number", "coordinator", "said"),
    [
        (Worker(), 1, "host:1", "--rank 1: learner-0 has one process; set processes in [worker]"),
        (Worker(), None, "host:1", "--coordinator host:1: learner-0 has one process"),
        (FOUR, 4, "host:1", "--rank 4: learner-0 has 4 processes, 0 to 3"),
        (FOUR, -1, "host:1", "--rank -1: learner-0 has 4 processes, 0 to 3"),
        (FOUR, 1, "", "--rank 1: want --coordinator HOST:PORT"),
        (FOUR, None, "host:1", "--coordinator host:1: want --rank, too: 0 to 3"),
        (FOUR, 1, "tcp://host:1", "--coordinator tcp://host:1: want HOST:PORT"),
        (FOUR, 1, "host", "--coordinator host: want HOST:PORT"),
    ],
)
def test_bad_input_is_one_line(worker, number, coordinator, said):
    """It names the option."""
    with pytest.raises(ConfigError) as raised:
        rank_of("learner-0", worker, number, coordinator, {})
    assert str(raised.value).startswith(said)


def test_all_may_be_here():
    """They meet at a free port; the only process of a learner has no rank."""
    assert local_ranks(Worker()) == [None]
    ranks = local_ranks(FOUR)
    assert [each.number for each in ranks] == [0, 1, 2, 3]
    assert len({each.coordinator for each in ranks}) == 1
    assert [each.devices for each in ranks] == [(0,), (1,), (2,), (3,)]
    two = local_ranks(Worker(processes=2, mesh={"data": 2, "model": 4}))
    assert [each.devices for each in two] == [(0, 1, 2, 3), (4, 5, 6, 7)]
