"""Calls in a user's source whose results are in no event and no argument: clocks, random numbers,
the environment, files, and the order of sets. They are found by reading the source; a call that is
named here may be harmless, and what a library does inside is not seen."""

import ast
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from clocks import read_text
from ddloco.replayer.recording import run_folder_of
from ddloco.stage.files.run_folder import JOB_FILE, SOURCE

CALLS: dict[str, str] = {
    "time": "a clock",
    "datetime.datetime.now": "a clock",
    "datetime.datetime.today": "a clock",
    "datetime.datetime.utcnow": "a clock",
    "datetime.date.today": "a clock",
    "random": "a random number",
    "secrets": "a random number",
    "uuid.uuid1": "a random number",
    "uuid.uuid4": "a random number",
    "os.urandom": "a random number",
    "numpy.random": "a random number",
    "os.environ": "the environment",
    "os.getenv": "the environment",
    "os.getpid": "the process",
    "id": "an address in memory",
    "os.stat": "a file",
    "os.path.getmtime": "a file",
    "os.path.getsize": "a file",
    "os.listdir": "the order of a folder",
    "os.scandir": "the order of a folder",
    "glob.glob": "the order of a folder",
    "glob.iglob": "the order of a folder",
    "open": "a file",
}
"""By name, of a module all of it, what such a call or a use of such a name depends on."""

FILES_MAX = 32

SEEDED = frozenset({
    "random.Random", "numpy.random.default_rng", "numpy.random.RandomState",
    "numpy.random.SeedSequence", "numpy.random.Philox", "numpy.random.PCG64",
    "numpy.random.PCG64DXSM", "numpy.random.SFC64", "numpy.random.MT19937",
})  # fmt: skip
"""What depends on its arguments alone, if it has any."""

HARMLESS = frozenset({"time.sleep", "numpy.random.Generator"})

ORDERED = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset"})
"""Calls to which the order of their argument makes no difference."""


BUILTINS = ORDERED | {"id", "open"}
"""Names that are known without an import."""


class Use(Struct, frozen=True):
    """A call, or a use of a name, at a line of a file, within a function; ``of`` is what it depends
    on."""

    file: str
    line: int
    function: str
    name: str
    of: str

    def __str__(self) -> str:
        where = f" in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}: {self.name}, {self.of}{where}"


def uses_in(sources: Mapping[str, str]) -> list[Use]:
    """Return such uses in source files, given by name; of a file that is no Python, none."""
    found: list[Use] = []
    for file, text in sources.items():
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        reader = _Reader(file)
        reader.visit(tree)
        found += reader.found
    return found


def sources_of(path: Path, *, decision: bool = False) -> dict[str, str]:
    """Return the user's source files of a run, by name: those that it keeps; of a program, which is
    imported for its replay, the file of its module. What makes a ``decision`` of a job is no code
    of the user's."""
    folder = run_folder_of(path)
    kept = [] if decision else sorted((folder / SOURCE).rglob("*.py"))[:FILES_MAX]
    files = {each.name: each for each in kept}
    try:
        spec = tomllib.loads(read_text(folder / JOB_FILE)).get("program", "")
        module = sys.modules.get(str(spec).partition(":")[0])
        file = getattr(module, "__file__", None)
        files |= {Path(file).name: Path(file)} if file else {}
        return {name: read_text(each) for name, each in files.items()}
    except (OSError, ValueError):
        return {}


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self._file = file
        self._known: dict[str, str] = {}
        """By the name that is used, the whole name of what was imported."""
        self._within: list[str] = []
        self.found: list[Use] = []

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            whole = each.name if each.asname else each.name.partition(".")[0]
            self._known[each.asname or whole] = whole

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for each in node.names:
            self._known[each.asname or each.name] = f"{node.module}.{each.name}"

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def _inside(self, node: ast.ClassDef | ast.FunctionDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name = self._name(node.func)
        if name in SEEDED:
            if not (node.args or node.keywords):
                self._note(node, f"{name}() without a seed", "a random number")
        elif name and name not in HARMLESS and (of := _depends(name)):
            self._note(node, f"{name}()", of)
        else:
            self.visit(node.func)
        if name not in ORDERED:
            for each in node.args:
                self._order(each)
        for each in (*node.args, *node.keywords):
            self.visit(each)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._name(node)
        if name and name == "os.environ":
            self._note(node, name, CALLS[name])
        else:
            self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._order(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp) -> None:
        for each in node.generators:
            self._order(each.iter)
        self.generic_visit(node)

    def _order(self, node: ast.expr) -> None:
        made = isinstance(node, ast.Call) and self._name(node.func) in {"set", "frozenset"}
        if made or isinstance(node, ast.Set | ast.SetComp):
            self._note(node, "the order of a set", "which strings have anew in each process")

    def _note(self, node: ast.expr, name: str, of: str) -> None:
        self.found.append(Use(self._file, node.lineno, ".".join(self._within), name, of))

    def _name(self, node: ast.expr) -> str:
        """The whole name of what is called, such as numpy.random.rand; empty if it is none."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        whole = self._known.get(node.id, node.id if not parts and node.id in BUILTINS else "")
        return ".".join([whole, *reversed(parts)]) if whole else ""


def _depends(name: str) -> str:
    return next((CALLS[each] for each in _prefixes(name) if each in CALLS), "")


def _prefixes(name: str) -> Iterator[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]
