"""House rules, checked on the source: machines stay pure, functions stay short, tests say why."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest


def words(text):
    """The words of a text."""
    return text.split()


ROOT = Path(__file__).parent.parent
ROOMS = ("ddloco", "transport", "clocks", "snapshot", "replay")
FOLDERS = {*ROOMS, "tests", "examples", "docs"}
MADE = {"runs", "dist", "build", "site", "__pycache__"}
"""Folders that git ignores: what running and building leave behind."""

PURE_FOLDERS = ("ddloco/stage/actors", "ddloco/machines", "ddloco/job/protocol")
PURE_FILES = words("""
clocks/vector_clock clocks/actor_clock clocks/causality clocks/sequence
transport/link transport/link_state transport/flow_control transport/refcounts transport/message
transport/events transport/effects transport/sending transport/timer
snapshot/record snapshot/channel_recorder snapshot/coordinator snapshot/participant replay/player
""")

COMPILED = {"ddloco/stage/actors/work_handles.py": ["calls eval()"]}
"""What is made of the names of the fields of a class, when it is first used."""

FUNCTION_LINES_MAX = 60

WHOLE_JOB_TESTS = {
    *("tests/hosts", "tests/ordinary", "tests/processes", "tests/release", "tests/simulation"),
    "tests/tapes",
}
TESTS_OF_SEVERAL = {
    "tests/bench/test_page.py",
    "tests/bench/test_quick.py",
    "tests/test_tidy.py",
    "tests/test_docs.py",
    "tests/test_readme.py",
    "tests/examples/test_explain_notebook.py",
    "tests/examples/test_models.py",
    "tests/test_wheel.py",
    "tests/transport/test_memory.py",
    "tests/ddloco/test_bad_input_table.py",
    "tests/ddloco/test_cancellations.py",
    "tests/ddloco/test_fig2.py",
    "tests/ddloco/test_machines_stateful.py",
}
"""Tests that mirror no single source file."""

LEFTOVERS = ("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")

MODULES_BANNED = set(
    words("""
time random uuid secrets datetime threading multiprocessing concurrent subprocess socket
select signal asyncio os io sys tempfile shutil pathlib glob trio zmq logging structlog
""")
)
CALLS_BANNED = {"open", "print", "input", "id", "hash", "exec", "eval", "globals", "vars"}
METHODS_BANNED = set(
    words("""
open read_text write_text read_bytes write_bytes mkdir unlink touch iterdir now utcnow today
default_rng getenv
""")
)
SETS = {"set", "frozenset", "Set", "AbstractSet", "MutableSet"}
ORDERED_BY = set(
    words("""
list tuple iter next enumerate zip map filter reversed dict deque join
""")
)
"""Calls of these with a set depend on its order; sorted, len, any, sum and min do not."""


def source_files(*folders):
    """The Python files of some folders, in order."""
    return sorted(
        path
        for each in folders
        for path in (ROOT / each).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def short(path):
    """A path as people say it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path):
    """A file of the source, parsed once for all checks."""
    return ast.parse(path.read_text())


ALL = (*ROOMS, "tests", "examples")


def wrong_in(files, check):
    """What a check finds in files, by file."""
    found = {short(path): check(path) for path in files}
    return {path: each for path, each in found.items() if each}


class Purity(ast.NodeVisitor):
    """Finds what a machine must not do."""

    def __init__(self, tree):
        self.offences = []
        self._hashing = False
        self._sets = {name for node in ast.walk(tree) for name, of_set in named(node) if of_set}
        self.visit(tree)

    def _say(self, node, what):
        self.offences.append(f"line {node.lineno}: {what}")

    def visit_Import(self, node):
        for alias in node.names:
            self._check_module(node, alias.name)

    def visit_ImportFrom(self, node):
        self._check_module(node, node.module or "")

    def _check_module(self, node, module):
        if module.partition(".")[0] in MODULES_BANNED:
            self._say(node, f"imports {module}")
        if module.startswith("numpy.random"):
            self._say(node, f"imports {module}")

    def visit_AsyncFunctionDef(self, node):
        self._say(node, "async def")

    def visit_Await(self, node):
        self._say(node, "await")

    def visit_AsyncFor(self, node):
        self._say(node, "async for")

    def visit_AsyncWith(self, node):
        self._say(node, "async with")

    def visit_FunctionDef(self, node):
        before, self._hashing = self._hashing, node.name == "__hash__"
        self.generic_visit(node)
        self._hashing = before

    def visit_Attribute(self, node):
        if node.attr in {"environ", "random"}:
            self._say(node, f"uses .{node.attr}")
        self.generic_visit(node)

    def visit_Call(self, node):
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        allowed = name == "hash" and self._hashing
        if isinstance(function, ast.Name) and name in CALLS_BANNED and not allowed:
            self._say(node, f"calls {name}()")
        if isinstance(function, ast.Attribute) and name in METHODS_BANNED:
            self._say(node, f"calls .{name}()")
        if isinstance(function, ast.Attribute) and name == "pop" and not node.args:
            self._check_order(function.value)
        if name in ORDERED_BY:
            for argument in node.args:
                self._check_order(argument)
        self.generic_visit(node)

    def visit_For(self, node):
        self._check_order(node.iter)
        self.generic_visit(node)

    def visit_comprehension(self, node):
        self._check_order(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node):
        self._check_order(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node):
        if any(isinstance(target, ast.Tuple | ast.List) for target in node.targets):
            self._check_order(node.value)
        self.generic_visit(node)

    def _check_order(self, node):
        if is_set(node, self._sets):
            self._say(node, f"takes the order of a set: {ast.unparse(node)}")


def named(node):
    """The names and attributes that a node binds, each with whether it binds it to a set."""
    match node:
        case ast.AnnAssign(target=target, annotation=annotation):
            return [(name_of(target), is_set_annotation(annotation))]
        case ast.arg(arg=name, annotation=annotation) if annotation is not None:
            return [(name, is_set_annotation(annotation))]
        case ast.Assign(targets=targets, value=value):
            return [(name_of(target), is_set(value, set())) for target in targets]
        case ast.NamedExpr(target=target, value=value):
            return [(name_of(target), is_set(value, set()))]
        case _:
            return []


def name_of(node):
    """``x`` and ``self.x`` alike by their last part."""
    return getattr(node, "id", None) or getattr(node, "attr", None) or ""


def is_set_annotation(node):
    """``set[str]``, ``frozenset``, ``Set[int] | None``."""
    return any(name_of(each) in SETS for each in ast.walk(node)) and "dict" not in ast.unparse(node)


def is_set(node, names):
    """Whether an expression is a set, as far as can be seen."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name)):
            return name in SETS
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in {"union", "intersection", "difference", "symmetric_difference"}
        case ast.BinOp(
            left=left, right=right, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()
        ):
            return is_set(left, names) or is_set(right, names)
        case ast.IfExp(body=body, orelse=other):
            return is_set(body, names) or is_set(other, names)
        case ast.Name() | ast.Attribute():
            return name_of(node) in names
        case _:
            return False


def offences(tree):
    """What in a source a machine must not do."""
    return Purity(tree).offences


def test_machines_are_pure():
    """No machine awaits, reads a clock, rolls dice, opens, prints, or takes a set's order."""
    files = [*source_files(*PURE_FOLDERS), *(ROOT / f"{each}.py" for each in PURE_FILES)]
    found = wrong_in(files, lambda path: offences(tree_of(path)))
    said = {path: [each.partition(": ")[2] for each in lines] for path, lines in found.items()}
    assert said == COMPILED, found


@pytest.mark.parametrize(
    "planted",
    [
        "import time",
        "from time import monotonic",
        "import random",
        "import numpy.random",
        "x = np.random.rand()",
        "x = numpy.default_rng(0)",
        "import uuid",
        "from secrets import token_hex",
        "from datetime import datetime",
        "x = datetime.now()",
        "import threading",
        "from concurrent.futures import Future",
        "import subprocess",
        "import socket",
        "import asyncio",
        "import trio",
        "from trio import sleep",
        "import zmq.green",
        "import logging",
        "from structlog import get_logger",
        "import os",
        "from os import environ",
        "x = os.environ['HOME']",
        "from pathlib import Path",
        "x = path.read_text()",
        "path.write_bytes(b'')",
        "open('x')",
        "with open('x') as file: pass",
        "print('x')",
        "x = id(object())",
        "x = sorted(y, key=lambda each: hash(each))",
        "def order(x): return hash(x)",
        "async def f(): pass",
        "def f():\n async def g(): await h()",
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "for x in {z for z in y}: pass",
        "x = [y for y in frozenset(z)]",
        "x = list({1, 2})",
        "x = tuple(set(y))",
        "x = ''.join({'a', 'b'})",
        "x = dict.fromkeys(y)\nfor z in x.keys() - {1}: pass",
        "x: set[str] = y\nfor z in x: pass",
        "def f(x: frozenset[int]): return list(x)",
        "def f(x: 'int', y: set | None): return [*y]",
        "class A:\n def f(self):\n  self._x: set[int] = set()\n  return [y for y in self._x]",
        "x = set()\nfor y in enumerate(x): pass",
        "x = {1}\ny, z = x",
        "x = {1}\ny = x.pop()",
        "x = set(y) | z\nw = list(x)",
        "x = next(iter({1, 2}))",
    ],
)
def test_what_is_banned_is_found(planted):
    """Each ban catches a snippet that breaks it."""
    assert offences(ast.parse(planted))


@pytest.mark.parametrize(
    "innocent",
    [
        "x = sorted({*a, *b})",
        "x = len({1, 2})",
        "x = 1 in {1, 2}",
        "x = {1} <= set(y)",
        "for x in sorted(set(y)): pass",
        "x: dict[str, set[int]] = {}\nfor y in x: pass",
        "for x in {1: 2}: pass",
        "class A:\n def __hash__(self): return hash(self.x)",
        "x = job.id",
        "x = queue.pop(0)",
        "x = any(y in z for y in [1])",
    ],
)
def test_what_is_fine_is_let_be(innocent):
    """A set whose order does not matter is no offence."""
    assert [] == offences(ast.parse(innocent))


OPENED_ELSEWHERE = {
    # What comes with the package.
    "ddloco/cli/docs.py": {".open", ".read_text"},
    "ddloco/cli/examples.py": {".read_bytes", ".read_text"},
    "ddloco/debugger/report.py": {".read_text"},
    "ddloco/stage/process/code_version.py": {".read_bytes"},
    # What the kernel tells.
    "ddloco/cli/doctor.py": {".read_text"},
    "ddloco/stage/nodes/lease.py": {".read_text"},
    "ddloco/stage/process/memory.py": {".read_text"},
    "ddloco/workers/devices.py": {".read_text"},
    "ddloco/workers/fork_server.py": {".read_text", "open"},  # And pipes that it was given.
    "transport/shared_payloads.py": {"os.open"},
    # A device that takes everything.
    "ddloco/cli/parser.py": {"os.open"},
    "ddloco/stage/process/terminal.py": {"os.open"},
    "ddloco/workers/forking.py": {"open"},
    "ddloco/workers/group.py": {"os.open"},
    # A file of this process's own, in a folder that it has just made.
    "ddloco/api/model_folder.py": {".write_bytes", ".write_text"},
    "ddloco/workers/breakpoints.py": {".write_bytes", "FileIO"},
    # A file that the user names, for this once.
    "ddloco/api/task_source.py": {".read_text"},
    "ddloco/simulation/bandwidth/table.py": {".write_text"},
    # New files, links refused, with a mode or at an offset.
    "ddloco/stage/files/keys.py": {"os.open"},
    "ddloco/stage/files/trust.py": {"os.open"},
    "ddloco/stage/tapes/receiver.py": {"os.open"},
    "replay/tape.py": {"os.open"},
    "snapshot/local_storage.py": {"os.open"},
}
"""Who opens files but by ``clocks/files.py``, and by which calls."""

FILE_CALLS = {"read_text", "read_bytes", "write_text", "write_bytes", "open"}


def opened(tree):
    """The calls that open a file that may be there already: a link, a FIFO, somebody else's. A
    method of that name with arguments of another kind is one of a store or a place."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        given = [ast.unparse(each) for each in node.args]
        exclusive = any(each.startswith(("'x", "'+x")) for each in given)
        match node.func:
            case ast.Name("open" | "FileIO" as name) if not exclusive:
                found.add(name)
            case ast.Attribute(ast.Name("os"), "open"):
                found.add("os.open")
            case ast.Attribute(
                ast.Attribute(attr="_sink" | "_store") | ast.Name("self" | "store"), _
            ):
                pass
            case ast.Attribute(_, "open") if given and not given[0].startswith(("'r", "'w", "'a")):
                pass  # Of a place, or exclusive.
            case ast.Attribute(_, name) if name in FILE_CALLS:
                found.add(f".{name}")
            case _:
                pass
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_files_are_opened_through_the_doors(room):
    """A planted link, a FIFO and a torn file are each thought of once, in ``clocks/files.py``."""
    files = [path for path in source_files(room) if short(path) != "clocks/files.py"]

    beside = {
        short(path): more
        for path in files
        if (more := opened(tree_of(path)) - OPENED_ELSEWHERE.get(short(path), set()))
    }
    gone = {
        path: each
        for path, each in OPENED_ELSEWHERE.items()
        if path.startswith(f"{room}/") and each - opened(tree_of(ROOT / path))
    }

    assert not beside, "use open_regular, read_text, replace_file or open_to_append of clocks"
    assert not gone, "no longer opened there; take it out of OPENED_ELSEWHERE"


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("path.read_text()", {".read_text"}),
        ("(folder / name).write_bytes(data)", {".write_bytes"}),
        ("path.open()", {".open"}),
        ("path.open('ab', buffering=0)", {".open"}),
        ("open(path, 'rb')", {"open"}),
        ("os.open(path, flags)", {"os.open"}),
        ("FileIO(path)", {"FileIO"}),
        ("path.open('xb'); read_text(path); place.open(name); self._store.read_bytes(d)", set()),
    ],
)
def test_opening_beside_the_doors_is_found(planted, found):
    """And exclusive creation, the doors themselves, places and stores are let be."""
    assert opened(ast.parse(planted)) == found


@pytest.mark.parametrize("room", ROOMS)
def test_files_say_what_they_are(room):
    """A docstring for the file and for every name that users import; no function is too long."""
    files = source_files(room)
    assert len(files) > 5
    assert {} == wrong_in(files, lambda path: [] if described(tree_of(path)) else ["no docstring"])
    surface = surfaces()
    assert {} == wrong_in(files, lambda path: undocumented(tree_of(path), surface))
    assert {} == wrong_in(files, lambda path: long_functions(tree_of(path)))


def described(tree):
    """Whether a module has a docstring, unless it is empty."""
    return not tree.body or ast.get_docstring(tree) is not None


def surfaces():
    """The names that users import: those that a room, the stage or ``ddloco`` itself exports.

    Elsewhere a docstring says what a name and its types do not, or is not there.
    """
    inits = [*ROOMS, "ddloco/stage", "ddloco/ray"]
    trees = [tree_of(ROOT / room / "__init__.py") for room in inits]
    imports = [
        node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    ]
    return {alias.name for node in imports for alias in node.names}


def undocumented(tree, surface):
    """Classes and functions of a surface, and public methods of its classes, without a
    docstring."""
    missing = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("_") or node.name not in surface:
                continue
            if not ast.get_docstring(node):
                missing.append(node.name)
            if isinstance(node, ast.ClassDef):
                own = {method.name for method in node.body if hasattr(method, "name")}
                missing += [f"{node.name}.{name}" for name in undocumented(node, own)]
    return missing


def long_functions(tree):
    """Functions of more lines than fit on a screen."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 >= FUNCTION_LINES_MAX
    ]


def test_docstrings_and_lengths_are_measured():
    """The two checks above find what they look for."""
    code = "def f(): pass\nclass A:\n def g(self): pass\n def _h(self): pass\ndef b(): pass"
    assert ["f", "A", "A.g"] == undocumented(ast.parse(code), {"f", "A"})
    assert {"UserActor", "Recorder", "VectorClock", "Store", "Run"} <= surfaces()
    assert "JobExecutor" not in surfaces()
    assert ["f"] == long_functions(ast.parse("def f():\n" + " x = 1\n" * 59 + "def g(): pass"))


@pytest.mark.parametrize("room", ALL)
def test_nothing_is_left_over(room):
    """No note to oneself stays in the source."""

    def left(path):
        source = path.read_text()
        return [word for word in LEFTOVERS if word in source]

    assert {} == wrong_in(source_files(room), left)


LINES = {
    "clocks": 780,
    "ddloco": 140,
    "ddloco/api": 1980,
    "ddloco/cli": 4080,
    "ddloco/debugger": 8980,
    "ddloco/engines": 900,
    "ddloco/job": 3380,
    "ddloco/machines": 8720,
    "ddloco/monitoring": 2000,
    "ddloco/ray": 400,
    "ddloco/replayer": 3280,
    "ddloco/roles": 1200,
    "ddloco/simulation": 2600,
    "ddloco/stage": 12020,
    "ddloco/workers": 8440,
    "examples": 2240,
    "replay": 1280,
    "snapshot": 2900,
    "transport": 4320,
}
"""Lines of each room, rounded up to twenty. A number falls with its room. It rises only in a commit
that says what the lines are for, and what went instead: each capability that brought its own form
of a mechanism made this house larger than it is good."""

ROOM_SLACK = 60
"""Lines by which a number may be above its room, so that not every change touches the table."""


def room_of(path):
    """The room of a file: a package, or a folder of ``ddloco``."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "ddloco" and len(parts) > 2 else parts[0]


def test_rooms_grow_by_decision_only():
    """The table of lines is that of the tree."""
    found = Counter()
    for path in source_files(*ROOMS, "examples"):
        found[room_of(path)] += path.read_text().count("\n")
    wrong = {
        room: f"has {lines} lines, the table says {LINES.get(room)}"
        for room, lines in found.items()
        if not 0 <= LINES.get(room, 0) - lines <= ROOM_SLACK
    }
    assert {} == wrong
    assert set(LINES) == set(found)


def test_only_the_listed_folders():
    """The top level holds the five rooms, tests and examples, and what tools leave behind."""
    found = {
        path.name
        for path in ROOT.iterdir()
        if path.is_dir() and not path.name.startswith(".") and not path.name.endswith(".egg-info")
    }
    assert set() == found - FOLDERS - MADE


def test_ddloco_holds_folders_only():
    """Every file has its place in a folder, and every folder says its one idea in a sentence."""
    folder = ROOT / "ddloco"
    assert {"__init__.py", "__main__.py"} == {path.name for path in folder.glob("*.py")}
    packages = [path.parent for path in folder.rglob("*.py") if path.parent != folder]
    for package in sorted(set(packages)):
        said = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
        assert said.strip().endswith("."), package
        assert len(said.splitlines()) <= 3, package


def promises(tree):
    """Tests of a file that say no promise, and names of which there are two."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, functions)]
    tests = [node for node in nodes if node.name.startswith("test")]
    names = [node.name for node in tests]
    silent = [node.name for node in tests if not ast.get_docstring(node)]
    return [*silent, *(name for name in sorted(set(names)) if names.count(name) > 1)]


def test_every_test_says_its_promise():
    """Each test has a docstring that begins with a sentence; a second test of one name would hide
    the first."""
    files = source_files("tests")
    assert len(files) > 300
    assert {} == wrong_in(files, lambda path: promises(tree_of(path)))
    twice = 'def test_a(): "x"\ndef test_a(): "x"\ndef test_b(): pass'
    assert ["test_b", "test_a"] == promises(ast.parse(twice))


def mirrored(path):
    """Whether a test is where what it tests is, or is one of those that test several files."""
    folder = path.parent.relative_to(ROOT / "tests").as_posix()
    if short(path) in TESTS_OF_SEVERAL or short(path.parent) in WHOLE_JOB_TESTS:
        return True
    words = path.stem.removeprefix("test_").split("_")
    nouns = ["_".join(words[:n]) for n in range(1, len(words) + 1)]
    rooms = (ROOT / "tests" / folder, ROOT / folder)
    return any((room / f"{noun}.py").is_file() for noun in nouns for room in rooms)


def test_tests_mirror_the_tree():
    """``tests/ROOM/test_NOUN.py`` or ``test_NOUN_aspect.py`` tests ``ROOM/NOUN.py``; tests of what
    only tests use are beside it."""
    files = [path for path in source_files("tests") if path.name.startswith("test_")]
    assert [] == [short(path) for path in files if not mirrored(path)]
    assert not mirrored(ROOT / "tests" / "clocks" / "test_nothing.py")
