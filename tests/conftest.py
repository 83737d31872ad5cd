"""What tests of several rooms share."""

import resource
from contextlib import contextmanager

import pytest


@pytest.fixture
def small_disk():
    """Give a context manager in which no file of this process grows beyond so many bytes.

    For as short as possible: pytest's own output may go to a file.
    """

    @contextmanager
    def limited(nbytes):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
