"""What is missing of a run's tapes, found from what they have heard of each other."""

import msgpack
import msgspec
import pytest

from ddloco.replayer.gaps import LISTED_MAX, begins_said, gaps_of, listed, two_runs
from ddloco.stage.driver.resume import RESTORED
from replay import TapeHeader, TapeWriter, open_tapes
from replay.tape import Closed, Effects, Event


@pytest.fixture
def write(tmp_path):
    """Writes a tape of events, each a map or what it heard: (sender, number)."""

    def written(name, events, *, after=0, clock=None, closed=True, facts=None, part=0):
        header = TapeHeader(
            name, "job-1", PROGRAM, "0", {}, after=after, clock=clock or {}, facts=facts or {},
            part=part,
        )  # fmt: skip
        writer = TapeWriter(tmp_path / f"{name}.tape", header)
        for n, each in enumerate(events, start=after + 1):
            plain, heard = (each, {}) if isinstance(each, dict) else ({"type": "x"}, dict([each]))
            writer.append(Event(n, 0.0, msgspec.Raw(msgpack.packb(plain)), heard))
            writer.append(Effects(n, 0, bytes(16)))
        if closed:
            writer.append(Closed(after + len(events), "done"))
        writer.close()
        return tmp_path

    return written


PROGRAM = {"program": "here:program", "options": {}}


def found(folder):
    return gaps_of(open_tapes(folder), folder)


def test_whole_tapes_have_no_gap(write):
    """Each has heard of the other, and of nothing that is not there."""
    write("a.1", [("b.1", 1)])
    assert found(write("b.1", [{"type": "x"}, ("a.1", 1)])) == []


def test_who_was_heard_of_and_has_no_tape_is_a_gap(write):
    """By the incarnation, unless only one tape was asked about."""
    folder = write("a.1", [("b.1", 1)])
    assert found(folder) == ["b.1: no tape"]
    assert found(folder / "a.1.tape") == []


def test_who_did_not_come_along_is_no_gap(write):
    """What was heard of it before the cut is in the header; what came after it had been said."""
    restored = {"type": "Restored", "snapshot": "s", "missing": ["c.1"], "run": ""}
    write("a.1", [restored, ("c.1", 9)], after=4, clock={"b.1": 3, "c.1": 2, "d.1": 5})
    folder = write("b.1", [{"type": "x"}, ("d.1", 5)], after=3, clock={"a.1": 2})
    assert found(folder) == []
    write("e.1", [("d.1", 6)])
    assert found(folder) == ["d.1: no tape"]


def test_a_lost_end_is_a_gap(write):
    """Others have heard of more than a tape has that was not closed."""
    write("a.1", [{"type": "x"}], closed=False)
    folder = write("b.1", [("a.1", 9)])
    assert found(folder) == ["a.1: events 2 to 9 are missing: others have heard of them"]


def test_where_tapes_begin_is_said_once(write):
    """With the snapshot that they continue from."""
    for name in ("a.1", "b.1"):
        folder = write(name, [{"type": "x"}], after=3, facts={RESTORED: "s-1"})
    [said] = begins_said(open_tapes(folder))
    assert said.startswith("these tapes continue from snapshot s-1")


def test_of_many_gaps_the_first_ones_are_listed():
    """A job may have a thousand learners."""
    lines = listed([f"learner-{n}.1: no tape" for n in range(1000)])
    assert len(lines) == LISTED_MAX + 1
    assert lines[-1] == "gap: and 992 more"


def welcome(run):
    return {"type": "MessageArrived", "sender": "s.1", "body": {"type": "Welcome", "run": run}}


def test_an_actor_that_took_anothers_place_is_told_from_it(write):
    """It names another run under the same name; a link that is opened again does not."""
    folder = write("a.1", [welcome("one"), welcome("one"), welcome("")])
    assert two_runs(open_tapes(folder)) is None
    write("b.1", [welcome("two")])
    assert two_runs(open_tapes(folder)).startswith("b.1:1: s.1 names another run than before")
