"""The keys of a job's actors, as files: ``public.toml`` for every host, ``NAME.key`` for its own.

``public.toml`` maps names to public keys. It says both whom a listener lets in and what a dialler
must find at the other end, so every host has the same copy and it need not be kept secret, only
unchanged. A secret key never leaves the folder by itself: people copy it to the one host that
needs it. All syncers of a job share the key ``syncer``, all that watch it share ``observer``.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import tomli_w

from ddloco.config.faults import SYNCER
from ddloco.config.job import LEARNERS_MAX, Job
from ddloco.config.toml import ConfigError, Section, convert, read_toml
from transport.curve_auth import Curve, check_key, new_pair, public_of

PUBLIC_FILE = "public.toml"
OBSERVER = "observer"
SHARED = frozenset({SYNCER, OBSERVER})
"""Keys that several actors use: ``syncer-1`` and ``observer-laptop`` need none of their own."""

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What an actor can be called: a file's name, and what stands before an incarnation's dot."""

PUBLIC_HEAD = """\
# The public keys of a job: the same file on every host. Whoever may change it may take part.
"""


class SecretFile(Section, frozen=True):
    """``NAME.key``."""

    secret: str


class PublicFile(Section, frozen=True):
    """``public.toml``."""

    public: dict[str, str]


def names_for(learners: int, more: str = "") -> tuple[str, ...]:
    """The actors of a job that need keys.

    Args:
        learners: how many.
        more: further names, with commas between them.

    Raises:
        ConfigError: more learners than a job can have, or a name that nobody can have.
    """
    if not 1 <= learners <= LEARNERS_MAX:
        raise ConfigError(f"--learners {learners}: a job has 1 to {LEARNERS_MAX} learners")
    others = more.split(",") if more else []
    for name in others:
        if not NAME.fullmatch(name):
            raise ConfigError(f"--names {more}: {name!r} is no name; letters, digits, - and _")
    learner_names = [f"learner-{index}" for index in range(learners)]
    return tuple(dict.fromkeys([SYNCER, OBSERVER, *learner_names, *others]))


def make_keys(folder: Path, names: Sequence[str]) -> list[str]:
    """Make the keys that are missing; those that exist are never touched. Returns the new names.

    A secret that is not here, of a name in ``public.toml``, is taken to be on its host.

    Raises:
        ConfigError: the folder is open to others, cannot be written, or holds what is no key.
    """
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
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None
    return made


def handed_out(folder: Path, names: Iterable[str]) -> list[str]:
    """For people: which file goes where."""
    lines = [f"{folder / PUBLIC_FILE}  to every host"]
    for name in names:
        whom = {SYNCER: "the host of the syncer", OBSERVER: "whoever may watch the job"}
        path = secret_file(folder, name)
        lines.append(f"{path}  to {whom.get(name, f'the host of {name}')}, and nowhere else")
    return lines


def with_keys(job: Job, folder: Path | None) -> Job:
    """The job with a folder of keys in place of the one that its file names, if one is given."""
    if folder is None:
        return job
    transport = msgspec.structs.replace(job.transport, keys=str(folder))
    return msgspec.structs.replace(job, transport=transport)


def curve_of(job: Job, actor: str) -> Curve | None:
    """What an actor of a job needs to prove who it is; None for a job without keys.

    Raises:
        ConfigError: as for ``load_curve``.
    """
    return load_curve(Path(job.transport.keys), actor) if job.transport.keys else None


def load_curve(folder: Path, actor: str, dialled: Sequence[str] = (SYNCER,)) -> Curve:
    """What an actor needs to prove who it is, and to know the others; ``dialled`` are those that
    must be known.

    Raises:
        ConfigError: a key is missing, is no key, is not the one in ``public.toml``, or can be
            read by others.
    """
    public = read_public(folder)
    for name in dialled:
        if name not in public:
            raise ConfigError(f"{folder / PUBLIC_FILE}: public.{name}: missing; others dial it")
    name = Curve("", public, SHARED).owner(actor)
    if name is None:
        raise ConfigError(
            f"{folder / PUBLIC_FILE}: public.{actor}: no such key; make it with `ddloco keys`"
        )
    path = secret_file(folder, name)
    _checked(path, name, public)
    return Curve(read_secret(path), public, SHARED)


def secret_file(folder: Path, name: str) -> Path:
    """Where the secret key of a name is."""
    return folder / f"{name}.key"


def read_secret(path: Path) -> str:
    """A secret key, in Z85.

    Raises:
        ConfigError: it cannot be read, is no key, or others can read it too.
    """
    secret = convert(read_toml(path), SecretFile, str(path)).secret
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path}: others can read this secret; chmod 600 {path}")
    try:
        check_key(secret)
    except ValueError as error:
        raise ConfigError(f"{path}: secret: {error}") from None
    return secret


def read_public(folder: Path) -> dict[str, str]:
    """Names and their public keys, in Z85.

    Raises:
        ConfigError: the file cannot be read, names what is no key, gives two names one key, or
            can be changed by others.
    """
    path = folder / PUBLIC_FILE
    public = convert(read_toml(path), PublicFile, str(path)).public
    if path.stat().st_mode & 0o022:
        raise ConfigError(f"{path}: others can change who takes part; chmod 644 {path}")
    owners = dict[str, str]()
    for name, key in public.items():
        if not NAME.fullmatch(name):
            raise ConfigError(f"{path}: public: {name!r} is no name; letters, digits, - and _")
        try:
            check_key(key)
        except ValueError as error:
            raise ConfigError(f"{path}: public.{name}: {error}") from None
        if key in owners:
            raise ConfigError(f"{path}: public.{name}: the key of {owners[key]}; want its own")
        owners[key] = name
    return public


def _checked(path: Path, name: str, public: dict[str, str]) -> str:
    """The public key of a secret file, which must be the one that everybody knows, if any."""
    key = public_of(read_secret(path))
    if public.get(name, key) != key:
        raise ConfigError(
            f"{path}: not the secret of public.{name} in {path.parent / PUBLIC_FILE}; "
            "copy both files from where `ddloco keys` made them"
        )
    return key


def _write_secret(path: Path, name: str, secret: str) -> None:
    """Write a new file that nobody else could read at any moment; never over an existing one."""
    text = f"# The secret key of {name}: for its host only.\n" + tomli_w.dumps({"secret": secret})
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _write_public(folder: Path, public: dict[str, str]) -> None:
    """Replace ``public.toml``, whole or not at all."""
    partial = folder / f".{PUBLIC_FILE}.{os.getpid()}"
    partial.write_text(PUBLIC_HEAD + tomli_w.dumps({"public": public}))
    partial.chmod(0o644)
    partial.replace(folder / PUBLIC_FILE)


def keys_of(job: Job, kind: str) -> dict[str, Curve]:
    """The keys of a whole job, by actor; none over inproc, where nothing leaves the process.

    Raises:
        ConfigError: as for ``load_curve``.
    """
    if kind == "inproc":
        return {}
    found = {name: curve_of(job, name) for name in job.names()}
    return {name: curve for name, curve in found.items() if curve is not None}
