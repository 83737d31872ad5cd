"""Names for tasks that are given as functions; those of scripts and notebooks become modules.

A worker is a process of its own that imports the task. A function of an importable module is named
``module:function``. For a function of ``__main__`` the text of a module is made: its source, that
of the functions and classes that it uses, their imports, and the constants. Names that stand for
anything else, such as arrays, are refused, because a worker could not make them again.
"""

import ast
import builtins
import copy
import inspect
import subprocess
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.entry_point import pinned_name

MAIN = "__main__"

CONSTANT_CHARS_MAX = 20_000
"""The longest constant that is copied, as text; data does not belong into source."""

_MISSING = object()


def named(task: Callable[..., Any] | str) -> tuple[str, str]:
    """The task as ``module:function``, and the text of its module if it is a pinned one.

    Raises ConfigError if a worker could not import it, or its source is not complete.
    """
    if isinstance(task, str):
        _check_beside_script(f"task {task}", [task.partition(":")[0]])
        return task, ""
    name, module = getattr(task, "__qualname__", ""), getattr(task, "__module__", "")
    if not name or not module:
        raise ConfigError(f"task: want a function or 'module:function', not {task!r:.80}")
    if name.endswith("<lambda>"):
        raise ConfigError("task: is a lambda, which has no name to import; define it with def")
    if not name.isidentifier():
        raise ConfigError(f"task {name}: is made inside of a function; define it at top level")
    if module == MAIN:
        text = module_text(task)
        return f"{pinned_name(text)}:{name}", text
    top = sys.modules[module.partition(".")[0]]
    here = [*getattr(top, "__path__", ())] or [getattr(top, "__file__", None) or ""]
    _check_found(f"task {module}:{name}", top.__name__, here)
    return f"{module}:{name}", ""


def _check_found(said: str, module: str, here: Sequence[str]) -> None:
    """Refuse a top-level module that workers would not find, or find elsewhere."""
    if not {*map(_real, here)} & {*map(_real, _found_by_worker(module))}:
        start = Path(here[0]).parent
        raise ConfigError(
            f"{said}: workers import modules from the current folder and from installed packages, "
            f"not {module} from {start}; start in {start}, or install it"
        )


def _check_beside_script(said: str, modules: Iterable[str]) -> None:
    """Refuse modules that this process finds only because they lie beside its script."""
    beside = Path(sys.path[0]).resolve()
    if not beside.is_dir() or beside == Path.cwd().resolve() or sys.flags.safe_path:
        return
    for top in dict.fromkeys(module.partition(".")[0] for module in modules):
        found = PathFinder.find_spec(top, [str(beside)])
        if found is not None and found.origin is not None:
            _check_found(said, top, [*(found.submodule_search_locations or [found.origin])])


def _real(path: str) -> str:
    return str(Path(path).resolve())


FIND = """
import importlib.util, os, sys
sys.path.insert(0, os.getcwd())
spec = importlib.util.find_spec(sys.argv[1])
if spec: print(*(spec.submodule_search_locations or [spec.origin]), sep="\\0", end="")
"""


def _found_by_worker(module: str) -> list[str]:
    """Where a worker finds a top-level module: its file, or its folders. This process may have
    other places on its list, such as the folder of the script."""
    asked = [sys.executable, "-P", "-c", FIND, module]
    said = subprocess.run(asked, capture_output=True, text=True, check=True)  # noqa: S603, our own interpreter
    return said.stdout.split("\0") if said.stdout else []


def module_text(task: Callable[..., Any]) -> str:
    namespace = getattr(inspect.unwrap(task), "__globals__", None) or vars(sys.modules[MAIN])
    collected = _Collected(task.__qualname__, namespace)
    collected.define(task)
    _check_beside_script(f"task {task.__qualname__}", collected.imported())
    return collected.text()


class _Collected:
    def __init__(self, task: str, namespace: Mapping[str, Any]) -> None:
        self._task = task
        self._namespace = namespace
        self._imports: list[str] = []
        self._constants: list[str] = []
        self._definitions: list[str] = []
        self._seen: set[str] = set()

    def imported(self) -> list[str]:
        return [line.split()[1] for line in self._imports]

    def text(self) -> str:
        """The module's text; it names no place, so that it is the same everywhere."""
        head = f'"""The task {self._task}, taken from a script or a notebook by ddloco.Job."""'
        imports = ["from __future__ import annotations", "", *self._imports]
        parts = [head, "\n".join(imports), "\n".join(self._constants), *self._definitions]
        return "\n\n".join(part for part in parts if part) + "\n"

    def define(self, what: Any) -> None:
        """Add the source of a function or class, after all that it uses."""
        self._seen.add(what.__qualname__)
        source, node = self._source_of(what)
        bare = _without_annotations(node)
        needed = _globals_of(ast.unparse(bare))
        annotated = _globals_of(source) - needed
        for name in sorted(needed):
            self._add(name, node, what.__qualname__)
        for name in sorted(annotated):
            self._add(name, node, what.__qualname__, required=False)
        self._definitions.append(source)

    def _source_of(self, what: Any) -> tuple[str, ast.stmt]:
        name = what.__qualname__
        try:
            found = textwrap.dedent(inspect.getsource(inspect.unwrap(what)))
            texts = [found]
        except (OSError, TypeError):
            texts = [*self._cells()]
        for text in reversed(texts):
            for node in _statements(text):
                if getattr(node, "name", "") == name:
                    return _segment(text, node), node
        raise ConfigError(
            f"task {self._task}: the source of {name} cannot be had; put it into a module file"
        )

    def _cells(self) -> Iterator[str]:
        """The source of a notebook's cells, oldest first; of a script, its file."""
        cells = self._namespace.get("In")
        if isinstance(cells, list):
            yield from (cell for cell in cells if isinstance(cell, str))
        file = self._namespace.get("__file__")
        if isinstance(file, str) and Path(file).is_file():
            yield Path(file).read_text()

    def _add(self, name: str, node: ast.stmt, user: str, *, required: bool = True) -> None:
        value = self._namespace.get(name, _MISSING)
        if name in self._seen or name.startswith("__"):
            return
        if value is _MISSING and (hasattr(builtins, name) or not required):
            return
        if value is _MISSING:
            raise ConfigError(f"task {self._task}: {user} uses {name}, which is not defined")
        if isinstance(value, types.ModuleType):
            self._seen.add(name)
            self._import_module(name, value.__name__)
            self._import_parts(name, value.__name__, node)
            return
        if self._is_own(name, value):
            self.define(value)
            return
        line = self._import_of(name, value)
        if line is not None:
            self._seen.add(name)
            self._imports.append(line)
            return
        said = repr(value)
        if _is_literal(value, said):
            self._seen.add(name)
            self._constants.append(f"{name} = {said}")
            return
        if required:
            kind = type(value).__name__
            raise ConfigError(
                f"task {self._task}: {user} uses {name}, whose value ({kind}) is not in its "
                f"source; make it inside of a function, or put the task into a module file"
            )

    def _is_own(self, name: str, value: Any) -> bool:
        own = getattr(value, "__module__", "") == MAIN
        return own and getattr(value, "__qualname__", "") == name

    def _import_module(self, name: str, module: str) -> None:
        if name == module:
            self._imports.append(f"import {module}")
        elif module.endswith(f".{name}"):
            self._imports.append(f"from {module.rpartition('.')[0]} import {name}")
        else:
            self._imports.append(f"import {module} as {name}")

    def _import_parts(self, name: str, module: str, node: ast.stmt) -> None:
        """Import the submodules that are used as attributes, such as ``jax.numpy``."""
        for each in ast.walk(node):
            dotted = ast.unparse(each) if isinstance(each, ast.Attribute) else ""
            parts = dotted.split(".")
            if parts[0] != name:
                continue
            for n in range(2, len(parts) + 1):
                part = ".".join([module, *parts[1:n]])
                line = f"import {part}"
                if part in sys.modules and name == module and line not in self._imports:
                    self._imports.append(line)

    def _import_of(self, name: str, value: Any) -> str | None:
        """The import statement that gives this value this name; None if there is none."""
        module, its = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if isinstance(module, str) and isinstance(its, str) and module != MAIN:
            found = getattr(sys.modules.get(module), its, _MISSING)
            if found is value:
                return f"from {module} import {its}" + (f" as {name}" if its != name else "")
        for text in self._cells():
            for node in _statements(text):
                if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
                    continue
                for alias in node.names:
                    found = getattr(sys.modules.get(node.module), alias.name, _MISSING)
                    if (alias.asname or alias.name) == name and found is value:
                        return f"from {node.module} import {alias.name} as {name}"
        return None


def _statements(text: str) -> list[ast.stmt]:
    """The statements of a text; none if it is no Python, such as a cell with a shell command."""
    try:
        return ast.parse(text).body
    except SyntaxError:
        return []


def _segment(text: str, node: ast.stmt) -> str:
    """The source of a definition, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(each.lineno for each in decorators)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _globals_of(source: str) -> set[str]:
    """The global names that a source uses and does not define."""
    top = symtable.symtable(source, MAIN, "exec")
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            is_global = table is top or symbol.is_global()
            if is_global and symbol.is_referenced():
                used.add(symbol.get_name())
    return used - {each.get_name() for each in top.get_symbols() if each.is_assigned()}


class _Bare(ast.NodeTransformer):
    """Removes annotations, which the module does not evaluate."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """A plain assignment; nothing without a value."""
        if node.value is None:
            return ast.Pass()
        return ast.Assign([node.target], self.visit(node.value), lineno=node.lineno)


def _without_annotations(node: ast.stmt) -> ast.AST:
    return ast.fix_missing_locations(_Bare().visit(copy.deepcopy(node)))


def _is_literal(value: Any, said: str) -> bool:
    if len(said) > CONSTANT_CHARS_MAX:
        return False
    try:
        again = ast.literal_eval(said)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(again) is type(value) and repr(again) == said and bool(again == value)
