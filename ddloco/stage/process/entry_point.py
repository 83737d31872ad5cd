"""Entry points: functions that users name as ``module:function``, searched in the working directory
as Python does for a script, and then among the installed packages. That may hold modules with the
names of ddloco's packages: only the worker process puts it first on the import path, after ddloco's
code has imported all that it needs. A process of actors only reads the source file of a task."""

import hashlib
import importlib
import importlib.util
import inspect
import io
import re
import symtable
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from msgspec import Struct

from clocks import read_text
from ddloco.stage.files.near_miss import did_you_mean

PACKAGES = ("clocks", "ddloco", "replay", "snapshot", "transport")
"""The packages of this distribution; users may have modules with the same names."""


OPTIONS_CHARS_MAX = 200
"""Of the options of a call in an error line: a line is to be read at a glance."""

EITHER = inspect.Parameter.POSITIONAL_OR_KEYWORD

PINNED = re.compile(r"main_([0-9a-f]{16})")
"""The name of a pinned module, which contains the first digits of the SHA-256 of its text. Its text
was taken from a script or a notebook, and is in the run folder."""


class NamedError(ValueError):
    """An entry point cannot be used; the message is one line for the user."""


def called(kind: str, spec: str, options: Mapping[str, Any]) -> Any:
    """Import ``module:function`` and call it; ``NamedError`` names the module, the function or the
    option."""
    module_name, function_name = parted(kind, spec)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        said = in_one_line(error)
        raise NamedError(f"{kind} {spec!r}: cannot import {module_name}: {said}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [name for name, each in vars(module).items() if callable(each)]
        near = did_you_mean(function_name, known)
        raise NamedError(f"{kind} {spec!r}: {module_name} has no function {function_name}{near}")
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise NamedError(_misfit(kind, spec, function, options, error)) from error
    try:
        return function(**options)
    except Exception as error:
        said = f"{function_name} failed: {in_one_line(error)}{_with_options(options)}"
        raise NamedError(f"{kind} {spec!r}: {said}") from error


def _misfit(
    kind: str, spec: str, function: Any, options: Mapping[str, Any], error: TypeError
) -> str:
    """Why a function cannot be called with these options. The line begins with a task's option as
    it is in the job file, ``task.width``."""
    table = f"{kind}." if kind == "task" else ""
    parameters = inspect.signature(function).parameters.values()
    known = [each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, EITHER)]
    for name in options:
        if name not in known:
            takes = ", ".join(f"{table}{each}" for each in known) or "no options"
            line = f"{kind} {spec!r} takes no {name}; it takes {takes}"
            return f"{table}{name}: {line}" if table else line
    return f"{kind} {spec!r}: {error}"


def _with_options(options: Mapping[str, Any]) -> str:
    """The end of an error line: the options of the call, which may be what is wrong."""
    shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"; its options: {shown[:OPTIONS_CHARS_MAX]}" if options else ""


def pinned_name(text: str) -> str:
    return f"main_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def pinned_text(folder: Path, spec: str) -> str:
    """Return the text of an entry point's module in ``folder``, if it is a pinned module; empty if
    not. One whose text does not have the digest that the module is named after would be other code
    than the user asked for."""
    name = spec.partition(":")[0]
    path = folder / f"{name}.py"
    if PINNED.fullmatch(name) is None or not path.is_file():
        return ""
    text = read_text(path)
    return text if pinned_name(text) == name else ""


class KeptModules(Struct, frozen=True):
    """Modules that a run folder keeps, and that may be imported from there.

    Attributes:
        files: the SHA-256 of their texts, as they were checked, by path relative to the folder.
    """

    folder: str
    files: dict[str, bytes]

    def file(self, module: str) -> Path | None:
        path = module.replace(".", "/")
        for name in (f"{path}/__init__.py", f"{path}.py"):
            if name in self.files:
                return Path(self.folder, name)
        return None

    def digest_of(self, file: Path) -> bytes:
        return self.files[file.relative_to(self.folder).as_posix()]

    def is_package(self, module: str) -> bool:
        """Whether a module is a folder with modules."""
        return any(name.startswith(f"{module.replace('.', '/')}/") for name in self.files)


class _Checked(SourceFileLoader):
    """Compiles the source that was checked: a file with compiled code beside it may be anybody's,
    and so may the file itself by now."""

    def __init__(self, name: str, path: str, digest: bytes) -> None:
        super().__init__(name, path)
        self._digest = digest

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        # As it was read when it was checked: with each end of a line as a newline.
        text = io.TextIOWrapper(io.BytesIO(source), "utf-8", "replace").read()
        if hashlib.sha256(text.encode()).digest() != self._digest:
            raise ImportError(f"{path} has changed since it was checked", name=fullname, path=path)
        return self.source_to_code(source, path)


class KeptFinder(MetaPathFinder):
    """Finds the modules that a run folder keeps, unless any other finder finds their package. It is
    the first of all finders: of a package that it has found, it alone finds the modules."""

    def __init__(self, kept: KeptModules) -> None:
        self._kept = kept

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Find a module, unless its package was found elsewhere; ``ModuleNotFoundError`` for one
        beside modules that are kept, which is none of them."""
        del target
        folder = Path(self._kept.folder)
        if path is not None and not any(Path(each).is_relative_to(folder) for each in path):
            return None
        file, is_package = self._kept.file(fullname), self._kept.is_package(fullname)
        if file is None and not is_package:
            if path is None:
                return None
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        others = [each for each in sys.meta_path if each is not self]
        if path is None and any(each.find_spec(fullname, None) for each in others):
            return None
        places = [str(folder.joinpath(*fullname.split(".")))] if is_package else None
        if file is None:  # A folder without __init__.py.
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = places
            return spec
        loader = _Checked(fullname, str(file), self._kept.digest_of(file))
        return importlib.util.spec_from_file_location(
            fullname, file, loader=loader, submodule_search_locations=places
        )


def check_function(kind: str, spec: str) -> None:
    """Check, without importing it, that an entry point's module defines the function;
    ``NamedError`` if nothing in its source does. What cannot be told from the source is left to the
    process that imports it."""
    module_name, function_name = parted(kind, spec)
    found = found_from(Path.cwd(), module_name)
    if found is None or not found.has_location or not str(found.origin).endswith(".py"):
        return
    try:
        text = read_text(str(found.origin))
        top = symtable.symtable(text, module_name, "exec")
    except (OSError, SyntaxError, ValueError):
        return
    binding = [each for each in top.get_symbols() if _binds(each)]
    bound = [each.get_name() for each in binding]
    dynamic = "__getattr__" in bound or "import *" in text or "globals()" in text
    if function_name not in bound and not dynamic:
        own = [each.get_name() for each in binding if not each.is_imported()]
        near = did_you_mean(function_name, own)
        raise NamedError(f"{kind} {spec!r}: {module_name} has no function {function_name}{near}")


def _binds(symbol: symtable.Symbol) -> bool:
    """Whether a name gets a value at the top level of a module."""
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def found_from(folder: Path, module_name: str) -> ModuleSpec | None:
    """Find a module as if ``folder`` were first on the import path, without importing it."""
    top, *rest = module_name.split(".")
    searched = [str(folder)]
    found = PathFinder.find_spec(top, searched)
    if found is None or not found.has_location:  # A plain folder gives way to a package.
        installed = _installed(top)
        found, searched = (installed, sys.path) if installed else (found, searched)
    for part in rest:
        if found is None or found.submodule_search_locations is None:
            return None
        searched = _locations(found, searched)
        found = PathFinder.find_spec(part, searched)
    return found


def modules_here(like: str) -> list[str]:
    *packages, _ = like.split(".")
    folder, prefix = Path.cwd().joinpath(*packages), "".join(f"{each}." for each in packages)
    return [f"{prefix}{path.stem}" for path in sorted(folder.glob("*.py"))]


def _locations(found: ModuleSpec, searched: Sequence[str]) -> list[str]:
    """Return where the modules of a package are. The spec of a plain folder cannot tell: it looks
    again, in the parent package as imported."""
    if found.has_location:
        return list(found.submodule_search_locations or ())
    there = (Path(each) / found.name for each in searched)
    return [str(each) for each in there if each.is_dir()]


def _installed(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # Loaded, and without a spec: __main__.
        return None


def look_here_first(folder: Path) -> None:
    """Import from ``folder`` before anywhere else from now on, even modules with the name of one of
    ddloco's packages. The caller must have imported all of ddloco's modules that it needs."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    for package in PACKAGES:
        theirs = PathFinder.find_spec(package, [str(folder)])
        ours = sys.modules.get(package)
        if theirs is None or theirs.origin is None or ours is None:
            continue
        if theirs.origin == ours.__file__:
            continue  # The folder is a checkout of ddloco itself.
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]


def parted(kind: str, spec: str) -> tuple[str, str]:
    """Split an entry point into module and function; ``NamedError`` if it does not have that
    form."""
    module_name, colon, function_name = spec.partition(":")
    dotted = all(part.isidentifier() for part in module_name.split("."))
    if not (colon and dotted and function_name.isidentifier()):
        raise NamedError(f"{kind} {spec[:200]!r} is not of the form module:function")
    return module_name, function_name


def in_one_line(error: BaseException) -> str:
    """An exception's type and message on one line; user code may raise messages of many lines."""
    return " ".join(f"{type(error).__name__}: {error}".split())
