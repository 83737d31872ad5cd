"""Make the pages of the documentation that come from the source: the job file, the commands, and
the lines that the guide through the algorithm names.

``make reference`` writes them again; a test compares them with the source.
"""

import argparse
import ast
import inspect
import os
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from ddloco.cli.parser import parser
from ddloco.job.config import Job, Kubernetes, Launch, Ray, SkyPilot, Slurm
from ddloco.stage.files.faults import Fault, Storm

COLUMNS = "100"
"""Width of the commands' help."""

CONFIGURATION = """\
# The job file

A job file is TOML. Every key has a default, except `job.task`. `--set section.key=value` on the
command line overrides a key. A key that is unknown, of a wrong type or out of bounds is refused
with one line that names the file and the key. `RUN/job.toml` shows all values that a run used.

```toml
[job]
task = "examples.tiny_gpt:task"
learners = 3
steps = 600

[sync]
interval = 24

[learner.learner-2]
factor = 2.0
```
"""

TASK = """\
## `[task]`

Keyword arguments of the task's function. ddloco passes them on without looking at them.
"""

COMMANDS = """\
# Commands

At the end of this page you know what each command does, and its options. `ddloco COMMAND --help`
prints the same, with the usage in one line. The exit codes of all commands are
explained in [Operations](operations.md#exit-codes).
"""


def configuration() -> str:
    """Return the page about the job file."""
    pages = [CONFIGURATION]
    hints = typing.get_type_hints(Job, include_extras=True)
    for name in Job.__struct_fields__:
        table = hints[name]
        if name == "task":
            pages.append(TASK)
        elif name in {"learner", "relay"}:
            pages.append(_table(f"[{name}.NAME]", typing.get_args(table)[1]))
        else:
            pages.append(_table(f"[{name}]", table))
    pages += _launch()
    pages += [_table("[[chaos.fault]]", Fault), _table("[[chaos.storm]]", Storm)]
    return "\n".join(pages)


def _launch() -> list[str]:
    """Return the sections of ``[launch]``, which is no part of the job."""
    about = inspect.cleandoc(Launch.__doc__ or "").partition(": ")[2]
    head = f"## `[launch]`\n\n{_markdown(' '.join((about[:1].upper() + about[1:]).split()))}\n"
    tables = {"slurm": Slurm, "kubernetes": Kubernetes, "ray": Ray, "skypilot": SkyPilot}
    return [head, *(_table(f"[launch.{name}]", table) for name, table in tables.items())]


def _table(title: str, table: type[msgspec.Struct]) -> str:
    """Return one section: what the table is for, and a line for each key."""
    about, keys = described(table)
    lines = [f"## `{title}`", "", _markdown(about), ""]
    lines += ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    hints = typing.get_type_hints(table, include_extras=True)
    for each in msgspec.structs.fields(table):
        meaning = _markdown(keys[each.name]).replace("|", "\\|")
        lines.append(
            f"| `{each.name}` | {_type(hints[each.name])} | {_default(each)} | {meaning} |"
        )
    return "\n".join([*lines, ""])


def described(table: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """Return what a table's docstring says about it, and about each of its keys.

    Raises:
        KeyError: a key is not described.
    """
    said, _, attributes = inspect.cleandoc(table.__doc__ or "").partition("Attributes:")
    text = " ".join(said.split())
    about = re.sub(r"^``\[+[\w.]+\]+``: ", "", text)
    keys: dict[str, str] = {}
    last: list[str] = []
    for line in attributes.splitlines():
        found = re.match(r"^ {4}(\w[\w, ]*): (.*)", line)
        if found:
            last = found[1].split(", ")
            keys |= dict.fromkeys(last, found[2])
        elif line.strip():
            keys |= {name: f"{keys[name]} {line.strip()}" for name in last}
    missing = set(table.__struct_fields__) - set(keys)
    if missing:
        raise KeyError(f"{table.__name__}: no description of {', '.join(sorted(missing))}")
    return about[:1].upper() + about[1:], keys


def _markdown(text: str) -> str:
    return text.replace("``", "`")


def _type(hint: Any) -> str:
    """Return a type in words, with its bounds."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        unit = "keys" if typing.get_origin(arguments[0]) is dict else "characters"
        return ", ".join([_type(arguments[0]), *_bounds(arguments[1:], unit)])
    if origin is typing.Literal:
        return " or ".join(f'`"{each}"`' for each in arguments)
    if origin in (types.UnionType, typing.Union):
        return _type(next(each for each in arguments if each is not type(None)))
    if origin is dict:
        return "table"
    if origin is tuple:
        element = arguments[0]
        tables = isinstance(element, type) and issubclass(element, msgspec.Struct)
        return "tables, see below" if tables else f"list of: {_type(element)}"
    return {int: "integer", float: "number", str: "text", bool: "true or false"}[hint]


def _bounds(metas: tuple[Any, ...], unit: str) -> Iterator[str]:
    for meta in metas:
        for name, sign in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
            bound = getattr(meta, name)
            if bound is not None and bound < 2**62:
                yield f"{sign} {bound:,}" if isinstance(bound, int) else f"{sign} {bound:g}"
        if meta.max_length is not None:
            yield f"at most {meta.max_length} {unit}"


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return "empty"
    if field.default is msgspec.NODEFAULT:
        return "required"
    if field.default in (None, (), {}):
        return "none"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def commands() -> str:
    """Return the page about the commands."""
    top = parser()
    pages = [COMMANDS, *_section("ddloco", top, 2)]
    for name, command in _children(top):
        pages += _section(f"ddloco {name}", command, 2)
        for action, child in _children(command):
            pages += _section(f"ddloco {name} {action}", child, 3)
    return "\n".join(pages)


def _children(command: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in command._actions:
        if isinstance(action.choices, dict):  # The sub-commands, by name.
            yield from action.choices.items()


def _section(title: str, command: argparse.ArgumentParser, level: int) -> list[str]:
    with patch.dict(os.environ, {"COLUMNS": COLUMNS}):
        _usage, _, said = command.format_help().partition("\n\n")
    lines = [line for line in said.splitlines() if not line.strip().startswith("-h, --help ")]
    shown = re.sub(r"\noptions:\n(?=\n|$)", "", "\n".join(lines)).strip()
    return [f"{'#' * level} `{title}`", "", "```text", shown, "```", ""]


def reading() -> str:
    """Return the page that leads through the algorithm, with the lines of today.

    Raises:
        LookupError: a file has no definition of a name on the page.
    """
    root = Path(__file__).parents[1]

    def placed(said: re.Match[str]) -> str:
        name, path = said[1], said[2]
        return f"`{name}` (`{path}:{_line_of(root / path, name)}`)"

    page = (root / "docs" / "reading.md").read_text()
    return re.sub(r"`([\w.]+)` \(`([\w/]+\.py):\d+`\)", placed, page)


def _line_of(path: Path, name: str) -> int:
    """The line that defines a class, a function or a method."""
    nodes: list[ast.stmt] = ast.parse(path.read_text()).body
    found: ast.stmt | None = None
    for word in name.split("."):
        named = (each for each in nodes if getattr(each, "name", None) == word)
        found = next(named, None)
        if found is None:
            raise LookupError(f"docs/reading.md: {path} does not define {name}")
        nodes = getattr(found, "body", [])
    assert found is not None, "a name has a word"
    return found.lineno


PAGES = {"configuration.md": configuration, "commands.md": commands, "reading.md": reading}
"""What makes each page, by the name of its file."""


if __name__ == "__main__":
    for name, made in PAGES.items():
        (Path(__file__).parent / name).write_text(made())
