"""Protection against executing untrusted code. A tape's header names a task, which a replay imports
and calls: a forged one could name ``subprocess:getoutput``. So every run folder gets a mark when it
is opened: a checksum of the job under a key that only this user has. Without it a folder was
recorded elsewhere, or its job has changed, and it is replayed only with ``--trust`` or ``--task``.

States in a snapshot decide what actors do next, so they act only in a run with this user's mark, or
with ``--trust``, and a place is opened only if it is in the run's own folder, in the job's
settings, or has a mark. Source files in a run folder are imported only if they have a mark, too.
"""

import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from clocks import open_to_append, read_regular
from ddloco.stage.files.toml import ConfigError

MARK_FILE = ".recorded-by"
"""A file in a run folder with a line, in hexadecimal, for each user who has recorded there."""

MARK_BYTES_MAX = 2**16
KEY_BYTES = 32


def content_of(plain: Mapping[str, Any]) -> bytes:
    """Return the recorded job settings or program, in the form of a tape's header, as bytes,
    without the folder of keys: it may differ between hosts and these bytes must not."""
    transport = plain.get("transport")
    if isinstance(transport, dict):
        plain = {**plain, "transport": {**transport, "keys": ""}}
    try:
        return msgspec.json.encode(plain, order="deterministic")
    except (TypeError, ValueError, RecursionError):
        return b""  # Not written by a recorder.


def job_digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(content_of(plain)).hexdigest()[:12]


def leave_mark(folder: Path, plain: Mapping[str, Any]) -> None:
    """Mark a run folder as recorded by this user. Without a home folder for the key, or if the run
    folder cannot be written, there is no mark, and a replay asks for confirmation."""
    _leave(folder, content_of(plain))


def leave_place(folder: Path, place: str) -> None:
    """Mark a place of snapshots as one that this user has given to the run in a folder."""
    _leave(folder, _of_place(place))


def leave_source(folder: Path, texts: Mapping[str, str]) -> None:
    """Mark the source files in a run folder as those that this user has let this run execute."""
    _leave(folder, _of_source(texts))


def is_own_source(folder: Path, texts: Mapping[str, str]) -> bool:
    """Whether this user has let the run in a folder execute exactly these source files."""
    return _has_mark(folder, _of_source(texts))


def _of_source(texts: Mapping[str, str]) -> bytes:
    return b"source " + msgspec.json.encode(dict(texts), order="deterministic")


def _of_place(place: str) -> bytes:
    return b"place " + place.encode("utf-8", "surrogateescape")


def _leave(folder: Path, content: bytes) -> None:
    with suppress(OSError, RuntimeError):
        line = _mark(_key(), content)
        if line in _marks(folder):
            return
        with open_to_append(folder / MARK_FILE) as file:
            file.write(f"{line}\n".encode())


def is_ours(folder: Path, plain: Mapping[str, Any]) -> bool:
    """Whether this user recorded this very job in that folder."""
    return _has_mark(folder, content_of(plain))


def _has_mark(folder: Path, content: bytes) -> bool:
    try:
        mark = _mark(read_regular(_key_file()), content)
    except (OSError, RuntimeError):
        return False
    return any(hmac.compare_digest(mark, line) for line in _marks(folder))


def check_states(folder: Path, plain: Mapping[str, Any], place: str | Path, *, trust: bool) -> None:
    """Refuse, with ``ConfigError``, to let states act that another user may have written, and to
    open places that only a tape names."""
    if trust:
        return
    if not is_ours(folder, plain):
        raise ConfigError(
            f"{folder}: was not recorded by this user on this machine, and the states in its "
            "snapshots decide what its actors do next; use --trust if you trust the author of the "
            "run"
        )
    if not _is_own_place(folder, plain, str(place)):
        raise ConfigError(
            f"{folder}: its tapes name a place of snapshots, {str(place)[:200]!r}, that is neither "
            "in this folder nor was given to this run by this user here; use --trust to open it"
        )


def _is_own_place(folder: Path, plain: Mapping[str, Any], place: str) -> bool:
    table = plain.get("snapshot")
    own = table.get("place") if isinstance(table, dict) else None
    if own and place in {own, str(Path(own).absolute())}:
        return True
    local = "://" not in place and ".." not in Path(place).parts
    if local and Path(place).absolute().is_relative_to(folder.absolute()):
        return True
    return _has_mark(folder, _of_place(place))


def check_trust(folder: Path, plain: Mapping[str, Any]) -> None:
    """Refuse, with ``ConfigError``, to execute what another user's tapes name."""
    if is_ours(folder, plain):
        return
    named = plain.get("program") or _task_of(plain)
    what = "program" if "program" in plain else "task"
    raise ConfigError(
        f"{folder}: was not recorded by this user on this machine, and a replay would call the "
        f"{what} that its tapes name, {str(named)[:100]!r}, with their options; use --trust if you "
        f"trust the author of the tapes, or --task MODULE:FUNCTION to name your own {what}"
    )


def _task_of(plain: Mapping[str, Any]) -> object:
    table = plain.get("job")
    return table.get("task") if isinstance(table, dict) else None


def _mark(key: bytes, content: bytes) -> str:
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _marks(folder: Path) -> list[str]:
    try:
        return read_regular(folder / MARK_FILE, MARK_BYTES_MAX).decode("ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _key_file() -> Path:
    said = os.environ.get("XDG_STATE_HOME", "")
    state = Path(said) if said.startswith("/") else Path.home() / ".local" / "state"
    return state / "ddloco" / "recorder.key"


def _key() -> bytes:
    """This user's key; created at the first use."""
    path = _key_file()
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        try:
            # If two processes create it at once, both use the one that was linked first.
            with suppress(FileExistsError):
                os.link(partial, path)
        except OSError:  # A file system without links.
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    key = read_regular(path)
    if len(key) != KEY_BYTES:
        raise OSError(0, "is no key", str(path))
    return key
