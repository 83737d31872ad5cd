"""The keys of a job's actors in files: ``public.toml``, the same on every host, says whom a
listener admits and what a dialler expects; it must not be changed by others. ``NAME.key`` is
secret, for one host; users copy it, never the program. All syncers share the key ``syncer``, all
observers ``observer``, which may only look; who may end the job, or ask for a snapshot, has
``owner``."""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import tomli_w

from clocks import replace_file
from ddloco.stage.files.faults import SYNCER
from ddloco.stage.files.toml import ConfigError, Section, convert, read_toml, refused
from transport.curve_auth import Curve, check_key, new_pair, public_of

PUBLIC_FILE = "public.toml"
OBSERVER, OWNER = "observer", "owner"
SHARED = frozenset({SYNCER, OBSERVER, OWNER})
"""Keys that several actors use: ``syncer-1`` and ``observer-laptop`` need no keys of their own."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Valid actor names: they are file names, and the part of an incarnation before the dot."""

PUBLIC_HEAD = """\
# The public keys of a job: the same file on every host. Who can change it can take part.
"""


class SecretFile(Section, frozen=True):
    """``NAME.key``."""

    secret: str


class PublicFile(Section, frozen=True):
    """``public.toml``."""

    public: dict[str, str]


def make_keys(folder: Path, names: Sequence[str]) -> list[str]:
    """Make the missing keys; existing ones are not changed. Returns the new names. A name in
    ``public.toml`` without a secret key here has that on its own host. ``ConfigError`` if the
    folder is accessible to others, cannot be written, or has an invalid key."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            raise ConfigError(f"{folder}: others can look into it; chmod 700 {folder}")
        public = read_public(folder) if (folder / PUBLIC_FILE).exists() else {}
        before, made = dict(public), list[str]()
        for name in names:
            path = secret_file(folder, name)
            if path.exists():
                public[name] = _checked(path, name, public)
            elif name not in public:
                public[name], secret = new_pair()
                _write_secret(path, name, secret)
                made.append(name)
        if public != before:
            _write_public(folder, public)
    except OSError as error:
        raise refused(str(error.filename or folder), error) from None
    return made


def handed_out(folder: Path, names: Iterable[str]) -> list[str]:
    """Instructions for users: which file goes to which host."""
    lines = [f"{folder / PUBLIC_FILE}  to every host"]
    for name in names:
        whom = {
            SYNCER: "the host of the syncer",
            OWNER: "the hosts of those who may end the job",
            OBSERVER: "the hosts of observers",
        }
        path = secret_file(folder, name)
        lines.append(f"{path}  to {whom.get(name, f'the host of {name}')}, and nowhere else")
    return lines


def load_curve(folder: Path, actor: str, dialled: Sequence[str] = (SYNCER,)) -> Curve:
    """Return an actor's secret key and the public keys of the others; ``dialled`` must be among
    those. ``ConfigError`` if a key is missing, invalid, not that of ``public.toml``, or can be read
    by others."""
    public = read_public(folder)
    for name in dialled:
        if name not in public:
            raise ConfigError(
                f"{folder / PUBLIC_FILE}: public.{name}: missing; others need it to dial"
            )
    name = Curve("", public, SHARED).owner(actor)
    if name is None:
        raise ConfigError(
            f"{folder / PUBLIC_FILE}: public.{actor}: no such key; make it with `ddloco keys`"
        )
    path = secret_file(folder, name)
    _checked(path, name, public)
    return Curve(read_secret(path), public, SHARED, PublicKeys(folder, public).renew)


class PublicKeys:
    """The keys of ``public.toml``, which may change while a job runs: ``ddloco keys`` adds those of
    further learners, and a name that is taken out takes part no more. ``public`` is changed in
    place."""

    def __init__(self, folder: Path, public: dict[str, str]) -> None:
        self._folder, self._public = folder, public
        self._seen: tuple[int, int, int] | None = None

    def renew(self) -> None:
        """Read the file again if it has changed; one that cannot be read changes nothing."""
        state = self._state()
        if state in {self._seen, None}:
            return
        self._seen = state
        with suppress(ConfigError, OSError):
            found = read_public(self._folder)
            self._public.clear()
            self._public.update(found)

    def _state(self) -> tuple[int, int, int] | None:
        with suppress(OSError):
            found = (self._folder / PUBLIC_FILE).stat()
            return found.st_mtime_ns, found.st_size, found.st_ino
        return None


def secret_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.key"


def read_secret(path: Path) -> str:
    secret = convert(read_toml(path), SecretFile, str(path)).secret
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path}: others can read this secret; chmod 600 {path}")
    try:
        check_key(secret)
    except ValueError as error:
        raise ConfigError(f"{path}: secret: {error}") from None
    return secret


def read_public(folder: Path) -> dict[str, str]:
    path = folder / PUBLIC_FILE
    public = convert(read_toml(path), PublicFile, str(path)).public
    if path.stat().st_mode & 0o022:
        raise ConfigError(f"{path}: others can change who takes part; chmod 644 {path}")
    mode = folder.stat().st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:  # With the sticky bit only own files are replaced.
        raise ConfigError(f"{folder}: others can replace the keys in it; chmod 700 {folder}")
    owners = dict[str, str]()
    for name, key in public.items():
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: public: {name!r} is not a name; want letters, digits, - and _"
            )
        try:
            check_key(key)
        except ValueError as error:
            raise ConfigError(f"{path}: public.{name}: {error}") from None
        if key in owners:
            raise ConfigError(
                f"{path}: public.{name}: is also the key of {owners[key]}; each name needs its own"
            )
        owners[key] = name
    return public


def _checked(path: Path, name: str, public: dict[str, str]) -> str:
    """The public key of a secret file; it must equal the one in ``public.toml``, if any."""
    key = public_of(read_secret(path))
    if public.get(name, key) != key:
        raise ConfigError(
            f"{path}: not the secret of public.{name} in {path.parent / PUBLIC_FILE}; "
            "copy both files from where `ddloco keys` made them"
        )
    return key


def _write_secret(path: Path, name: str, secret: str) -> None:
    """Write a new file that others can never read; never over an existing one."""
    text = f"# The secret key of {name}: for its host only.\n" + tomli_w.dumps({"secret": secret})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _write_public(folder: Path, public: dict[str, str]) -> None:
    text = PUBLIC_HEAD + tomli_w.dumps({"public": public})
    replace_file(folder / PUBLIC_FILE, [text.encode()], mode=0o644)
