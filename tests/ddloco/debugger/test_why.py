"""``ddloco why``: claims with their events, for people and as data, and what cannot be answered."""

import json
import shlex
from itertools import pairwise

import pytest

from ddloco.cli.debug import why
from ddloco.cli.parser import parser
from ddloco.debugger.causes import chain
from ddloco.debugger.loss_analysis import LossStep, find_break
from ddloco.debugger.merge_history import Absence, Merge, Wait
from ddloco.debugger.timeline import timeline
from ddloco.debugger.why import _undecided


@pytest.fixture
def ask(folder, capsys):
    """Asks about the run in this process: exit code, standard output, standard error."""

    def asked(line):
        code = why(parser().parse_args(["why", str(folder), *shlex.split(line)]))
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def test_a_merge_is_explained_with_its_wait_its_learners_and_who_was_not_in_it(ask):
    """A merge is explained with its wait its learners and who was not in it."""
    code, out, _ = ask("merge 124")
    assert code == 0
    assert "merge 124 (fragment 1) was done at syncer.1:" in out
    assert "launch floor" in out
    assert "grace window" in out
    assert "in it: learner-0.1 with weight" in out
    assert "not in it: learner-1: not connected: " in out


def test_json_has_the_same_as_data(ask):
    """Json has the same as data."""
    code, out, _ = ask("merge 124 --json")
    found = json.loads(out)
    assert code == 0
    assert found["t"] == 124
    assert {"total_s", "floor_s", "quorum_s", "grace_s"} == set(found["wait"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("merge 41", "no merge at global step 41; the nearest are 40 and 44"),
        ("merge 99999", "no merge at global step 99999; the nearest is 240"),
        ("absent bob 40", "'bob' is no learner of this job; it has learner-0"),
        ("event syncer", "'syncer' is no event; want INCARNATION:NUMBER"),
        ("event syncer.1:0", "the tape has events 1 to"),
        ("event syncer.9:4", "no tape of syncer.9; there are learner-0.1"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(ask, line, said):
    """What is not there is said in one line."""
    code, out, err = ask(line)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_an_absent_learner_is_explained_and_one_that_was_there_is_told_so(ask):
    """An absent learner is explained and one that was there is told so."""
    assert "without learner-1: not connected" in ask("absent learner-1 124")[1]
    assert "learner-0.1 is in merge 124" in ask("absent learner-0 124")[1]
    assert json.loads(ask("absent learner-1 124 --json")[1])["absent"] is True


def test_an_event_is_traced_across_actors_to_what_asked_for_it(ask, run):
    """An event is traced across actors to what asked for it."""
    merge = next(each for each in run.merges() if each.t == 124)
    links = chain(run, "syncer.1", merge.number, 40)
    assert links[0].what.startswith("a merge finished")
    assert {link.event.partition(":")[0] for link in links} > {"syncer.1"}
    for link, before in pairwise(links):
        assert link.before == before.event
    assert "asked for this work" in ask(f"event {merge.event}")[1]


def test_a_cause_is_always_in_the_causal_past_of_its_effect(run):
    """A cause is always in the causal past of its effect."""
    merge = next(each for each in run.merges() if each.t == 200)
    links = chain(run, "syncer.1", merge.number, 60)
    for link, before in pairwise(links):
        who, number = link.event.rsplit(":", 1)
        cause, at = before.event.rsplit(":", 1)
        assert run.clock(who, int(number)).wire()[cause] >= int(at)


def test_a_chain_ends_at_what_came_from_outside(run):
    """A chain ends at what came from outside."""
    links = chain(run, "learner-0.1", 1, 5)
    assert [link.because for link in links] == ["it came from outside"]


def steps(losses):
    return [LossStep(i + 1, i + 1, loss) for i, loss in enumerate(losses)]


FALLING = [5.0 - 0.01 * i for i in range(60)]


def test_a_falling_loss_has_no_break():
    """A falling loss has no break."""
    assert find_break(steps(FALLING)) is None


def test_one_hard_batch_is_no_break():
    """One hard batch is no break."""
    assert find_break(steps([*FALLING, 9.0, *FALLING[-5:]])) is None


@pytest.mark.parametrize("bad", [[9.0] * 5, [float("nan")], [float("inf"), 1.0]])
def test_a_loss_that_leaves_its_band_for_good_is_found_at_its_first_step(bad):
    """A loss that leaves its band for good is found at its first step."""
    at, usual = find_break(steps([*FALLING, *bad]))
    assert at.step == 61
    assert 4.3 < usual < 4.6


def test_with_two_voters_neither_is_blamed():
    """With two voters no learner is blamed."""
    absent = Absence("b.1", "its contribution was refused", "s.1:9", 1.0, -0.7)
    other = Absence("a.1", "its contribution was refused", "s.1:9", 1.0, -0.7)
    assert _undecided(merge_without(absent)) == []
    assert "cannot say which of the two is wrong" in _undecided(merge_without(absent, other))[0]


def merge_without(*absent):
    """A merge that refused these."""
    return Merge(
        4, 0, "s.1:9", 1.0, "s.1:5", 0.5, Wait(0, 0, 0, 0), 2, (), (), absent, 0.0, "", "", ""
    )


@pytest.mark.parametrize("depth", [0, -1])
def test_a_chain_of_no_causes_is_refused(ask, depth):
    """With what would be right."""
    code, out, err = ask(f"event syncer.1:40 --depth {depth}")
    assert (code, out) == (2, "")
    assert err == f"ddloco: --depth {depth}: want the number of causes to show, 1 or more\n"


def test_an_effect_is_never_shown_before_its_cause(run):
    """The times of a chain are on the axis of ``tape show``."""
    shown = {(e.actor, e.number): e.common_at for e in timeline(list(run.tapes.values()))}
    for number in range(300, run.tapes["syncer.1"].events, 97):
        links = chain(run, "syncer.1", number, 60)
        for link, before in pairwise(links):
            assert link.at >= before.at
        for link in links:
            who, _, n = link.event.rpartition(":")
            assert link.at == pytest.approx(shown[who, int(n)], abs=1e-6)
