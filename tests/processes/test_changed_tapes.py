"""One field of one event of a tape is changed and its checksums are mended: the replay names it, or
says what was not verified."""

import re
import shlex

import pytest

from ddloco.cli.parser import parser
from ddloco.replayer.comparer import MEASURED
from ddloco.replayer.replay_of import replay_of
from snapshot import Store
from tests.commands import here
from tests.installed import CHECKOUT
from tests.processes.changed_tapes import change_one, events_of, fields_of
from tests.processes.conftest import JOB, QUORUM, SNAPSHOTS, recorded_once, replay

FACTS = {
    **{f"StepFinished: {field}": "how long it took" for field in MEASURED},
    "StopRequested: reason": "what a person typed, in words",
}
"""Fields that no replay can compute, and on which no decision depends."""

LINES_MAX, COLUMNS_MAX = 14, 80
"""Of what a person reads of a difference, before the command that shows more."""

BOUNDED = '\n[tape]\nkeep = "2 snapshots"\nship = false\n'
PROGRAM = "tests.processes.test_programs:bounded"


@pytest.fixture(scope="module")
def runs(request, tmp_path_factory):
    """Records a run of a kind: with snapshots; one that continued from one; one whose tapes lack
    what was before its last two; and one of own actors, whose tapes lack it, too."""

    def recorded(kind):
        if kind == "bounded":
            text = JOB + SNAPSHOTS + BOUNDED
            return recorded_once(tmp_path_factory, "bounded", text, QUORUM).run_folder
        if kind != "own":
            return request.getfixturevalue(kind).run_folder
        folder = tmp_path_factory.mktemp("own") / "run"
        done = here("perform", PROGRAM, "--set=versions=200", "--dir", str(folder), cwd=CHECKOUT)
        assert done.returncode == 0, done.stderr
        return folder

    return recorded


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        *(("pictured", 60), ("own", 12)),
        *(
            pytest.param(kind, 1, marks=pytest.mark.slow)
            for kind in ("pictured", "resumed", "bounded", "own")
        ),
    ],
)
def test_no_change_is_called_identical(runs, tmp_path, kind, share):
    """Whatever field of whatever kind of event and message it is in: one in so many of them in the
    fast tests, all in the slow ones."""
    folder = runs(kind)
    assert replay(folder).returncode == 0
    unnoticed = []
    there = replay_of(folder).start_point
    cuts = cut_of(folder, there.snapshot) if there is not None and kind != "resumed" else {}
    for name, where in sorted(fields_of(folder, cuts).items())[::share]:
        found = replay(change_one(folder, tmp_path / "changed", where))
        if found.returncode == 0 and name not in FACTS:
            unnoticed.append((name, *where))
        assert "Traceback" not in found.stderr, (name, found.stderr)
        if "DIFFERENT " in found.stdout:
            check_screen(found.stdout)
    assert unnoticed == []


def check_screen(said):
    """It is short and narrow, begins with a sentence, ends with a command that can be pasted, and
    has neither the text of a struct nor of bytes."""
    *_, screen = re.split(r"^(?=DIFFERENT )", said.rstrip(), flags=re.MULTILINE)
    *lines, command = screen.splitlines()
    assert re.match(r"DIFFERENT (DATA|ARITHMETIC|DECISION|MESSAGE|SETUP): \S", lines[0]), screen
    assert len(lines) <= LINES_MAX, screen
    assert max(map(len, lines)) <= COLUMNS_MAX, screen
    assert not re.search(r"\w\(\w+=|\bb['\"]|UNSET", screen), screen
    assert {"recorded", "replayed", "equal"} <= set(screen.split()), screen
    words = shlex.split(command)
    parser().parse_args(words[1:])
    assert words[0] == "ddloco", screen


def test_a_changed_result_of_a_step_at_the_cut_is_named(pictured, tmp_path):
    """A replay that begins at a snapshot has that result from there, and compares it."""
    oldest, *_ = pictured.snapshots()
    begun = replay(pictured.run_folder, "--from", oldest)
    assert begun.returncode == 0, begun.stdout
    cuts = cut_of(pictured.run_folder, oldest)
    named = []
    for file, number in first_steps(pictured.run_folder, cuts):
        to = change_one(pictured.run_folder, tmp_path / "changed", (file, number, ("batch",)))
        found = replay(to, "--from", oldest)
        assert found.returncode == 1, found.stdout
        named.append(f"(event {file.removesuffix('.tape')}:{number})" in found.stdout)
    assert named == [True, True]


def cut_of(folder, snapshot):
    """The number of the last event before the cut, by incarnation."""
    return {part.who: part.number for part in Store(folder / "snapshots").load(snapshot).parts}


def first_steps(folder, cuts):
    """The first finished step of each learner after the cut."""
    found = {}
    for file, number, event in events_of(folder):
        if event["type"] == "StepFinished" and number > cuts[file.removesuffix(".tape")]:
            found.setdefault(file, number)
    return list(found.items())
