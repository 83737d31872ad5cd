"""What is kept of freed memory, and given back; each in a process of its own, whose heap it is."""

import subprocess
import sys
import textwrap

import pytest

BURST = """
    from pathlib import Path
    import os
    from ddloco.stage.process import malloc

    def resident():
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20

    assert malloc.keep_freed_memory()
    before = resident()
    burst = [b"x" * 2**20 for _ in range(64)]
    above = b"x" * 2**20  # Freed memory at the very end of the heap is another matter.
    burst.clear()
"""


def run(code):
    """What a new process prints."""
    command = [sys.executable, "-c", textwrap.dedent(BURST) + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
def test_what_a_burst_has_freed_is_kept_and_then_given_back():
    """It is kept at first, since a merge would want it; after a look, the process is as before."""
    told = run("""
        kept = resident() - before
        gave = malloc.give_back()
        print(kept > 60, gave, resident() - before < 8)
    """)
    assert told.split() == ["True", "True", "True"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
def test_memory_is_trimmed_now_and_then():
    """While an actor runs; what lies free is given back without being asked for."""
    told = run("""
        import trio, trio.testing

        async def main():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(malloc.give_back_spare)
                await trio.sleep(malloc.LOOK_S - 1)
                early = resident()
                await trio.sleep(2)
                while resident() > early - 56:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()
            return early - before > 60

        print(trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01)))
    """)
    assert told.split() == ["True"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's heap")
def test_what_is_less_than_is_in_use_is_not_given_back():
    """What is less than is in use stays: the next merge will want it."""
    assert run("""
        used = [b"x" * 2**20 for _ in range(160)]
        held = resident()
        del used[1:49]
        print(malloc.give_back(), held - resident() < 8)
    """).split() == ["False", "True"]
