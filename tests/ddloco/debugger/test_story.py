"""``ddloco story``: what happened to an actor, in lines in the order of time."""

import json
from itertools import pairwise

import pytest

from ddloco.cli.debug import story
from ddloco.cli.parser import parser
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.story import story_of


@pytest.fixture
def told(folder, capsys):
    """What the command says of the run: exit code, lines, standard error."""

    def ask(*words):
        code = story(parser().parse_args(["story", str(folder), *words]))
        said = capsys.readouterr()
        return code, said.out, said.err

    return ask


def test_a_learner_that_was_lost_and_came_back(run):
    """Both incarnations, why the link was lost, what it did between, and from which merges it was
    absent; few lines for hundreds of steps."""
    lines = story_of(run, "learner-1")
    said = [each.text for each in lines]
    assert said[0] == "learner-1.1 starts"
    assert "learner-1.2 starts" in said
    assert any(text.startswith("syncer.1: lost learner-1.1: reason ") for text in said)
    assert any("inner steps " in text and " merges, " in text for text in said)
    assert any("not in " in text and "not connected: " in text for text in said)
    assert len(lines) < 40
    assert all(one.at <= other.at for one, other in pairwise(lines))
    for each in lines:
        who, number = parse_event(each.event)
        assert 0 < number <= run.tapes[who].events


def test_one_incarnation_and_a_syncer(run):
    """The other incarnation is not in it; a syncer's merges are its own."""
    assert not any("learner-1.2 starts" in each.text for each in story_of(run, "learner-1.1"))
    said = [each.text for each in story_of(run, "syncer")]
    assert any(" merges, " in text and "not in" not in text for text in said)


def test_who_stood_still_is_said_to(simulate):
    """For how long nothing is recorded of it."""
    stall = "chaos.fault=[{what='stall', who='learner-1', at_s=60.0, for_s=60.0}]"
    run = open_job(simulate("job.learners=3", stall, "sync.quorum=1", "learner={}"))
    said = [each.text for each in story_of(run, "learner-1")]
    assert any(text.startswith("nothing of learner-1.1 for ") for text in said), said
    assert not any("nothing of" in each.text for each in story_of(run, "learner-0"))


def test_a_part_of_it_as_data(told):
    """Of some seconds alone, for people and as data."""
    code, out, _ = told("learner-1", "--after", "90", "--before", "130", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["lines"]
    assert all(90 <= each["at"] <= 130 for each in found["lines"])
    _, out, _ = told("learner-1", "--after", "90", "--before", "130")
    assert len(out.splitlines()) == len(found["lines"])


def test_an_actor_that_is_not_there_is_named(told):
    """In one line, with those that are."""
    code, out, err = told("learner-9")
    assert (code, out) == (2, "")
    assert "no tape of learner-9; there are learner-0.1, " in err
