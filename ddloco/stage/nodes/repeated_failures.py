"""Failures from which an actor comes back: the same one again and again ends it for good. The
failure is kept in the run folder, so that it does not matter who starts the actor again: this
process, a parent, or an engine."""

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from clocks import read_regular, replace_file
from ddloco.stage.actors.effects import Finish
from ddloco.stage.files.run_folder import TRACEBACKS

LASTING = 3
"""Incarnations in a row with the same failure after which an actor does not come back."""

FILE_BYTES_MAX = 65536


class Failure(Struct, frozen=True):
    """The last failure of an actor, which says where it was in its data; and how many incarnations
    in a row have had it."""

    reason: str
    times: int


def unless_lasting(folder: Path, name: str, finish: Finish) -> Finish:
    """Note how an actor has ended; returns that, for good if its last few incarnations have ended
    in the same way."""
    path = folder / TRACEBACKS / f"{name}.json"
    if not finish.again:
        return finish
    before = _read(path)
    times = before.times + 1 if before.reason == finish.reason else 1
    lasts = times >= LASTING
    with suppress(OSError):  # Then it is the first one again.
        path.parent.mkdir(exist_ok=True)
        if lasts:
            path.unlink()
        else:
            replace_file(path, [msgspec.json.encode(Failure(finish.reason, times))])
    if not lasts:
        return finish
    return Finish("failed", f"{finish.reason}; {times} incarnations in a row have ended with this")


def _read(path: Path) -> Failure:
    try:
        found = read_regular(path, FILE_BYTES_MAX)
        return msgspec.json.decode(found, type=Failure)
    except (OSError, ValueError):
        return Failure("", 0)
