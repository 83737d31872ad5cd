"""Replays that stop at a cut: each actor is in the state that the event's clock names, with its
arrays."""

import io
import json
import sys

import numpy as np
import pytest
import trio
from msgspec import structs

import ddloco
from ddloco.cli.parser import parser
from ddloco.cli.replay import replay
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.stopped_replay import replay_until
from ddloco.machines.syncer.rounds import Rounds
from ddloco.replayer.replay_of import replay_of
from ddloco.stage.files.toml import ConfigError
from ddloco.workers.simulated.work import SimulatedWork


@pytest.fixture
def call(folder, capsys):
    """Calls the command in this process: exit code, standard output, standard error."""

    def called(*words):
        code = replay(parser().parse_args(["replay", str(folder), *words]))
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


@pytest.mark.parametrize("target", ["syncer.1:300", "learner-2.1:55", "learner-1.2:9"])
def test_all_actors_stand_where_the_event_knew_them(run, target):
    """The cut is the causal past of the event, without the event itself."""
    who, number = run.resolve(target)
    known = {**run.clock(who, number).wire(), who: number - 1}
    stands = {}

    def look(there):
        stands.update({name: part.actor.number for name, part in there.runners.items()})
        assert (there.incarnation, there.number) == (who, number)
        assert there.event is not None

    report = replay_until(run, who, number, look)
    assert stands == {name: known.get(name, 0) for name in stands}
    assert set(stands) == {name for name, count in known.items() if count}
    assert not report.divergences


def test_targets_are_events_merges_and_steps(run):
    """Each is found, and what is not there is said in one line."""
    assert run.resolve("syncer.1:9") == ("syncer.1", 9)
    merge = run.merge(124)
    assert run.resolve("merge:124") == ("syncer.1", merge.number)
    who, number = run.resolve("step:learner-2:7")
    step = run.at(who, number)
    assert (who, step.event.step) == ("learner-2.1", 7)
    for target in ("merge:41", "step:learner-2:99999", "step:x", "syncer.1:999999", "hello"):
        with pytest.raises(ConfigError):
            run.resolve(target)


def test_arrays_are_those_that_the_merge_made(run):
    """A syncer's theta after a merge has the digest that the tape says."""
    merge = run.merge(40)
    at = ddloco.open(run.path).at(merge.event)
    theta = at.array(f"theta/{merge.fragment}/40")["array"]
    assert theta.dtype == np.float32
    assert np.isfinite(theta).all()
    with pytest.raises(ConfigError, match="no array 'theta/0/9999'"):
        at.array("theta/0/9999")


def test_the_command_shows_where_all_actors_stand(call):
    """Plain, as JSON, and with what is at hand."""
    code, out, _ = call("--until", "merge:40")
    assert code == 0
    assert "stopped before syncer.1:" in out
    assert "arrays of syncer.1: " in out
    code, out, _ = call("--until", "merge:40", "--json")
    assert json.loads(out)["status"]["merges"] == 9
    assert call("--shell")[0] == 2
    assert call("--until", "nonsense")[0] == 2


@pytest.mark.parametrize(
    ("option", "typed"),
    [
        ("--shell", "print(status['merges'])\n"),
        ("--shell", "print(status['merges'])\nexit()\n"),
        ("--shell", "print(status['merges'])\nraise SystemExit(3)\n"),
        ("--pdb", "p status['merges']\nq\n"),
    ],
)
def test_machine_status_and_arrays_are_at_hand(call, monkeypatch, option, typed):
    """A prompt or a debugger, in the middle of the replay."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    code, out, _ = call("--until", "merge:40", option)
    assert code == 0
    assert "\n9\n" in out or " 9\n" in out


def change_batches(monkeypatch, learners, first=20):
    """Let these learners' batches differ from a step on, as an unseeded generator would."""
    run_step = SimulatedWork._run_step

    def planted(labour, work, contents):
        done = run_step(labour, work, contents)
        if work.step >= first and labour._name in learners:
            return structs.replace(done, batch=bytes(15) + b"\xee")
        return done

    monkeypatch.setattr(SimulatedWork, "_run_step", planted)


def concurrent(run, step, one, other):
    """Whether neither learner knew of the other's event when it finished this inner step."""
    (_, a), (_, b) = (run.resolve(f"step:{who}:{step}") for who in (one, other))
    return run.clock(one, a).wire().get(other, 0) < b and run.clock(other, b).wire().get(one, 0) < a


def test_three_replays_of_one_bug_name_the_same_events(folder, monkeypatch):
    """All differences that follow from no other one are found, in one order."""
    run, pair = open_job(folder), ("learner-0.1", "learner-2.1")
    first = next(step for step in range(2, 60) if concurrent(run, step, *pair))
    change_batches(monkeypatch, set(pair), first)
    found = []
    for _ in range(3):
        report = trio.run(replay_of(folder).run)
        found.append([(each.actor, each.number, each.hint) for each in report.divergences])
        assert not report.identical
    assert found[0] == found[1] == found[2]
    assert {actor for actor, _, _ in found[0]} == {"learner-0.1", "learner-2.1"}
    assert all("the data differs" in hint for _, _, hint in found[0])
    for actor, number, _ in found[0]:
        assert run.at(actor, number).event.step == first


def test_what_depends_on_a_difference_is_no_difference(folder, monkeypatch):
    """One learner's bug is one finding, though all other actors depend on it."""
    change_batches(monkeypatch, {"learner-0.1"})
    report = trio.run(replay_of(folder).run)
    assert [each.actor for each in report.divergences] == ["learner-0.1"]
    assert "syncer.1" in report.dependent


def test_a_replay_that_parts_before_the_target_says_so(folder, monkeypatch, call):
    """The first difference, instead of a state that never was."""
    change_batches(monkeypatch, {"learner-0.1"})
    code, out, _ = call("--until", "merge:124")
    assert code == 1
    assert out.startswith("DIFFERENT DATA: the batch of inner step "), out


def test_a_crash_of_a_machine_is_said_with_its_traceback(simulate, monkeypatch):
    """The replay raises as the run did, and shows where."""
    merged = Rounds.merged

    def crashing(rounds, at, event, job):
        if rounds.merges == 5:
            raise ValueError("a bug that was planted")
        return merged(rounds, at, event, job)

    monkeypatch.setattr(Rounds, "merged", crashing)
    folder = simulate("job.steps=96")
    report = trio.run(replay_of(folder).run)
    [note] = [each for each in report.notes if "a bug that was planted" in each]
    assert "handling this event raised, as it did then" in note
    assert "in crashing" in note
