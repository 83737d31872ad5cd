"""What tests of several rooms share."""

import gc
import os
import resource
import signal
import sys
from contextlib import contextmanager

import pytest

from tests import reruns
from tests.reruns import pytest_runtest_setup, pytest_terminal_summary

__all__ = ["pytest_runtest_setup", "pytest_terminal_summary"]


UNOPTIMIZED = "--xla_backend_optimization_level=0"
"""While a test trains, XLA compiles for most of the time. The slow tests compile as users do."""


def pytest_configure(config):
    """Have XLA compile quickly, tables be as wide as in files (a tester beside others has the
    columns of a terminal), and Ctrl-C interrupt what the tests start: a shell has its
    background jobs ignore it, and every process inherits that."""
    os.environ.pop("COLUMNS", None)
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", UNOPTIMIZED)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Tests of real processes first: what is short fills the end, when one worker has no more.

    ``make test`` keeps this order, file by file. They run a second time when they failed.
    """
    reruns.pytest_collection_modifyitems(items)
    items.sort(
        key=lambda item: (not reruns.is_of_processes(item), "simulation" not in item.path.parts)
    )


def pytest_collection_finish():
    """Leave all modules and tests out of every collection of garbage: each of the hundreds that
    tests ask for took a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    """Have all tests of this process share a fork server, which is that of an environment: pytest
    keeps the name of the test in it."""
    name = os.environ.pop("PYTEST_CURRENT_TEST")
    try:
        return (yield)
    finally:
        os.environ["PYTEST_CURRENT_TEST"] = name


def shared(tmp_path_factory):
    """A folder that all processes of one run of the tests have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Hundreds of JAX processes compile the same few functions; here the first of them does it, for
    all processes of one run of the tests, and for the tests that call JAX themselves."""
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(shared(tmp_path_factory) / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    if "jax" in sys.modules:  # It read the environment when it was imported, with the tests.
        config = sys.modules["jax"].config
        config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(scope="session", autouse=True)
def home_of_tests(tmp_path_factory):
    """What ddloco keeps for a user: their key to know their own runs by."""
    os.environ["XDG_STATE_HOME"] = str(shared(tmp_path_factory) / "state")


OURS = ("JAX_", "XLA_", "DDLOCO", "PYTHON")
"""How the variables begin that change what a job does."""


@pytest.fixture(autouse=True)
def the_environment_stays():
    """Fail a test that leaves another environment behind: a later test of the same process would
    find it, and only in some orders. Libraries add variables when they are imported."""
    before = _variables()
    yield
    after = _variables()
    ours = {*before, *(name for name in after if name.startswith(OURS))}
    left = sorted(name for name in ours if before.get(name) != after.get(name))
    for name in left:  # One test fails, not all that follow.
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    assert left == [], f"left changed in the environment: {', '.join(left)}"


def _variables():
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="module")
def little_to_collect():
    """Leave what other tests have left out of the many collections of garbage of a test: each of
    them took a third of a second."""
    gc.collect()
    gc.freeze()


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
