"""What tests of several rooms share."""

import os
import resource
from contextlib import contextmanager

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Dozens of JAX processes compile the same few functions; here the first of them does it."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


@pytest.fixture(scope="session", autouse=True)
def home_of_tests(tmp_path_factory):
    """What ddloco keeps for a user: their key to know their own runs by."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


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
