"""The identity of a run: all that decides its result, as far as it is known. Two runs with one
identity do the same. Data has no digest: what a task reads beside its sources is not part of an
identity, and pages that show one say so."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import Struct

from ddloco.job.protocol.tape_facts import SEMANTICS
from ddloco.stage.process.code_version import own_version
from ddloco.stage.process.entry_point import found_from
from ddloco.workers.task_sources import kept_sources, of_the_user, task_root

PACKAGES = ("jax", "jaxlib", "numpy", "optax")
"""Packages that can change arithmetic."""

GONE = "gone"
"""In place of the digest of a source file that is there no more."""


class RunIdentity(Struct, frozen=True):
    """What decides the result of a run: digests of its settings and of the behaviours that tapes
    name, the SHA-256 of each source file of its task, by path, and versions."""

    settings: str
    sources: dict[str, str]
    semantics: str
    versions: dict[str, str]

    def changes(self, now: "RunIdentity") -> list[str]:
        """What is different in another identity, in words; nothing if they are equal."""
        found = ["its settings"] if self.settings != now.settings else []
        for name, digest in sorted(now.sources.items()):
            if self.sources.get(name) != digest:
                found.append(f"{name} {'is gone' if digest == GONE else 'of its task'}")
        for name, number in sorted(now.versions.items()):
            if self.versions.get(name) != number:
                found.append(f"{name} {self.versions.get(name, 'unknown')}, now {number}")
        if not found and self != now:
            found.append("the behaviour of ddloco")
        return found

    @property
    def said(self) -> str:
        digest = digest_of("".join(sorted(self.sources.values())))[:12]
        numbers = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        return f"task sources {digest}, {numbers}; the task's data has no digest"


def identity_of(run: Path, settings: str) -> RunIdentity:
    sources = of_the_user(kept_sources(run))
    return _identity(settings, {name: digest_of(text) for name, text in sources.items()})


def identity_now(then: RunIdentity, task: str, settings: str) -> RunIdentity:
    """Return the identity that a run like an earlier one would have, with the source files as they
    are now."""
    module = task.partition(":")[0]
    root = task_root(module, found_from(Path.cwd(), module))
    sources: dict[str, str] = {}
    for name in then.sources:
        try:
            sources[name] = digest_of((root / name).read_text()) if root is not None else GONE
        except (OSError, UnicodeDecodeError):
            sources[name] = GONE
    return _identity(settings, sources)


def _identity(settings: str, sources: dict[str, str]) -> RunIdentity:
    behaviour = digest_of("\n".join(SEMANTICS))
    return RunIdentity(settings, sources, behaviour, {"ddloco": own_version(), **versions_here()})


def digest_of(text: str) -> str:
    """The SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def versions_here() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
