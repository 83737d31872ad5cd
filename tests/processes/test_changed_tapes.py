"""One field of one event of a tape is changed and its checksums are mended: the replay names it, or
says what was not verified."""

import pytest

from ddloco.replayer.comparer import MEASURED
from snapshot import Store
from tests.processes.changed_tapes import change_one, events_of, fields_of
from tests.processes.conftest import replay

FACTS = {
    **{f"StepFinished: {field}": "how long it took" for field in MEASURED},
    "StopRequested: reason": "what a person typed, in words",
}
"""Fields that no replay can compute, and on which no decision depends."""

SHARE = 80
"""One in so many fields is changed by the fast tests, all by the slow ones."""


@pytest.mark.parametrize("kind", ["pictured", "resumed"])
@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.slow)])
def test_no_change_is_called_identical(request, tmp_path, kind, share):
    """Whatever field of whatever kind of event and message it is in."""
    folder = request.getfixturevalue(kind).run_folder
    assert replay(folder).returncode == 0
    unnoticed = []
    for name, where in sorted(fields_of(folder).items())[::share]:
        found = replay(change_one(folder, tmp_path / "changed", where))
        if found.returncode == 0 and name not in FACTS:
            unnoticed.append((name, *where))
        assert "Traceback" not in found.stderr, (name, found.stderr)
    assert unnoticed == []


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
        named.append(f"DIVERGENCE at {file.removesuffix('.tape')}:{number}" in found.stdout)
    assert named == [True, True]


def cut_of(folder, snapshot):
    """The number of the last event before the cut, by file name of the tape."""
    return {
        f"{part.who}.tape": part.number for part in Store(folder / "snapshots").load(snapshot).parts
    }


def first_steps(folder, cuts):
    """The first finished step of each learner after the cut."""
    found = {}
    for file, number, event in events_of(folder):
        if event["type"] == "StepFinished" and number > cuts[file]:
            found.setdefault(file, number)
    return list(found.items())
