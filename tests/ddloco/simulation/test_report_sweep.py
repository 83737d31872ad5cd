"""Many seeds over processes: the same outcomes in the same order as one after the other."""

import math
import operator

import pytest

from ddloco.simulation.report import sweep
from tests.lab import hostile_world

SEEDS = [*range(40, 10, -1), 3, 3]


@pytest.mark.parametrize("jobs", [1, 2])
def test_outcomes_are_in_the_order_of_seeds(jobs):
    """Whichever is done first; also of seeds that are not sorted, or come twice."""
    heard = []
    assert [-seed for seed in SEEDS] == list(sweep(operator.neg, SEEDS, jobs, heard.append))
    assert len(SEEDS) == heard[-1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_comes_with_every_seed(jobs):
    """A process takes one seed at a time, so that long ones are spread evenly."""
    heard = []
    list(sweep(operator.neg, SEEDS, jobs, heard.append))
    assert list(range(1, len(SEEDS) + 1)) == heard


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("seeds", [[], [7]])
def test_few_seeds(jobs, seeds):
    """None gives nothing; a single one needs no other process."""
    assert [-seed for seed in seeds] == list(sweep(operator.neg, seeds, jobs, lambda _: None))


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_seed_raises_is_raised(jobs):
    """A failure is not swallowed by the process that met it."""
    with pytest.raises(ValueError, match=r"math domain error|nonnegative"):
        list(sweep(math.sqrt, [4, -1, *range(20)], jobs, lambda _: None))


def test_worlds_are_the_same_in_other_processes():
    """A hostile world has the same trail wherever it is run: nothing of the process gets in."""
    seeds = list(range(4))
    alone, together = (
        list(sweep(hostile_world.run_seed, seeds, jobs, lambda _: None)) for jobs in (1, 2)
    )
    assert alone == together
    assert len({outcome.trail for outcome in alone}) == len(seeds)
