"""Playing a program's actors: what is refused in one line, and how failures end."""

import json

import pytest

from ddloco.cli import perform as command
from ddloco.cli.parser import parser
from ddloco.cli.replay import replay
from ddloco.stage.actors.effects import Calculation, Finish, Observe
from ddloco.stage.actors.events import Begun, Computed, StopRequested, WorkFailed
from ddloco.stage.programs.program import Program, Role
from transport import Body, Dial, Listen

HERE = "tests.ddloco.cli.test_perform"


class Hi(Body, frozen=True):
    """A message that no actor sends."""


class Ho(Body, frozen=True):
    """Another one."""


class Server:
    """Listens; or raises, or asks for work that raises."""

    def __init__(self, what):
        self.what = what

    def handle(self, at, event):
        """As it was made."""
        match event:
            case Begun() if self.what == "raise":
                raise KeyError("gone")
            case Begun() if self.what == "work":
                return [Listen({}), Calculation(1, (), ())]
            case WorkFailed(_, _, reason):
                return [Observe("seen", {"at": reason}), Finish("failed", reason)]
            case Begun():
                return [Listen({})]
            case _:
                return []


class Client:
    """Leaves when it is asked to."""

    def handle(self, at, event):
        """Dial, and leave."""
        match event:
            case Begun():
                return [Dial("server", {})]
            case StopRequested(reason):
                return [Finish("stopped", reason)]
            case _:
                return []


def program(what="", clients=1):
    """A server and its client."""
    assert len(range(clients)) == 1
    roles = {"server": Role(lambda: Server(what)), "client": Role(Client, dials=("server",))}
    return Program(roles, said=Hi | Ho, happened=Computed, asked=Calculation)


def perform(*words):
    """Run the command here; its exit code."""
    given = parser().parse_args(["perform", *map(str, words)])
    return command.perform(given)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "waiter"], "--only waiter: no such actor; the program has server, client"),
        (["--only", "client"], "--only: client dials server; say where with --at server=..."),
        (["--at", "client=tcp://127.0.0.1:1"], "where NAME is one of server"),
        (
            ["--at", "server=tcp://0.0.0.0:1"],
            "--at server: tcp://0.0.0.0:1: any process that reaches this",
        ),
        (["--at", "server=nowhere"], "--at server: nowhere: unknown kind of address"),
        (["--set", "what"], "--set what: want key=value"),
        (["--set", "who=1"], "takes no who; it takes what, clients"),
        (["--set", "clients=x"], "interpreted as an integer; its options: clients='x'"),
        (["--keys", "nowhere"], "nowhere"),
        (["--from", "nowhere/x.1-3"], "nowhere: no such folder"),
    ],
)
def test_one_line_says_what_is_wrong(words, said, tmp_path, capsys):
    """Before anything has run: exit code 2, no traceback."""
    assert perform(f"{HERE}:program", "--dir", tmp_path / "run", *words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("ddloco: ")
    assert said in line


@pytest.mark.parametrize(
    ("what", "said"),
    [("raise", "KeyError: 'gone' (test_perform.py:"), ("work", "NotImplementedError: no compute")],
)
def test_a_failure_ends_all_actors_and_replays(what, said, tmp_path, capsys):
    """Where it was is said; the others are asked to stop; the replay fails in the same place."""
    run = tmp_path / "run"
    assert perform(f"{HERE}:program", "--dir", run, "--set", f"what={what}") == 1
    out = capsys.readouterr().out
    assert f"server.1 failed: {said}" in out.replace("Calculation: ", "")
    assert "client.1 stopped: server.1 failed" in out
    given = parser().parse_args(["replay", str(run)])
    assert replay(given) == 0
    assert "identical" in capsys.readouterr().out


def test_what_is_called_as_a_lines_own_fields_is_in_the_log(tmp_path):
    """Under another name, instead of ending the actor."""
    run = tmp_path / "run"
    perform(f"{HERE}:program", "--dir", run, "--set", "what=work")
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    [seen] = [line for line in lines if line["event"] == "seen"]
    assert "NotImplementedError" in seen["at_"]
    assert seen["at"] >= 0
