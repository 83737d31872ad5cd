"""The status of a recorded job at an event: every actor at what the event knew of it."""

import json
from io import StringIO

import pytest
from rich.console import Console

from ddloco.cli.observe import status
from ddloco.cli.parser import parser
from ddloco.debugger.cluster_status import cluster_at


def test_every_actor_stands_at_its_entry_in_the_clock_of_the_event(run):
    """Every actor stands at its entry in the clock of the event."""
    told = cluster_at(run, "syncer.1", 300)
    known = run.clock("syncer.1", 300).wire()
    stands = {each.learner: int(each.event.partition(":")[2]) for each in told.learners}
    assert stands == {who: known[who] for who in stands}
    assert [each.events for each in told.syncers] == [300]
    assert len(stands) == 4


def test_a_learner_is_shown_at_the_step_that_its_tape_has_there(run):
    """A learner is shown at the step that its tape has there."""
    told = cluster_at(run, "syncer.1", 300)
    for each in told.learners:
        number = int(each.event.partition(":")[2])
        finished = [step for r, step, _ in run.steps_of(each.learner) if r.n <= number]
        assert each.step == max(finished, default=0)


def test_only_the_newest_incarnation_of_an_actor_is_shown(run):
    """Only the newest incarnation of an actor is shown."""
    newest = run.tapes["syncer.1"].events
    shown = [each.learner for each in cluster_at(run, "syncer.1", newest).learners]
    assert "learner-1.2" in shown
    assert "learner-1.1" not in shown


def test_the_picture_is_that_of_the_live_status_with_the_learners(run):
    """The picture is that of the live status with the learners."""
    console = Console(width=160, record=True, file=StringIO())
    console.print(cluster_at(run, "syncer.1", 300).picture())
    text = console.export_text()
    assert "global step" in text
    assert "learner-0.1" in text
    assert "runs step" in text


def test_the_command_prints_it_and_refuses_what_is_no_event(folder, capsys):
    """The command prints it and refuses what is no event."""
    given = parser().parse_args(["status", str(folder), "--at", "syncer.1:300", "--json"])
    assert status(given) == 0
    assert json.loads(capsys.readouterr().out)["event"] == "syncer.1:300"
    for at, said in (("300", "is no event"), ("syncer.1:9999999", "the tape has events")):
        assert status(parser().parse_args(["status", str(folder), "--at", at])) == 2
        assert said in capsys.readouterr().err


def test_going_back_and_forth_brings_the_same_state(run):
    """Going back and forth brings the same state."""
    there = cluster_at(run, "syncer.1", 500)
    cluster_at(run, "syncer.1", 200)
    assert cluster_at(run, "syncer.1", 500) == there


@pytest.mark.parametrize("pair", [("a", "b"), ()])
def test_one_run_at_a_time(pair, capsys):
    """One run at a time."""
    given = parser().parse_args(["status", "x", *pair, "--at", "syncer.1:1"])
    assert status(given) == 2
    capsys.readouterr()
