"""Processes that compute for a command: lost ones are an error, and none outlives its block."""

import os
import signal
import time

import pytest

from ddloco.stage.process.process_pool import ProcessLostError, process_pool


def test_a_process_that_is_killed_is_one_error():
    """As when the system has no memory left; nothing waits for its answer."""
    with pytest.raises(ProcessLostError, match="was killed"), process_pool(1) as pool:
        pool.submit(os.abort).result()


def leave_early(waiting):
    """Submit parts, and leave the block before they are computed."""
    with process_pool(1) as pool:
        waiting += [pool.submit(time.sleep, 0.1) for _ in range(20)]
        raise KeyError


def test_what_waits_is_not_computed_when_the_block_is_left_early():
    """An error of one part ends the others that have not begun."""
    waiting = []
    with pytest.raises(KeyError):
        leave_early(waiting)
    assert waiting[-1].cancelled()


def interrupt_a_process():
    """Send SIGINT to a process that computes for minutes, and wait for what comes after."""
    with process_pool(1) as pool:
        process = pool.submit(os.getpid).result()
        parts = [pool.submit(time.sleep, 600) for _ in range(2)]
        os.kill(process, signal.SIGINT)
        parts[-1].result()


def test_ctrl_c_ends_a_process_in_the_middle_of_its_part():
    """It does not report the interruption and go on with the next part."""
    with pytest.raises(ProcessLostError):
        interrupt_a_process()


def test_where_ctrl_c_is_ignored_the_processes_ignore_it():
    """As in a background job of a shell script, which goes on when its script is interrupted."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with process_pool(1) as pool:
            process = pool.submit(os.getpid).result()
            os.kill(process, signal.SIGINT)
            assert pool.submit(os.getpid).result() == process
    finally:
        signal.signal(signal.SIGINT, before)
