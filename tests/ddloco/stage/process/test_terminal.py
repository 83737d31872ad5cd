"""What is printed has no control characters, and what the program draws stays."""

import io
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ddloco.stage.process.console import SafeConsole
from ddloco.stage.process.terminal import (
    CONTROL,
    Escaping,
    escaped,
    escaping,
    let_go,
    one_line,
    outlive_readers,
    quoted,
)
from tests.hostile_text import CONTROL as TEXTS_OF_CONTROL
from tests.hostile_text import PRINTABLE

HOSTILE = "a\x1b[2J\rb\x9b2Jc\u202ed\x07\x00\ud800"
SHOWN = r"a\u001b[2J\u000db\u009b2Jc\u202ed\u0007\u0000\ud800"


def test_control_characters_are_escaped():
    """Those of terminals and of directions; text of all languages, newlines and tabs are not."""
    assert SHOWN == escaped(HOSTILE)
    plain = "naïve \N{GREEK SMALL LETTER LAMDA} \u05d0\u200d\U0001f600\n\tx\xa0"
    assert plain == escaped(plain)
    assert r"a\u000ab\u0009\u000d" == one_line("a\nb\t\r")
    assert "5" == one_line(5)


def test_every_control_character_is_one():
    """All of C0 and C1 but tab and newline, DEL, and all that change directions."""
    codes = [*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    for code in {*codes, 0x200E, 0x200F, 0x061C, 0x2028, 0x2029} - {9, 10}:
        assert not CONTROL.search(escaped(chr(code)))
        assert chr(code) not in escaped(chr(code))


def test_standard_streams_are_escaped_and_come_back(capsys):
    """Whatever is printed meanwhile, once only; JSON stays JSON."""
    before = sys.stdout, sys.stderr
    with escaping(), escaping():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stdout.writelines(["\x1b", "x\n"])
        print('{"a": "\x9b\u202e"}')
        assert not sys.stdout.isatty()
    assert before == (sys.stdout, sys.stderr)
    said = capsys.readouterr()
    assert said.out.splitlines()[:2] == [SHOWN, r"\u001bx"]
    assert json.loads(said.out.splitlines()[2]) == {"a": "\x9b\u202e"}
    assert said.err == f"{SHOWN}\n"


def drawn(**options):
    """What a console draws of hostile text in a table, a title, and a display that stays."""
    stream = io.StringIO()
    console = SafeConsole(file=Escaping(stream), width=120, **options)
    table = Table(title=Text(HOSTILE))
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="red"))
    console.print(HOSTILE)
    console.print(table)
    with Live(console=console, auto_refresh=False) as live:
        live.update(Text(HOSTILE, style="green"), refresh=True)
    return stream.getvalue()


def test_what_a_console_draws_is_escaped_and_its_colours_stay():
    """On a terminal: nothing but colours and movements of the cursor, which rich writes."""
    said = drawn(force_terminal=True, color_system="standard")
    assert "\x1b[31m" in said
    rest = re.sub(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12]?[AKG]|\r", "", said)
    assert not CONTROL.search(rest), rest
    assert "\x1b[2J" not in said
    assert said.count(r"\u202e") == 4


def test_a_console_that_is_no_terminal_writes_text_alone():
    """Neither colours nor control characters."""
    assert not CONTROL.search(drawn())


@pytest.mark.parametrize("text", PRINTABLE)
def test_text_is_only_text(text):
    """Brackets are no markup and colons no pictures: in a line, a table, a title, a progress."""
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=120)
    table = Table(text, title=text)
    table.add_row(text)
    console.print(text)
    console.print(Group(text, table))
    assert stream.getvalue().count(text) == 5


@pytest.mark.parametrize("text", TEXTS_OF_CONTROL)
def test_what_a_terminal_obeys_is_one_line(text):
    """All of it can be seen, and it is one line."""
    assert one_line(text).isprintable()
    assert one_line(text) != text


@pytest.mark.parametrize("text", PRINTABLE)
def test_a_command_that_is_suggested_can_be_pasted(text):
    """A shell reads each word as it was, and a path is never an option."""
    said = subprocess.check_output(["bash", "-c", f"printf %s {quoted([text])}"], text=True)
    assert said == text
    words = quoted(["ddloco", "replay", Path(text)])
    assert shlex.split(words) == [
        "ddloco",
        "replay",
        f"./{text}" if text[0] == "-" else str(Path(text)),
    ]


def test_all_consoles_are_such():
    """No module makes another one."""
    root = Path(sys.modules[SafeConsole.__module__].__file__).parents[2]
    for path in root.rglob("*.py"):
        assert not re.search(r"(?<![\w.])Console\(", path.read_text().replace("(Console)", "")), (
            path
        )


def test_a_process_without_streams_is_left_alone(monkeypatch):
    """As of a daemon."""
    monkeypatch.setattr(sys, "stderr", None)
    with escaping():
        assert sys.stderr is None


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, text=""):
        raise OSError(28, "No space left on device")

    flush = write


def test_a_program_that_outlives_its_readers_goes_on(monkeypatch):
    """What it prints or draws is lost, under the escapes as well; and its end is quiet."""
    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(sys, "stderr", Full())
    with pytest.raises(OSError, match="No space"):
        print("heard")
    with escaping():
        outlive_readers()
        outlive_readers()
        print("lost", flush=True)
        print("lost", file=sys.stderr)
        SafeConsole().print("lost")
        let_go()
