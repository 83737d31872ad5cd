"""``ddloco tape show`` and ``verify``: which events are shown, and what is missing of a run."""

import json
import shutil

import pytest

from ddloco.cli.parser import parser
from ddloco.cli.tape_show import _short, tape_show
from ddloco.cli.tape_verify import tape_verify


@pytest.fixture
def call(capsys):
    """Calls one of both in this process: exit code, standard output, standard error."""

    def called(*words):
        command = tape_show if words[0] == "show" else tape_verify
        code = command(parser().parse_args(["tape", *map(str, words)]))
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return called


@pytest.fixture
def copy(folder, tmp_path):
    """A copy of a recorded run, to be damaged."""
    return shutil.copytree(folder, tmp_path / "run")


def test_one_actor_or_one_incarnation(call, folder):
    """``--actor`` takes a name or a name with its number."""
    both = call("show", folder, "--actor", "learner-1")[1]
    assert {line.partition(":")[0] for line in both} == {"learner-1.1", "learner-1.2"}
    first = call("show", folder, "--actor", "learner-1.1")[1]
    assert {line.partition(":")[0] for line in first} == {"learner-1.1"}


def test_one_type_of_events_or_of_messages(call, folder):
    """``--type`` takes the name of an event or of what a message says."""
    steps = call("show", folder, "--type", "StepFinished", "--json")[1]
    assert {json.loads(line)["type"] for line in steps} == {"StepFinished"}
    said = call("show", folder, "--type", "Contribution", "--json")[1]
    assert {json.loads(line)["body"]["type"] for line in said} == {"Contribution"}


def test_one_merge(call, folder):
    """``--merge`` shows its pulls, contributions and the new version at each learner."""
    lines = call("show", folder, "--merge", 40, "--json")[1]
    kinds = {json.loads(line)["body"]["type"] for line in lines}
    assert kinds == {"Pull", "Contribution", "GlobalFragment"}


def test_around_an_event(call, folder):
    """Ten before, ten after, of all actors."""
    lines = call("show", folder, "--around", "syncer.1:100")[1]
    assert len(lines) == 21
    assert lines[10].startswith("syncer.1:100 ")
    code, _, err = call("show", folder, "--around", "syncer.1:999999")
    assert (code, "no tape has this event" in err) == (2, True)


def test_long_values_are_cut_off_unless_all_is_wanted(call, folder):
    """``--full`` prints whole digests and tuples."""
    words = ("show", folder, "--type", "Started")
    assert all("..." in line for line in call(*words)[1])
    assert not any("..." in line for line in call(*words, "--full")[1])


def test_bytes_in_lists_are_hexadecimal_digits():
    """As in the steps that a learner took together."""
    steps = [[0.5, 4, bytes(range(16))]]
    assert _short(steps, full=False) == "[[0.5, 4, 00010203]]"
    assert _short(steps, full=True) == f"[[0.5, 4, {bytes(range(16)).hex()}]]"


def test_a_whole_run_holds(call, folder):
    """Nothing is missing, and nothing is wrong."""
    code, lines, _ = call("verify", folder)
    assert code == 0
    assert lines[-1].startswith("held: ")


@pytest.mark.parametrize("name", ["syncer.1", "learner-0.1", "learner-1.1"])
def test_a_missing_tape_is_a_gap_and_no_success(call, copy, name):
    """Each incarnation that a clock names must have a tape."""
    (copy / "tapes" / f"{name}.tape").unlink()
    code, lines, _ = call("verify", copy)
    assert code == 1
    assert f"gap: {name}: no tape" in lines
    assert lines[-1] == "not held: parts of the run are missing"


def test_a_tape_that_lost_its_end_is_a_gap_and_no_success(call, copy):
    """Others have heard of the events that are not there."""
    path = copy / "tapes" / "learner-0.1.tape"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    code, lines, _ = call("verify", copy)
    assert code == 1
    assert any(line.startswith("gap: learner-0.1: events ") for line in lines)


def test_a_damaged_tape_is_read_up_to_the_damage_if_asked(call, copy):
    """One flipped bit makes a tape unreadable; ``--salvage`` reads what is before it."""
    path = copy / "tapes" / "learner-0.1.tape"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, _, err = call("verify", copy)
    assert code == 2
    assert "damaged" in err
    code, lines, _ = call("verify", copy, "--salvage")
    assert code == 1
    [gap] = [line for line in lines if "damaged at byte" in line]
    assert gap.startswith("gap: learner-0.1: damaged at byte ")
    shown = call("show", copy, "--salvage", "--actor", "learner-0.1")[1]
    assert 0 < len(shown) < len(call("show", copy, "--salvage")[1])
