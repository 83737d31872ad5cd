"""What ends with which exit code: 2 for what a person must change, 75 for what may pass, 1 for
results and bugs."""

import errno
import importlib
import os
import pkgutil

import pytest

import clocks
import ddloco
import replay
import snapshot
import transport
from ddloco.api.launch import JobError
from ddloco.stage.actors.effects import Finish
from ddloco.stage.files.toml import ConfigError, PassingError, refused
from ddloco.stage.nodes.exit_codes import AGAIN, BAD_INPUT, FOUND, HELD, end_code, error_code
from ddloco.stage.nodes.lease import LeaseLostError
from ddloco.workers.task import TaskError
from replay import TapeError, UnwrittenError
from snapshot import SnapshotError, StorageError
from snapshot.storage import cannot

PASS = ("EACCES", "EADDRINUSE", "EAGAIN", "ECONNREFUSED", "EDQUOT", "EIO", "EMFILE", "ENOMEM")
PASS += ("ENOSPC", "EROFS", "ESTALE", "ETIMEDOUT")
STAY = ("EISDIR", "ENAMETOOLONG", "ENOENT", "ENOTDIR")

CODES = [
    (ConfigError("sync.quorum: too large"), BAD_INPUT),
    (TaskError("task a:b: no such module"), BAD_INPUT),
    (SnapshotError("a.json: another run's"), BAD_INPUT),
    (TapeError("a.tape", 3, "damaged"), BAD_INPUT),
    (UnwrittenError("a.tape", 3, "cannot write: No space left on device"), AGAIN),
    (PassingError("another process acts as syncer"), AGAIN),
    (LeaseLostError("syncer.2 acts as syncer now"), AGAIN),
    (StorageError("s3://bucket: the service is away"), AGAIN),
    *((OSError(getattr(errno, name), name), AGAIN) for name in PASS),
    *((OSError(getattr(errno, name), name), BAD_INPUT) for name in STAY),
    (Finish("done", ""), HELD),
    (Finish("stopped", ""), HELD),
    (Finish("left", ""), AGAIN),
    (Finish("bad-input", ""), BAD_INPUT),
    (Finish("failed", ""), FOUND),
    (Finish("failed", "", again=True), AGAIN),
]


@pytest.mark.parametrize(("ended", "code"), CODES, ids=lambda each: repr(each)[:60])
def test_the_table(ended, code):
    """Every error that is no bug, and every end of an actor."""
    if isinstance(ended, Finish):
        assert code == end_code(ended.status, again=ended.again)
    else:
        assert code == error_code(ended)


@pytest.mark.parametrize("name", [*PASS, *STAY])
def test_the_same_behind_a_line(name):
    """A store and a file say what the system says, and end with the same code."""
    error = OSError(getattr(errno, name), os.strerror(getattr(errno, name)))
    code = AGAIN if name in PASS else BAD_INPUT
    assert code == error_code(cannot("a.json", "read", error))
    assert code == error_code(refused("--bind tcp://*:5555", error))
    assert str(refused("here", error)) == f"here: {error.strerror}"


INSIDE = {
    "never reach a command": (
        "DependsOnDivergence LaneFull PeerGone "
        "BrokenHereError CausalityError ClockError CorruptionError DeniedError EndlessError "
        "FragmentStoreError LeaseTakenError LocalProtocolError OutboxFullError OverError "
        "RecordError RefusedError RemoteProtocolError SharingError SideProtocolError SilentError "
        "StateError CellError DropError"
    ),
    "are results: 1": (
        "Mismatch Violation "
        "Divergence JobError ProcessLostError StuckError UnansweredError WorkerDiedError "
        "WorkerRequestError TooLargeError"
    ),
    "are bad input: 2": (
        "ArchiveError ConfigError DamagedError DamagedTapeError NamedError NoExportError "
        "NoTapesError PackingError PlaceError SnapshotError StatusError TapeError TaskError "
        "UnbegunError"
    ),
    "may pass: 75": "LeaseLostError PassingError StorageError TrackerError UnwrittenError",
}
"""All exceptions of the packages, by what becomes of them."""


def test_every_class_of_errors_is_in_the_table():
    """A new one says here what becomes of it."""
    for package in (clocks, ddloco, replay, snapshot, transport):
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not each.name.startswith(("ddloco.workers.", "ddloco.ray", "ddloco.__main__")):
                importlib.import_module(each.name)
    assert JobError.__name__ in INSIDE["are results: 1"]
    known = {name for names in INSIDE.values() for name in names.split()}
    roots = tuple(each.__name__ for each in (clocks, ddloco, replay, snapshot, transport))
    found = {each.__name__ for each in every(Exception) if each.__module__.startswith(roots)}
    assert found - known == set()


def every(kind):
    """All classes that derive from a class."""
    for each in kind.__subclasses__():
        yield each
        yield from every(each)
