"""The heap world of the laboratory, for tests of all folders here."""

import pytest

from tests.lab import heap_world


@pytest.fixture(name="World")
def world_class():
    """The class of heap worlds."""
    return heap_world.World


@pytest.fixture(name="make_job")
def job_maker():
    """Makes jobs with small numbers."""
    return heap_world.make_job


@pytest.fixture
def leaves():
    """The leaves of six tensors that the heap world's task has."""
    return heap_world.LEAVES
