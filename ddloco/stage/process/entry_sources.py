"""The source files of an entry point: its module, and the modules of the same folder that it
imports. They are found without executing any of them, so hosts compare them before anything is
started, and an experiment after a file has been changed."""

import ast
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from clocks import read_regular
from ddloco.stage.files.near_miss import did_you_mean
from ddloco.stage.process.entry_point import (
    PACKAGES,
    PINNED,
    KeptModules,
    NamedError,
    found_from,
    modules_here,
    parted,
)

FILES_MAX = 500

INSTALLED = frozenset({"site-packages", "dist-packages"})
STANDARD = Path(os.__file__).parent


def source_digests(kind: str, spec: str, kept: KeptModules | None = None) -> dict[str, str]:
    """Return the SHA-256, in hex, of an entry point's source files by path, relative to the folder
    that its module is imported from; without installed packages other than its own. ``NamedError``
    if there is none."""
    module_name, _ = parted(kind, spec)
    found = found_from(Path.cwd(), module_name)
    if found is None and kept is not None and kept.file(module_name) is not None:
        return {
            path.relative_to(kept.folder).as_posix(): kept.digest_of(path).hex()
            for path in _closure(Path(kept.folder), module_name, kept)
        }
    found, root = _found(kind, spec, module_name, found)
    origin = Path(str(found.origin))
    try:
        digests = {origin: _digest(origin)}
    except OSError as error:
        said = f"{origin} cannot be read: {error.strerror}"
        raise NamedError(f"{kind} {spec!r}: {said}") from None
    for path in _closure(root, module_name, None):
        with suppress(OSError):  # Whoever imports it says why.
            digests[path] = _digest(path)
    return {path.relative_to(root).as_posix(): each for path, each in digests.items()}


def _digest(path: Path) -> str:
    """Of the text, with each end of a line as a newline."""
    text = read_regular(path).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return hashlib.sha256(text).hexdigest()


def _found(
    kind: str, spec: str, module_name: str, found: ModuleSpec | None
) -> tuple[ModuleSpec, Path]:
    if found is None and PINNED.fullmatch(module_name):
        said = f"{module_name} was taken from a script or a notebook, and is not in the run folder"
        raise NamedError(f"{kind} {spec!r}: {said}")
    if found is None:
        near = did_you_mean(module_name, modules_here(module_name))
        said = f"there is no module {module_name}, here or installed{near}"
        raise NamedError(f"{kind} {spec!r}: {said}")
    if found.origin is None or not found.has_location:
        raise NamedError(f"{kind} {spec!r}: {module_name} has no source file")
    return found, root_of(module_name, found.origin)


def root_of(module_name: str, origin: str) -> Path:
    """The folder that the first part of a module's name is in."""
    path = Path(origin)
    depth = module_name.count(".") + (path.name == "__init__.py")
    return path.parents[depth]


def _closure(root: Path, module_name: str, kept: KeptModules | None) -> Iterator[Path]:
    """Yield the files of a module and of what it imports, directly or not, that lie in a folder."""
    top = module_name.partition(".")[0]
    installed = root == STANDARD or not INSTALLED.isdisjoint(root.parts)
    asked, seen = [module_name], {module_name}
    files = 0
    while asked and files < FILES_MAX:
        name = asked.pop()
        path = kept.file(name) if kept is not None else _file(root, name)
        if path is None:
            continue
        files += 1
        yield path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for other in _imported(path, package):
            first = other.partition(".")[0]
            ours = first in PACKAGES or (installed and first != top)
            if other not in seen and not ours:
                seen.add(other)
                asked.append(other)


def _file(root: Path, name: str) -> Path | None:
    path = root.joinpath(*name.split("."))
    for each in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if each.is_file():
            return each
    return None


def _imported(path: Path, package: str) -> list[str]:
    """Return the names of the modules that a source file may import, with the packages they are
    in."""
    try:
        return _imported_by(read_regular(path), package)
    except OSError:
        return []


@lru_cache(FILES_MAX)
def _imported_by(text: bytes, package: str) -> list[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base is not None:
                names.add(base)
                names.update(f"{base}.{each.name}".lstrip(".") for each in node.names)
    parts = [name.split(".") for name in sorted(names - {""})]
    return [".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)]


def _base(node: ast.ImportFrom, package: str) -> str | None:
    """The module that names are imported from; None if that is outside of the folder."""
    if not node.level:
        return node.module
    parts = package.split(".") if package else []
    up = node.level - 1
    if up > len(parts):
        return None
    return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])
