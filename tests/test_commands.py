"""Commands that are called in the process of the tests: their codes, what they say, their limit."""

import time

import pytest

from tests.commands import here, limited


def test_a_command_says_what_it_says_as_a_process(tmp_path):
    """Exit code and both outputs; the working folder is as before."""
    before = tmp_path.cwd()
    found = here("tape", "verify", "nowhere", cwd=tmp_path)
    assert (found.returncode, found.stdout, tmp_path.cwd()) == (2, "", before)
    assert found.stderr.startswith("ddloco: ")
    assert "simulate" in here("--help").stdout


def test_a_command_that_hangs_fails_its_test():
    """After so many seconds, wherever it is."""
    with pytest.raises(TimeoutError, match="not over within 1 s"), limited(1):
        time.sleep(30)
    with limited(1):
        pass
    time.sleep(1.1)
