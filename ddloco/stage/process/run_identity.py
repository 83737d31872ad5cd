"""The identity of a run: all that decides its result, as far as it is known, as one table of names
and values, which is the fingerprint in a tape's header. It has versions, the device, variables, and
the digests of source files and of the files that user code has opened. Experiments, replays,
bundles, comparisons of runs, and the handshake compare it here. Two runs with one identity and the
same settings do the same; data that no Python code opens as a file is not known."""

import hashlib
import os
import platform
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import xxhash

from clocks import open_regular
from ddloco.stage.process.code_version import code_version
from replay import TapeHeader

DDLOCO = "ddloco"

SOURCE, FILE, READ = "source ", "file ", "task.env."
"""The prefixes of entries: a source file of the task or program, a file that user code has opened,
and a variable of the environment that it has read."""

UNSET, GONE = "not set", "gone"

PACKAGES = ("jax", "jaxlib", "numpy", "optax")
"""Packages that can change arithmetic."""

DIGEST_CHARS = 12
"""Of a digest that is shown."""

PIECES, PIECE_BYTES = 64, 2**18
WHOLE_BYTES_MAX = PIECES * PIECE_BYTES
"""Of a larger file the digest is of its size and of ``PIECES`` pieces."""

NUMBER, SWITCH = r"[+-]?[0-9][0-9._]{0,11}(e[+-]?[0-9]{1,3})?", "true|false|on|off|yes|no"
PLAIN = re.compile(f"{NUMBER}|{SWITCH}", re.IGNORECASE)
"""Values of variables that are recorded as they are: short numbers and switches."""

HEX = re.compile(r"[0-9a-f]{32,}")


class Change(NamedTuple):
    """An entry that differs between two identities, in words."""

    key: str
    what: str
    then: str
    now: str

    def __str__(self) -> str:
        return f"{self.what} was {self.then}, is {self.now}"


def identity_of(header: TapeHeader) -> dict[str, str]:
    return {DDLOCO: header.code, **header.fingerprint}


def identity_here(sources: Mapping[str, str]) -> dict[str, str]:
    """The identity of what is about to start: source files, ``{path: SHA-256}``, and versions."""
    return {DDLOCO: code_version(), **versions_here(), **said_of_sources(sources)}


def said_of_sources(sources: Mapping[str, str]) -> dict[str, str]:
    return {f"{SOURCE}{name}": digest for name, digest in sources.items()}


def sources_in(identity: Mapping[str, str]) -> dict[str, str]:
    return {k.removeprefix(SOURCE): v for k, v in identity.items() if k.startswith(SOURCE)}


def changes(
    then: Mapping[str, str], now: Mapping[str, str], *, shared: bool = False
) -> Iterator[Change]:
    """Yield what differs between two identities, or with ``shared`` only what both know. A file
    with the same bytes under another name is no change."""
    for key in sorted({*then, *now}):
        one, other = then.get(key, UNSET), now.get(key, UNSET)
        if one == other or (shared and not (key in then and key in now)):
            continue
        elsewhere = now if key in then else then
        if key.startswith(FILE) and (key in then) != (key in now):
            known = {value for name, value in elsewhere.items() if name.startswith(FILE)}
            if {one, other} & known:
                continue
        yield Change(key, known_as(key), shown(one), shown(other))


def apart(identities: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[list[str], str]]:
    """Yield in which entries actors of one job differ, in words, behind those that differ from
    most. Each may have files of its own."""
    for key in sorted({key for each in identities.values() for key in each}):
        theirs = {who: each.get(key, UNSET) for who, each in identities.items()}
        values = {who: v for who, v in theirs.items() if v != UNSET or not key.startswith(FILE)}
        if len({*values.values()}) > 1:
            usual, _ = Counter(values.values()).most_common(1)[0]
            who = [each for each, value in values.items() if value != usual]
            one, others = shown(values[who[0]]), shown(usual)
            yield who, f"{known_as(key)} is {one}; of the others {others}"


def known_as(key: str) -> str:
    if key.startswith(READ):
        return f"the variable {key.removeprefix(READ)}, which the task reads,"
    if key.startswith(FILE):
        return f"the file {key.removeprefix(FILE)}, which the task reads,"
    return f"the source file {key.removeprefix(SOURCE)}" if key.startswith(SOURCE) else key


def shown(value: str) -> str:
    return value[:DIGEST_CHARS] if HEX.fullmatch(value) else value


def versions_here() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def said_of_variable(value: str | None) -> str:
    """The value of a variable in an identity: a number as it is, of another value only a digest,
    since it may be a secret."""
    if value is None:
        return UNSET
    if PLAIN.fullmatch(value):
        return value
    return f"sha256 {hashlib.sha256(os.fsencode(value)).hexdigest()[:DIGEST_CHARS]}"


def file_digest(path: Path) -> str:
    """The xxh3-128 of a file, in hexadecimal; ``GONE`` if it cannot be read."""
    digest = xxhash.xxh3_128()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= WHOLE_BYTES_MAX:
                while piece := file.read(PIECE_BYTES):
                    digest.update(piece)
                return digest.hexdigest()
            digest.update(f"{size}".encode())
            for number in range(PIECES):
                file.seek((size - PIECE_BYTES) * number // (PIECES - 1))
                digest.update(file.read(PIECE_BYTES))
    except OSError:
        return GONE
    return digest.hexdigest()
