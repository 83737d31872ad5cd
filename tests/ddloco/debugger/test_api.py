"""``ddloco.open``: merges, steps, positions and searches, forwards and backwards."""

import json

import pytest

import ddloco
from ddloco.debugger.api import Run
from ddloco.job.protocol.work import FragmentMerged, StepFinished
from ddloco.stage.files.toml import ConfigError


@pytest.fixture
def opened_run(folder):
    """The recorded run, as a user opens it."""
    return ddloco.open(folder)


def test_a_run_says_what_it_is(opened_run, folder):
    """``repr`` names the folder and counts tapes and events."""
    assert repr(opened_run).startswith(f"<run {folder}: 6 tapes, ")
    assert set(opened_run.actors) == {
        "learner-0.1", "learner-1.1", "learner-1.2", "learner-2.1", "learner-3.1", "syncer.1",
    }  # fmt: skip


def test_merges_and_steps_are_those_of_the_log(opened_run, folder):
    """What the live log told is what is found."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    merges = [line["t"] for line in lines if line["event"] == "merge"]
    assert [each.t for each in opened_run.merges] == merges
    losses = {
        (line["actor"], line["incarnation"], line["step"]) if "incarnation" in line
        else (line["actor"], line["step"]): line["loss"]
        for line in lines
        if line["event"] == "step"
    }  # fmt: skip
    assert len(opened_run.steps()) >= len(losses) > 300
    assert {each.learner for each in opened_run.steps("learner-1")} == {
        "learner-1.1",
        "learner-1.2",
    }


def test_a_position_has_event_effects_clock_and_machine(opened_run):
    """Everything about one event is at hand."""
    merge = opened_run.merge(124)
    at = opened_run.at(merge.event)
    assert isinstance(at.event, FragmentMerged)
    assert at.effects
    assert at.clock["syncer.1"] == at.number
    assert at.machine.rounds.merges == opened_run.merges.index(merge) + 1
    assert repr(at).startswith(f"<{merge.event} at ")
    assert at.state("learner-0")["learner"] == "learner-0.1"
    assert at.state()["incarnation"] == "syncer.1"
    assert at.causes(3)[0].event == merge.event


def test_going_forward_and_back_again_is_where_it_was(opened_run):
    """``back`` undoes ``forward``."""
    at = opened_run.at("syncer.1:100")
    again = at.forward().back()
    assert (again.ref, again.event) == (at.ref, at.event)
    assert again.effects == at.effects


def test_searches_stop_at_the_first_event_in_their_direction(opened_run):
    """``until`` continues from a position, ``back_until`` returns towards the beginning."""

    def merges(position):
        return isinstance(position.event, FragmentMerged)

    first = opened_run.until(merges)
    assert first.ref == opened_run.merges[0].event
    second = opened_run.until(merges, first)
    assert second.ref == opened_run.merges[1].event
    assert opened_run.back_until(merges, second).ref == first.ref
    assert opened_run.back_until(merges).ref == opened_run.merges[-1].event
    assert opened_run.back_until(merges, first) is None
    step = opened_run.until(lambda p: isinstance(p.event, StepFinished), actor="learner-2.1")
    assert (step.actor, step.event.step) == ("learner-2.1", 1)


def test_what_is_not_there_is_said(opened_run):
    """A wrong name is one line that says what there is."""
    with pytest.raises(ConfigError, match="the tape has events 1 to"):
        opened_run.at("syncer.1:0")
    with pytest.raises(ConfigError, match="knows nothing of learner-9"):
        opened_run.at("syncer.1:100").state("learner-9")
    with pytest.raises(ConfigError, match="there are steps, merges, contributions"):
        opened_run.frame("losses")
    with pytest.raises(ConfigError, match="want pandas or polars"):
        opened_run.frame("steps", "excel")


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_have_a_row_for_each(opened_run, library):
    """Where the library is installed, and one line where it is not."""
    try:
        __import__(library)
    except ImportError:
        with pytest.raises(ConfigError, match=f"pip install {library}"):
            opened_run.frame("steps", library)
        return
    assert len(opened_run.frame("steps", library)) == len(opened_run.steps())
    merges = opened_run.frame("merges", library)
    assert len(merges) == len(opened_run.merges)
    assert {"t", "floor_s", "quorum_s", "grace_s", "tokens"} <= set(merges.columns)
    shares = opened_run.frame("contributions", library)
    assert len(shares) == sum(len(each.contributions) for each in opened_run.merges)


def test_a_run_equals_itself(opened_run, folder):
    """``diff`` takes a run or a folder."""
    assert opened_run.diff(folder).same
    assert opened_run.diff(Run(folder)).same
