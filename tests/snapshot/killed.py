"""Kills a writer of snapshots at each of its calls to the system, one after the other.

``killed.py FOLDER``: a snapshot stands in FOLDER/before; each child gets a copy of it and is killed
at its k-th call while it writes the next one, until one comes to its end. Prints how many died.
A process of its own, because what forks must have no threads.
"""

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import conftest

import snapshot.local_storage
from snapshot import Store

KILLED = 9


def write(root, k):
    """Write the second snapshot; die at the k-th call, a write half done."""
    calls = 0

    def before(name, args):
        nonlocal calls
        calls += 1
        if calls == k:
            if name == "write":
                os.write(args[0], args[1][: len(args[1]) // 2])
            os._exit(KILLED)

    snapshot.local_storage.os = conftest.Watched(before)
    store = Store(root)
    store.commit(conftest.draft(store, 2))
    os._exit(0)


def main():
    """Go through all calls."""
    folder = Path(sys.argv[1])
    k = 0
    while True:
        k += 1
        root = folder / str(k)
        shutil.copytree(folder / "before", root)
        child = os.fork()
        if child == 0:
            write(root, k)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            break
        assert code == KILLED, code
    print(k - 1)


main()
