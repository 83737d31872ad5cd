"""``ddloco why RUN stuck``: for whom a run waits where its tapes end, or that it does not."""

import json

import pytest

from ddloco.cli.debug import why
from ddloco.cli.parser import parser
from ddloco.debugger.cluster_status import cluster_at
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.stuck import ActorEnd, _of_actors, _stuck, stuck_at_end
from ddloco.stage.actors.status import ActorStatus
from tests.ddloco.debugger.cuts import killed

STALLED = "chaos.fault=[{what='stall', who='learner-1', at_s=60.0, for_s=90.0}]"


@pytest.fixture(scope="module")
def stalled(simulate):
    """A run in which everybody waits for a learner, from 60 to 150 s."""
    return open_job(simulate("job.learners=3", STALLED, "sync.quorum=3", "learner={}"))


def test_who_is_waited_for_is_named(stalled, tmp_path):
    """With what it did last, by its own tape, and since when there was no merge."""
    found = stuck_at_end(open_job(killed(stalled, tmp_path / "run", 140.0)))
    assert found.stuck
    assert found.verdict.startswith("stuck at the end of the tape of syncer.1 (syncer.1:")
    assert found.verdict.endswith("and it waits for learner-1.1")
    assert "learner-1.1 missing" in found.waits[0]
    first = found.actors[0]
    assert (first.actor, first.is_gone, first.ended) == ("learner-1.1", True, "")
    assert first.state.startswith("runs step ")
    assert len(found.lines()) < 9


@pytest.mark.parametrize("at", [20.0, 45.0, 58.0, 200.0])
def test_a_run_that_was_killed_while_it_merged_is_not_stuck(stalled, tmp_path, at):
    """Nor does it name anybody."""
    found = stuck_at_end(open_job(killed(stalled, tmp_path / "run", at)))
    assert not found.stuck
    assert [line.partition(" at the end ")[0] for line in found.lines()] == ["nothing is stuck"]


@pytest.mark.parametrize("until", [58.0, 140.0, 200.0])
def test_what_it_waited_for_until_a_time_is_that_of_tapes_which_end_there(stalled, tmp_path, until):
    """So a run that was asked to stop while it stood still says for whom it stood."""
    cut, whole = open_job(killed(stalled, tmp_path / "run", until)), open_job(stalled.path)
    found, wanted = _stuck(whole, until), stuck_at_end(cut)
    assert found.stuck == wanted.stuck == (until == 140.0)
    assert found.waits == wanted.waits
    assert [each.actor for each in found.shown()] == [each.actor for each in wanted.shown()]


def test_who_was_asked_to_stop_while_it_stood_is_told_so(stalled, monkeypatch):
    """With when; and a run that merged then has ended, and no more."""
    for at, said in (
        (140.0, "until it was asked to stop, at 140.00 s, it was stuck at "),
        (58.0, "the job has ended"),
    ):
        monkeypatch.setattr("ddloco.debugger.stuck._asked_to_stop", lambda _, at=at: at)
        assert stuck_at_end(open_job(stalled.path)).verdict.startswith(said)


def test_a_run_that_has_ended_is_not_stuck(run, folder, capsys):
    """It says how it ended, for people and as data."""
    [line] = stuck_at_end(run).lines()
    assert line.startswith("the job has ended: ")
    assert line.endswith("; nothing is stuck")
    assert why(parser().parse_args(["why", str(folder), "stuck", "--json"])) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["stuck"], {each["ended"] for each in told["actors"]} >= {""}) == (False, False)


def test_a_syncer_that_does_nothing_is_named(stalled, tmp_path):
    """Its learners go on, and nobody answers them."""
    folder = killed(stalled, tmp_path / "run", 100.0)
    short = killed(stalled, tmp_path / "short", 40.0)
    (short / "tapes" / "syncer.1.tape").replace(folder / "tapes" / "syncer.1.tape")
    found = stuck_at_end(open_job(folder))
    assert found.stuck
    assert found.verdict.startswith("stuck: syncer.1 does nothing since ")
    assert found.actors[0].actor == "syncer.1"


def test_its_state_is_that_of_status(stalled, tmp_path):
    """One mechanism: what a learner does at the end is what ``status --at`` shows."""
    run = open_job(killed(stalled, tmp_path / "run", 140.0))
    end = run.tapes["syncer.1"].events
    shown = {each.learner: each for each in cluster_at(run, "syncer.1", end).learners}
    assert shown["learner-1.1"].step + 1 == int(stuck_at_end(run).actors[0].state.split()[2])


def end(actor, ended=""):
    return ActorEnd(actor, f"{actor}:9", 1.0, 0.0, ended, "waits for a message since X")


WAITING, WORKS = ActorStatus(), ActorStatus(work=("Sum",))


@pytest.mark.parametrize(
    ("ends", "told", "stuck", "said"),
    [
        ([end("a.1"), end("b.1")], [WAITING, WAITING], True, "and none is under way"),
        ([end("a.1"), end("b.1")], [WAITING, WORKS], False, "a.1, b.1 did not end"),
        ([end("a.1", "done"), end("b.1")], [WORKS, WAITING], True, "b.1 did not end: each"),
        ([end("a.1", "done")], [WAITING], False, "every actor has ended; nothing is stuck"),
    ],
    ids=["all wait", "one works", "one has ended", "all have"],
)
def test_actors_of_ones_own(ends, told, stuck, said, monkeypatch):
    """Nothing happens any more if nobody has work, a timer or a message."""
    of = {each.actor: status for each, status in zip(ends, told, strict=True)}
    monkeypatch.setattr("ddloco.debugger.stuck._status", lambda _, end: of[end.actor])
    found = _of_actors(None, {each.actor: each for each in ends}, None)
    assert (found.stuck, said in found.verdict) == (stuck, True), found
