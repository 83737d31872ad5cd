"""What a task reads of its environment, variables and files, and what it writes there too late. Of
what user code reads there are entries of the run's identity (``run_identity``): in the tape's
fingerprint if it was read until the task was prepared, else in the result of the step after which
it was noticed. JAX reads its own variables when it is imported, which the fork server has done: one
that a task sets in ``os.environ`` has no effect."""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from inspect import currentframe
from pathlib import Path
from typing import Any

import jax

from ddloco.stage.process.run_identity import FILE, READ, file_digest, said_of_variable
from ddloco.workers.environment import RECORDED
from ddloco.workers.task import TaskError
from ddloco.workers.task_sources import is_user_code

NAMES_MAX = 32
"""Of a task that reads more variables, such as by copying all of them, none is recorded."""

FILES_MAX = 32
"""Files whose digests are recorded: the first that are opened."""

FRAMES_MAX = 32
"""Calls between user code and the opening of a file."""

JAX = str(Path(jax.__file__).parent)
CODE = frozenset({".py", ".pyc", ".so"})
NOT_DATA = Path("/proc"), Path("/sys"), Path("/dev"), Path("/etc"), Path(sys.base_prefix, "lib")
"""Names and places that no data of a task has."""

NAME = re.compile(r"[A-Za-z_]\w{0,99}")
BETWEEN = frozenset({os.getenv.__code__.co_filename, Mapping.get.__code__.co_filename})
"""Files of the code between a task and a variable, such as ``os.getenv``."""

SPELLINGS = {
    **dict.fromkeys(("1", "on", "yes"), "true"),
    **dict.fromkeys(("0", "off", "no"), "false"),
    "": "none",
}


class WatchedEnvironment(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` that notes which variables user code reads, with the first value of each."""

    def __init__(self, known: Any) -> None:
        how = (known.encodekey, known.decodekey, known.encodevalue, known.decodevalue)
        super().__init__(known._data, *how)
        self.read: dict[str, str | None] = {}

    def __getitem__(self, key: str) -> str:
        value = None
        try:
            value = super().__getitem__(key)
            return value
        finally:
            if key not in self.read and len(self.read) <= NAMES_MAX and _asked_by_user():
                self.read[key] = value


def _asked_by_user() -> bool:
    """Whether user code asks for a variable, directly or by a function of Python's."""
    frame = currentframe()
    for _ in range(2):  # The caller of ``__getitem__``.
        frame = frame and frame.f_back
    while frame is not None and frame.f_code.co_filename in BETWEEN:
        frame = frame.f_back
    return frame is not None and is_user_code(frame.f_code.co_filename)


class OpenedFiles:
    """The files that user code has opened for reading, by their names as of this folder. Each is
    noticed by Python's audit event of ``open``, so not those that a library opens by itself."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.here = Path.cwd()
        sys.addaudithook(self._noticed)

    def _noticed(self, event: str, given: tuple[Any, ...]) -> None:
        if event != "open" or len(self.names) >= FILES_MAX:
            return
        with suppress(Exception):  # Whatever is wrong with a path, its opener says.
            path, mode, flags = given
            writes = set(mode or "") & set("wax+") or flags & (os.O_WRONLY | os.O_RDWR)
            if not writes and isinstance(path, str | os.PathLike) and _opened_by_user():
                whole = self.here.joinpath(path)
                name = whole.relative_to(self.here) if whole.is_relative_to(self.here) else whole
                if whole.is_file() and not _is_no_data(name):
                    self.names[str(name)] = None


def _is_no_data(name: Path) -> bool:
    """Code, a file of the system, or a hidden one, which holds settings or a secret."""
    hidden = any(part.startswith(".") and part != ".." for part in name.parts)
    return hidden or name.suffix in CODE or any(map(name.is_relative_to, NOT_DATA))


def _opened_by_user() -> bool:
    """Whether user code opens a file, directly or by another library than JAX; no import does."""
    frame = currentframe()
    for _ in range(FRAMES_MAX):
        frame = frame and frame.f_back
        if frame is None:
            return False
        file = frame.f_code.co_filename
        if is_user_code(file):
            return True
        if file.startswith(("<frozen importlib", JAX)):
            return False
    return False


class TaskReads:
    """Tells what user code has read since it was asked before, as entries of an identity."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._counts = 0, 0

    def new(self) -> dict[str, str]:
        read: dict[str, str | None] = getattr(os.environ, "read", {})
        names = [*_opened.names] if _opened is not None else []
        if (len(read), len(names)) == self._counts:  # As after nearly every step.
            return {}
        self._counts = len(read), len(names)
        found = {
            f"{READ}{name}": said_of_variable(read[name])
            for name in sorted(read if len(read) <= NAMES_MAX else ())
            if f"{READ}{name}" not in self._told and NAME.fullmatch(name) and name not in RECORDED
        }
        if _opened is not None:
            new = sorted(name for name in names if f"{FILE}{name}" not in self._told)
            found |= {f"{FILE}{name}": file_digest(_opened.here / name) for name in new}
        self._told.update(found)
        return found


_opened: OpenedFiles | None = None


def watch_environment() -> None:
    """Note from now on what user code reads, of ``os.environ`` and files; once in a process."""
    global _opened  # noqa: PLW0603, an audit hook is one of the process and stays
    if not isinstance(os.environ, WatchedEnvironment):
        os.environ = WatchedEnvironment(os.environ)  # noqa: B003, it writes through to the process
    if _opened is None:
        _opened = OpenedFiles()


def refuse_late_settings(task: str, before: dict[str, str], *, started: bool = False) -> None:
    """Refuse, with ``TaskError``, a task that has set variables which JAX had read already; once it
    has ``started``, those that XLA reads at its start as well. Those of other libraries, such as
    ``CUDA_VISIBLE_DEVICES`` to keep another one off the GPU, may be set at any time."""
    for name in sorted(RECORDED):
        value = os.environ.get(name)
        key = name.lower()
        known = hasattr(jax.config, key)
        late = known or (started and name.startswith("XLA_"))
        if value == before.get(name) or value is None or not late:
            continue
        if not known or _spelled(value) != _spelled(str(getattr(jax.config, key))):
            or_call = f", or call jax.config.update({key!r}, ...)" if known else ""
            raise TaskError(
                f"task {task}: sets {name} in os.environ when JAX has read it already, so it has "
                f'no effect; set {name} = "{value[:40]}" in [worker.env] of the job file{or_call}'
            )


def _spelled(value: str) -> str:
    said = value.strip().lower()
    return SPELLINGS.get(said, said)
