"""Work in the background: its result, its failure, its priority."""

import os
import sys
import threading

import pytest

from ddloco.stage.driver.snapshot_writer import NICE, NICE_MAX, in_background


def priority():
    """Of the thread that asks."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own here")
def test_others_go_first():
    """Only that thread steps back, and only as long as it works."""
    before = priority()
    assert min(before + NICE, NICE_MAX) == in_background(priority)
    assert before == priority()


def test_a_failure_is_the_callers():
    """As if it had done the work itself."""
    with pytest.raises(ZeroDivisionError):
        in_background(lambda: 1 // 0)
