"""What people name as ``module:function``: imported, called with options, told apart by source.

It is looked for in the folder in which the command was given, as Python does for a script, and then
where installed packages are. That folder may hold a module with the name of one of our packages.
Only the worker process puts the folder first on its path; it then takes its own packages of such
names out of the table of modules, so that user code imports the user's, and our code, which has
imported all that it needs, keeps its own. A process of actors imports no task at all: it looks for
the task's source file, and runs nothing of it.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from clocks import read_regular

PACKAGES = ("clocks", "ddloco", "replay", "snapshot", "transport")
"""The packages of this distribution: names that are common enough for a user's own module."""


class NamedError(ValueError):
    """It cannot be used; the message is one line for the person who named it."""


def called(kind: str, spec: str, options: Mapping[str, Any]) -> Any:
    """Import ``module:function`` and call it.

    Args:
        kind: what it makes, for messages.
        spec: where it is.
        options: what it is called with.

    Raises:
        NamedError: with one line that names the module, the function or the option.
    """
    module_name, function_name = parted(kind, spec)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        said = in_one_line(error)
        raise NamedError(f"{kind} {spec!r}: cannot import {module_name}: {said}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise NamedError(f"{kind} {spec!r}: {module_name} has no function {function_name}")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        said = f"{function_name} does not take these options: {error}"
        raise NamedError(f"{kind} {spec!r}: {said}") from error
    try:
        return function(**options)
    except Exception as error:
        said = in_one_line(error)
        raise NamedError(f"{kind} {spec!r}: {function_name} failed: {said}") from error


def source_digest(kind: str, spec: str) -> str:
    """The SHA-256 in hex of the source file of the module.

    Only that one file is covered: what it imports, and the data it reads, are not.

    Raises:
        NamedError: there is no such module, or it has no source file.
    """
    module_name, _ = parted(kind, spec)
    found = found_from(Path.cwd(), module_name)
    if found is None:
        raise NamedError(f"{kind} {spec!r}: there is no module {module_name}, here or installed")
    if found.origin is None or not found.has_location:
        raise NamedError(f"{kind} {spec!r}: {module_name} has no source file")
    try:
        return hashlib.sha256(read_regular(found.origin)).hexdigest()
    except OSError as error:
        said = f"{found.origin} cannot be read: {error.strerror}"
        raise NamedError(f"{kind} {spec!r}: {said}") from None


def found_from(folder: Path, module_name: str) -> ModuleSpec | None:
    """Where a module would be imported from if ``folder`` came first; nothing is imported."""
    top, *rest = module_name.split(".")
    found = PathFinder.find_spec(top, [str(folder)])
    if found is None or not found.has_location:  # A plain folder gives way to a package.
        found = _installed(top) or found
    name = top
    for part in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        found = PathFinder.find_spec(name, list(found.submodule_search_locations))
    return found


def _installed(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # Loaded, and without a spec: __main__.
        return None


def look_here_first(folder: Path) -> None:
    """From now on this process imports from ``folder`` before anywhere else, also what has the name
    of one of our packages. Whoever calls this has imported all of ours that it will need."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    for package in PACKAGES:
        theirs = PathFinder.find_spec(package, [str(folder)])
        ours = sys.modules.get(package)
        if theirs is None or theirs.origin is None or ours is None:
            continue
        if theirs.origin == ours.__file__:
            continue  # The command was given in a checkout of this program.
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


def parted(kind: str, spec: str) -> tuple[str, str]:
    """Module and function.

    Raises:
        NamedError: it has not that form.
    """
    module_name, colon, function_name = spec.partition(":")
    dotted = all(part.isidentifier() for part in module_name.split("."))
    if not (colon and dotted and function_name.isidentifier()):
        raise NamedError(f"{kind} {spec[:200]!r} is not of the form module:function")
    return module_name, function_name


def in_one_line(error: BaseException) -> str:
    """What an exception says: a user's may speak over many lines, the promise is one."""
    return " ".join(f"{type(error).__name__}: {error}".split())
