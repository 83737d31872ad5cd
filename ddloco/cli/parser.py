"""The command line: the commands, their options, and the exit codes.

0: success. 1: the command ran and found a difference, a gap or a failed check. 2: the input was
invalid; one line names the file, field or byte and what would be valid. 75: the process left in
good order and should be started again. Large modules are imported inside the commands, so that
``--help`` is fast.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ddloco.cli.commands import COMMANDS, SHARED, Command
from ddloco.cli.help_text import EXAMPLES, GROUPS, OVERVIEW
from ddloco.stage.process.terminal import escaping, let_go, outlive_readers

MODULES = {
    "completion": ("completion",),
    "debug": ("bundle", "diff", "report", "story", "why"),
    "docs": ("docs",),
    "doctor": ("doctor",),
    "examples": ("init",),
    "experiment": ("experiment",),
    "keys": ("keys",),
    "launch": ("launch",),
    "observe": ("leave", "observe", "status", "stop"),
    "perform": ("perform",),
    "replay": ("replay",),
    "run": ("run",),
    "serve": ("learner", "relay", "syncer"),
    "simulate": ("simulate",),
    "snapshot": ("snapshot_export", "snapshot_list", "snapshot_take", "snapshot_verify"),
    "tape_export": ("tape_export",),
    "tape_show": ("tape_show",),
    "tape_verify": ("tape_verify",),
    "track": ("track",),
}
"""The functions of commands, by the module beside this one that has them."""


EMPTY = "is empty; name something, or leave it out"


class Parser(argparse.ArgumentParser):
    """A parser that says what a misspelled command, option or choice may have meant."""

    def error(self, message: str) -> NoReturn:
        from ddloco.stage.files.near_miss import did_you_mean  # noqa: PLC0415, so that --help is fast

        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice is not None:
            known = [each.strip(" '") for each in choice[2].split(",")]
            message += did_you_mean(choice[1], known)
        elif message.startswith("unrecognized arguments: "):
            unknown = message.partition(": ")[2].split()[0].partition("=")[0]
            options = self.options()
            elsewhere = "; other commands have it"
            message += elsewhere if unknown in options else did_you_mean(unknown, options)
        elif message.endswith(EMPTY):  # A value that is wrong, as others that need no usage.
            from ddloco.stage.nodes.exit_codes import BAD_INPUT  # noqa: PLC0415, as above

            self.exit(BAD_INPUT, f"ddloco: {message.removeprefix('argument ')}\n")
        super().error(message)

    def hand_down(self, questions: "Orders") -> None:
        """Let its options be given before a question as well: one that is not given after it leaves
        what was."""
        own = {option for action in self._actions for option in action.option_strings}
        for action in (each for sub in questions.choices.values() for each in sub.arguments()):
            if own & set(action.option_strings) and action.dest != "help":
                action.default = argparse.SUPPRESS

    def options(self) -> list[str]:
        """All options, those of commands included."""
        return [option for action in self.arguments() for option in action.option_strings]

    def arguments(self) -> Iterator[argparse.Action]:
        """All options and other arguments, those of commands included."""
        for action in self._actions:
            yield action
            if isinstance(action.choices, dict):
                for sub in action.choices.values():
                    yield from sub.arguments()


def parser() -> Parser:
    top = _made(Parser, "", OVERVIEW, EXAMPLES, prog="ddloco")
    top.add_argument("--version", action="store_true", help="print the version and leave")
    orders = top.add_subparsers(dest="command", metavar="COMMAND")
    for each in COMMANDS:
        _add_command(orders, each)
    return top


Orders = Any
"""The result of add_subparsers, whose type is private to argparse."""


class _NotGiven(str):
    """The value of an option for a text that is not given, which is what argparse checks, too."""

    __slots__ = ()


def _text(value: str) -> str:
    """A text that is not empty: an option that was given with a variable that is not set would else
    be as if it was not given."""
    if not value.strip() and not isinstance(value, _NotGiven):
        raise argparse.ArgumentTypeError(EMPTY)
    return str(value)


def path_of(value: str) -> Path:
    return Path(_text(value))


TYPES: dict[str, Callable[[str], Any]] = {"path": path_of, "int": int, "float": float}

OPTION = re.compile(
    r"(?P<exclusive>~!?)?(?P<name>-*[a-z-]+)(=(?P<dest>\w+))?"
    r"( (?P<metavar>[\w.,=:]*?[\w-])?(\((?P<choices>[\w|]+)\))?"
    r"(:(?P<type>path|int|float))?(?P<nargs>[*+?])?(?P<required>!)?(\[(?P<default>\S+)\])?)?"
    r"(  +(?P<help>.*))?"
)


class _Grouped(argparse.RawDescriptionHelpFormatter):
    """Help in which the first command of each group is below the group's title."""

    def _format_action(self, action: argparse.Action) -> str:
        title = "" if action.option_strings else GROUPS.get(action.dest, "")
        return f"\n  {title}:\n" * bool(title) + super()._format_action(action)


def _made(make: Callable[..., Any], name: str, what: str, more: str, **how: Any) -> Any:
    form = argparse.RawDescriptionHelpFormatter if name else _Grouped
    named = (name,) if name else ()
    return make(*named, description=what, epilog=more, formatter_class=form, **how)


def _add_command(orders: Orders, said: Command) -> None:
    what = f"{said.what[0].upper()}{said.what[1:]}."
    command = _made(orders.add_parser, said.name, what, said.more, help=said.what)
    group: Any = command
    exclusive: Any = None
    for line in _lines(said.options):
        if line.startswith("["):
            title = line.strip("[]")
            group = command.add_argument_group(title) if title else command
            continue
        found = OPTION.fullmatch(line)
        assert found is not None, line
        if found["exclusive"] and exclusive is None:
            exclusive = command.add_mutually_exclusive_group(required=found["exclusive"] == "~!")
        _add_option(exclusive if found["exclusive"] else group, found)
    if said.question is not None:
        dest, metavar = said.question
        asked = not said.run
        questions = command.add_subparsers(dest=dest, metavar=metavar, required=asked)
        for each in said.commands:
            _add_command(questions, each)
        command.hand_down(questions)
    if said.run:
        command.set_defaults(run=said.run)


def _lines(options: str) -> Iterator[str]:
    """Options one a line, those of ``SHARED`` included."""
    for line in re.sub(r"\n {3,}", " ", options).strip().splitlines():
        if line.startswith("@"):
            yield from _lines(SHARED[line[1:]])
        else:
            yield line


def _add_option(group: Any, said: re.Match[str]) -> None:
    name, kind, nargs, default = said["name"], said["type"], said["nargs"], said["default"]
    hidden = said["help"] == "(hidden)"
    how: dict[str, Any] = {"help": argparse.SUPPRESS if hidden else said["help"]}
    how |= {"dest": said["dest"]} if said["dest"] else {}
    if said["metavar"] == ":const":
        how |= {"action": "store_const", "const": name.lstrip("-")}
    elif said["metavar"] or said["choices"]:
        how |= {"metavar": said["metavar"]} if said["metavar"] not in {None, "-"} else {}
        how |= {"choices": tuple(said["choices"].split("|"))} if said["choices"] else {}
        how |= {"type": TYPES[kind] if kind else _text} if not said["choices"] else {}
        how |= {"required": True} if said["required"] else {}
        how |= {"action": "append"} if nargs == "*" else {"nargs": nargs} if nargs else {}
        how |= {"default": _default(said)} if not said["required"] else {}
        if default is not None:
            how["default"] = TYPES[kind](default) if kind else default
    else:
        how |= {"action": "store_true"}
    group.add_argument(name, **how)


def _default(said: re.Match[str]) -> Any:
    if not said["name"].startswith("-") and said["nargs"] != "?":
        return None
    if said["nargs"] in {"*", "+"}:
        return []
    return None if said["type"] else _NotGiven("")


def command_named(name: str) -> Callable[[argparse.Namespace], int]:
    """The function of a command; only its module is imported, so that no command waits for what
    another one needs."""
    [module] = [module for module, names in MODULES.items() if name in names]
    return getattr(import_module(f"ddloco.cli.{module}"), name)


OUTLIVING = frozenset({"run", "syncer", "learner", "relay", "perform", "replay", "experiment"})
"""Commands that go on when nobody reads what they say: they have more to do than to say it."""


def main(arguments: Sequence[str] | None = None) -> None:
    with escaping():
        _main(arguments)


def _main(arguments: Sequence[str] | None) -> None:
    top = parser()
    given = top.parse_args(arguments)
    if given.version:
        from ddloco.stage.process.code_version import own_version  # noqa: PLC0415, so that --help is fast

        print(f"ddloco {own_version()}")
        sys.exit(0)
    if not hasattr(given, "run"):
        top.print_help()
        sys.exit(2)
    if given.run in OUTLIVING:
        outlive_readers()
    try:
        code = command_named(given.run)(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed the pipe, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = interrupted()
    except BaseExceptionGroup as group:
        # What else has failed has failed because of it: a terminal interrupts workers, too.
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        code = interrupted()
    let_go()
    sys.exit(code)


def interrupted() -> int:
    print("ddloco: interrupted", file=sys.stderr)
    return 1
