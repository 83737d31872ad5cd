"""What a task reads from the environment, and what it writes there too late. Variables that user
code reads until its task is prepared are in the tape's fingerprint: a number as it is, of another
value only a digest, since it may be a secret. JAX reads its own variables when it is imported,
which the fork server has done: one that a task sets in ``os.environ`` has no effect."""

import hashlib
import os
import re
from collections.abc import Mapping
from inspect import currentframe
from typing import Any

import jax

from ddloco.workers.environment import READ, RECORDED, UNSET
from ddloco.workers.task import TaskError
from ddloco.workers.task_sources import is_user_code

NAMES_MAX = 32
"""Of a task that reads more variables, such as by copying all of them, none is recorded."""

NAME = re.compile(r"[A-Za-z_]\w{0,99}")
NUMBER, SWITCH = r"[+-]?[0-9][0-9._]{0,11}(e[+-]?[0-9]{1,3})?", "true|false|on|off|yes|no"
PLAIN = re.compile(f"{NUMBER}|{SWITCH}", re.IGNORECASE)
"""Values that are recorded as they are: short numbers and switches."""

DIGEST_CHARS = 12
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


def watch_environment() -> None:
    """Note from now on what user code reads from ``os.environ``; once in a process."""
    if not isinstance(os.environ, WatchedEnvironment):
        os.environ = WatchedEnvironment(os.environ)  # noqa: B003, it writes through to the process


def what_was_read() -> dict[str, str]:
    """The entries of a fingerprint for the variables that user code has read until now."""
    read = getattr(os.environ, "read", {})
    if len(read) > NAMES_MAX:
        return {}
    return {
        f"{READ}{name}": _said(value)
        for name, value in sorted(read.items())
        if NAME.fullmatch(name) and name not in RECORDED
    }


def _said(value: str | None) -> str:
    if value is None:
        return UNSET
    if PLAIN.fullmatch(value):
        return value
    return f"sha256 {hashlib.sha256(os.fsencode(value)).hexdigest()[:DIGEST_CHARS]}"


def refuse_late_settings(task: str, before: dict[str, str]) -> None:
    """Refuse, with ``TaskError``, a task that has set variables which JAX had read already."""
    for name in sorted(RECORDED):
        value = os.environ.get(name)
        key = name.lower()
        if value == before.get(name) or value is None or not hasattr(jax.config, key):
            continue
        if _spelled(value) != _spelled(str(getattr(jax.config, key))):
            raise TaskError(
                f"task {task}: sets {name} in os.environ when JAX has read it already, so it has "
                f'no effect; set {name} = "{value[:40]}" in [worker.env] of the job file, or call '
                f"jax.config.update({key!r}, ...)"
            )


def _spelled(value: str) -> str:
    said = value.strip().lower()
    return SPELLINGS.get(said, said)
