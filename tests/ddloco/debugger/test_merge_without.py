"""A merge computed again without a contribution, against the same sums done here."""

import json
import math

import msgspec
import numpy as np
import pytest

import ddloco
from ddloco.cli.parser import parser
from ddloco.cli.replay import replay
from ddloco.debugger.merge_without import merge_without
from ddloco.debugger.stopped_replay import replay_until
from ddloco.machines.outer.merge import WeightedFragment, fragment_segments, merge_fragment
from ddloco.stage.files.toml import ConfigError

T = 124
LEFT_OUT = "learner-2"


@pytest.fixture(scope="module")
def arrays(folder):
    """The version before the merge, its state, and each contribution, from a stopped replay."""
    run = ddloco.open(folder).recorded
    merge = run.merge(T)
    found = {}

    def look(there):
        runner = there.runners["syncer.1"]
        work = runner.pending.executor.merge_of(T, runner.actor.under_way.values())
        found["theta"] = there.array(work.theta)["array"]
        found["state"] = there.array(work.state)
        found["shares"] = [(s.name, s.weight, there.array(s.handle)["array"]) for s in work.shares]
        found["plan"] = there.plan()

    replay_until(run, "syncer.1", merge.number, look)
    return found


def test_each_tensor_moves_as_far_as_the_same_sums_say(folder, arrays):
    """The merge is done here with the arrays of the replay, without going through a worker."""
    run = ddloco.open(folder)
    merge, told = run.merge(T), run.what_if(T, LEFT_OUT)
    plan, p = arrays["plan"], merge.fragment
    outer = run.recorded.job.outer

    def merged(shares):
        given = [WeightedFragment(n, w, a.view(np.uint8)) for n, w, a in shares]
        segments = fragment_segments(plan, p, outer)
        inputs = arrays["theta"], arrays["state"], given, segments
        return merge_fragment(*inputs, outer=outer).theta

    all_three = merged(arrays["shares"])
    rest = merged([each for each in arrays["shares"] if not each[0].startswith(LEFT_OUT)])
    start = 0
    by_name = {each.name: each for each in told.tensors}
    for leaf in plan.fragments[p]:
        part = slice(start, start + leaf.size)
        start += leaf.size
        moved = np.linalg.norm(rest[part].astype(float) - all_three[part].astype(float))
        update = np.linalg.norm(all_three[part].astype(float) - arrays["theta"][part].astype(float))
        each = by_name.pop(leaf.name)
        assert (each.difference, each.update) == (pytest.approx(moved), pytest.approx(update))
        assert each.relative == pytest.approx(moved / update)
        assert moved > 0
    assert not by_name
    assert told.whole.difference == pytest.approx(math.hypot(*(x.difference for x in told.tensors)))


def test_the_weights_are_those_of_the_recording_and_of_the_rest(run):
    """The recorded ones are on the tape; the others have the same ratios and add up to 1."""
    told = merge_without(run, T, [LEFT_OUT])
    recorded = {each.learner: each.weight for each in run.merge(T).contributions}
    assert (told.recorded.weights, told.without) == (recorded, ("learner-2.1",))
    rest = {name: weight for name, weight in recorded.items() if name != "learner-2.1"}
    assert told.changed.weights == pytest.approx(
        {name: weight / sum(rest.values()) for name, weight in rest.items()}
    )
    assert list(told.tensors) == sorted(told.tensors, key=lambda each: -each.relative)


@pytest.fixture
def call(folder, capsys):
    """Calls the command in this process: exit code, standard output, standard error."""

    def called(*words):
        code = replay(parser().parse_args(["replay", str(folder), *words]))
        said = capsys.readouterr()
        return code, said.out, said.err

    return called


def test_the_command_says_it_in_words_and_as_data(call, run):
    """The same findings as the interface in Python has."""
    code, out, _ = call("--until", f"merge:{T}", "--without", LEFT_OUT)
    assert code == 0
    assert f"merge {T} " in out
    assert "the whole: the merge moved it by" in out
    code, out, _ = call("--until", f"merge:{T}", "--without", LEFT_OUT, "--json")
    assert json.loads(out) == json.loads(msgspec.json.encode(merge_without(run, T, [LEFT_OUT])))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--until", "merge:124", "--without", "learner-9"], "has no contribution of learner-9"),
        (["--until", "syncer.1:300", "--without", "learner-2"], "wants --until merge:T"),
        (["--without", "learner-2"], "wants --until merge:T"),
        (
            ["--until", "merge:124", *(f"--without=learner-{n}" for n in (0, 2, 3))],
            "has no other contributions than",
        ),
    ],
)
def test_what_cannot_be_left_out_is_said_in_one_line(call, words, said):
    """With who is in the merge, or what the option wants."""
    code, out, complaint = call(*words)
    assert (code, out) == (2, "")
    assert said in complaint
    assert len(complaint.strip().splitlines()) == 1


def test_a_merge_that_does_not_come_out_as_recorded_is_refused(run, monkeypatch):
    """A difference to a result that never was would mean nothing."""
    merge = run.merge(T)
    monkeypatch.setattr(run, "merge", lambda _: msgspec.structs.replace(merge, theta="00"))
    with pytest.raises(ConfigError, match="its result is not the recorded one"):
        merge_without(run, T, [LEFT_OUT])


def test_a_merge_by_the_median_is_computed_again_by_the_median(simulate, opened):
    """Its recorded result is found again, and that of the two that are left differs."""
    words = "job.steps=48", "chaos.fault=[]", 'outer.merge="median"', "outer.average=[]"
    run = opened(simulate(*words))
    t = next(each.t for each in run.merges() if len(run.merge(each.t).contributions) > 2)
    name = run.merge(t).contributions[0].learner
    told = merge_without(run, t, [name])
    assert name not in told.changed.weights
    assert told.whole.difference > 0


def test_a_run_without_numbers_is_refused(simulate, opened):
    """Its merges have no values to compare."""
    run = opened(simulate("work.arithmetic=false", "job.steps=48", "chaos.fault=[]"))
    t = next(run.merges()).t
    with pytest.raises(ConfigError, match="simulated without numbers"):
        merge_without(run, t, [run.merge(t).contributions[0].learner])
