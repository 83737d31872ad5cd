"""The command line answers at once, teaches, and fails in one line."""

import subprocess
import sys

import pytest

from ddloco.cli import parser as module
from ddloco.cli.commands import COMMANDS
from ddloco.cli.help_text import GROUPS
from ddloco.cli.parser import main, parser

HEAVY = ("jax", "numpy", "trio", "zmq", "rich", "msgspec")


def test_help_imports_nothing_heavy():
    """`--help` answers in a fraction of a second because nothing big is imported for it."""
    code = (
        "import sys\n"
        "from ddloco.cli.parser import main, parser\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.endswith("[]\n")


def test_status_imports_no_arrays():
    """`status` answers soon because neither arrays nor what draws are imported to ask."""
    heavy = ("numpy", "rich", "asyncio", "snapshot", "ddloco.job.config", "ddloco.workers")
    code = (
        "import sys\n"
        "from ddloco.cli.parser import main, parser\n"
        "try: main(['status', 'tcp://127.0.0.1:1', '--timeout', '0.01', '--json'])\n"
        "except SystemExit: pass\n"
        f"print('zmq' in sys.modules, [name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "True []\n"
    assert "no answer from tcp://127.0.0.1:1" in done.stderr


def test_no_actor_process_imports_jax():
    """JAX lives in worker processes alone; importing all commands does not bring it."""
    code = "import sys; from ddloco.cli.parser import *\n"
    code += "[command_named(name) for names in MODULES.values() for name in names]\n"
    code += "print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"


@pytest.mark.parametrize("command", ["run", "syncer", "learner", "replay", "tape", "snapshot"])
def test_every_command_has_help(command, capsys):
    """Each command explains itself and exits with 0."""
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])

    assert left.value.code == 0
    assert "usage: ddloco" in capsys.readouterr().out


def test_no_command_is_bad_input(capsys):
    """Without a command the help is shown, and the exit code is 2."""
    with pytest.raises(SystemExit) as left:
        main([])

    assert left.value.code == 2
    assert "a first run:" in capsys.readouterr().out


def test_version(capsys):
    """`--version` prints name and number."""
    with pytest.raises(SystemExit) as left:
        main(["--version"])

    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("ddloco 0.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu", "job.toml"], "did you mean run?"),
        (["tape", "shw", "x"], "did you mean show?"),
        (["run", "job.toml", "--proceses"], "did you mean --processes?"),
        (["bundle", "run", "--out", "x"], "--out x; other commands have it"),
        (["init", "--template", "gtp"], "did you mean gpt?"),
    ],
)
def test_misspelled_words_are_answered(words, said, capsys):
    """Commands, actions, options and choices: exit code 2, and what was meant."""
    with pytest.raises(SystemExit) as left:
        main(words)

    assert left.value.code == 2
    assert capsys.readouterr().err.strip().endswith(said)


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "run", "--until", ""),
        ("replay", "run", "--task", " "),
        ("run", "job.toml", "--dir", ""),
        ("run", "job.toml", "--set", ""),
        ("tape", "show", ""),
    ],
)
def test_an_empty_text_is_refused(words, capsys):
    """As of a variable of the shell that is not set; it would else be as if it was not given."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words)
    assert ended.value.code == 2
    assert "is empty; name something, or leave it out" in capsys.readouterr().err


def test_what_is_not_given_is_no_empty_text():
    """Its value is a plain text, empty."""
    given = parser().parse_args(["replay", "run"])
    assert (given.until, given.task, type(given.until)) == ("", "", str)


@pytest.mark.parametrize(
    "raised",
    [
        KeyboardInterrupt(),
        BaseExceptionGroup("tasks", [KeyboardInterrupt()]),
        BaseExceptionGroup(
            "tasks", [ExceptionGroup("", [OSError("a worker died")]), KeyboardInterrupt()]
        ),
    ],
    ids=["alone", "in a group", "with another"],
)
def test_ctrl_c_ends_a_command_with_one_line(raised, monkeypatch, capsys):
    """However the event loop reports it; what failed because of it is not printed."""

    def interrupted(_):
        raise raised

    monkeypatch.setattr(module, "command_named", lambda _: interrupted)
    with pytest.raises(SystemExit) as ended:
        module.main(["replay", "nowhere"])

    assert ended.value.code == 1
    assert capsys.readouterr().err == "ddloco: interrupted\n"


def test_another_group_of_errors_is_a_bug(monkeypatch):
    """Its traceback is not hidden."""

    def failed(_):
        raise ExceptionGroup("tasks", [ValueError("a bug")])

    monkeypatch.setattr(module, "command_named", lambda _: failed)
    with pytest.raises(ExceptionGroup):
        module.main(["replay", "nowhere"])


def test_commands_stand_in_groups():
    """Each group's title is above its first command, and no command is above the first group."""
    said = parser().format_help()
    names = [each.name for each in COMMANDS]
    assert set(GROUPS) <= set(names)
    assert names[0] in GROUPS
    assert [first for first in names if first in GROUPS] == list(GROUPS)
    for first, title in GROUPS.items():
        assert f"\n\n  {title}:\n    {first} " in said
