"""Runs that are not whole: continued from a cut, with tapes missing, damaged or bounded.

Every command that explains runs answers of what is there, names what is not first, and never fails
with a traceback.
"""

import io
import random
import shutil
from contextlib import redirect_stderr, redirect_stdout

import msgspec
import pytest

from ddloco.cli.parser import main
from ddloco.debugger.api import Run
from ddloco.debugger.cluster_status import cluster_at
from ddloco.debugger.recorded_job import open_job
from ddloco.simulation.experiment import run_case
from ddloco.simulation.scenario import cases_of
from ddloco.stage.files.toml import ConfigError
from replay import TapeError
from tests.ddloco.debugger.conftest import SCENARIO
from tests.ddloco.debugger.cuts import cut, opened_at

SEEDS = 1
SEEDS_SLOW = 20
ASKED = 8
"""Commands that each harmed run is asked; a whole one and one that is cut are asked all."""

CUTS = 16
"""Cuts of one run at which its merges are compared with those of the whole run."""

QUICK = ("job.steps=72", "scenario.checks=false")


def drawn(folder, seed):
    """A simulated run whose settings and faults are drawn at random; returns its folder."""
    rng = random.Random(f"explained {seed}")
    learners, fragments = rng.randint(1, 4), rng.choice((2, 3, 6))
    overrides = [
        *QUICK,
        f"scenario.seed={seed}",
        f"job.learners={learners}",
        f"job.syncers={rng.choice((1, 1, 2))}",
        f"sync.fragments={fragments}",
        f"sync.interval={fragments * rng.choice((2, 4))}",
        f"sync.overlap={rng.choice((1, 2, 3))}",
        f"sync.quorum={rng.randint(1, learners)}",
        f"sync.grace={rng.choice((0.0, 0.5, 0.9))}",
        f"sync.pull={rng.choice(('unmerged', 'fresh'))}",
        f"work.variance={rng.choice((0.0, 0.3, 0.8))}",
        f"work.arithmetic={str(rng.random() < 0.7).lower()}",
        "learner={}",
    ]
    if learners < 2 or rng.random() < 0.5:
        overrides.append("chaos.fault=[]")
    folder.mkdir()
    path = folder / "scenario.toml"
    path.write_text(SCENARIO.replace("at_s = 100.0", f"at_s = {rng.uniform(5, 40):.1f}"))
    [(case, scenario)] = cases_of(path, overrides)
    run_case(case, scenario, seed, folder / "run")
    return folder / "run"


def call(*words):
    """Call the command line in this process: exit code, standard output, standard error."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return end.value.code, out.getvalue(), err.getvalue()


def commands(folder, whole, scratch, rng):
    """Every command that explains a run, with questions about what the whole run has."""
    run = open_job(whole)
    merges = [merge.t for merge in run.merges()]
    events = [(who, rng.randint(1, each.events)) for who, each in run.tapes.items()]
    yield "why", folder, "loss"
    for t in {*rng.sample(merges, min(4, len(merges))), 1, 10**6}:
        yield "why", folder, "merge", t
        yield "why", folder, "absent", rng.choice(run.job.learner_names()), t
    for who, number in events:
        yield "why", folder, "event", f"{who}:{number}", "--depth", 40
        yield "status", folder, "--at", f"{who}:{number}"
    yield "diff", folder, whole
    yield "diff", whole, folder
    yield "report", folder, "--out", scratch / "report.html"
    yield "report", whole, "--compare", folder, "--out", scratch / "report.html"
    yield "tape", "verify", folder
    yield "tape", "show", folder
    for form in ("perfetto", "otlp", "shiviz", "jsonl"):
        yield "tape", "export", folder, f"--{form}"


def check(folder, whole, scratch, rng, gaps=(), asked=None):
    """Call every command: no traceback, one line where it cannot answer, gaps before the answer."""
    every = list(commands(folder, whole, scratch, rng))
    for words in rng.sample(every, asked) if asked is not None else every:
        code, out, err = call(*words)
        assert code in {0, 1, 2}, (words, err)
        assert "Traceback" not in out + err, (words, err)
        assert "decides otherwise" not in err, (words, err)
        if code == 2:
            assert err.count("\n") == 1, (words, err)
            assert err.startswith("ddloco: "), (words, err)
        elif words[0] in {"why", "diff", "report", "status"}:
            head = out.splitlines()[: 2 * len(gaps) + 8]
            for gap in gaps:
                assert any(line.endswith(gap) for line in head), (words, gap, out)
    ask_api(folder, rng)


def ask_api(folder, rng):
    """What Python offers answers as well, or says in one line what is not there."""
    run = answered(lambda: Run(folder))
    if run is None:
        return
    assert repr(run).startswith("<run ")
    for ask in (
        lambda: run.merges,
        lambda: run.steps(),
        lambda: run.gaps,
        lambda: run.frame("merges"),
        lambda: run.frame("contributions"),
        lambda: run.until(lambda at: at.number % 7 == 0),
        lambda: run.back_until(lambda at: at.number % 7 == 0),
    ):
        answered(ask)
    for who, each in run.recorded.tapes.items():
        if each.events > each.header.after:
            number = rng.randint(each.header.after + 1, each.events)
            at = answered(lambda: run.at(f"{who}:{number}"))  # noqa: B023, it is called at once
            for ask in ("causes", "state", "forward", "back"):
                if at is not None:
                    answered(getattr(at, ask))
            answered(lambda: at.cluster)  # noqa: B023


def answered(ask):
    """An answer, None if it says in one line that it cannot be given."""
    said = ""
    try:
        return ask()
    except (ConfigError, TapeError) as error:
        said = str(error)
    assert said
    assert "\n" not in said
    return None


def explained(seed, tmp_path, monkeypatch, harmed_max=None):
    """One random run: whole, without each of its tapes, with each damaged, and cut at random.
    ``harmed_max`` tapes are harmed, all by default."""
    rng = random.Random(seed)
    whole = drawn(tmp_path / "whole", seed)
    check(whole, whole, tmp_path, rng)
    tapes = sorted((whole / "tapes").iterdir())
    for tape in tapes[1:][:harmed_max]:
        harmed = tmp_path / "harmed"
        shutil.copytree(whole, harmed)
        place = harmed / "tapes" / tape.name
        data = place.read_bytes()
        place.unlink()
        check(harmed, whole, tmp_path, rng, [f"{tape.stem}: no tape"], ASKED)
        place.write_bytes(data[: rng.randrange(len(data) // 3, len(data))])
        check(harmed, whole, tmp_path, rng, asked=ASKED)
        at = rng.randrange(16, len(data))
        place.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        check(harmed, whole, tmp_path, rng, asked=ASKED)
        shutil.rmtree(harmed)
    run = open_job(whole)
    who = rng.choice(run.syncers)
    begun = cut(run, tmp_path / "cut", who, rng.randint(10, run.tapes[who].events - 1))
    with monkeypatch.context() as patch:
        opened_at(tmp_path / "cut", begun, patch)
        check(tmp_path / "cut", whole, tmp_path, rng)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_command_answers_of_what_is_there_of_a_run(seed, tmp_path, monkeypatch):
    """Random runs, whole and not, through every command and the Python interface."""
    explained(seed, tmp_path, monkeypatch, harmed_max=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS, SEEDS + SEEDS_SLOW))
def test_twenty_runs_through_every_command(seed, tmp_path, monkeypatch):
    """The same, twenty times."""
    explained(seed, tmp_path, monkeypatch)


def test_the_merges_of_a_run_that_continues_are_those_of_the_whole_run(run, tmp_path, monkeypatch):
    """Wherever it is cut: also with contributions that arrived before, and a merge under way."""
    whole = {merge.t: merge for merge in run.merges()}
    rng = random.Random(7)
    partly = 0
    for number in sorted(rng.sample(range(20, run.tapes["syncer.1"].events), CUTS)):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch:
            opened_at(folder, cut(run, folder, "syncer.1", number), patch)
            found = list(open_job(folder).merges())
        assert [each.t for each in found] == [
            t for t, each in whole.items() if each.number > number
        ]
        for each in found:
            partly += told_as(each, whole[each.t], number)
    assert partly


def told_as(merge, whole, number):
    """Compare a merge with that of the whole run; whether a part of it was before the cut."""
    assert (merge.event, merge.theta, merge.wait) == (whole.event, whole.theta, whole.wait)
    names = [each.learner for each in merge.contributions]
    assert names == [each.learner for each in whole.contributions]
    assert {each.learner for each in merge.absent} == {each.learner for each in whole.absent}
    before = False
    for one, other in zip(merge.contributions, whole.contributions, strict=True):
        assert (one.base, one.steps, one.weight) == (other.base, other.steps, other.weight)
        arrived = int(other.event.partition(":")[2]) > number
        assert (one.event, one.digest) == ((other.event, other.digest) if arrived else ("", ""))
        before = before or not arrived
    if int(whole.launched.partition(":")[2]) > number:
        assert merge.launched == whole.launched
    else:
        assert merge.launched == ""
    return before


def test_actors_are_shown_where_the_tapes_begin(run, tmp_path, monkeypatch):
    """``status --at`` the first event after a cut: everybody else is as at the cut."""
    begun = cut(run, tmp_path / "cut", "syncer.1", 150)
    opened_at(tmp_path / "cut", begun, monkeypatch)
    told, whole = (cluster_at(each, "syncer.1", 151) for each in (open_job(tmp_path / "cut"), run))
    assert (told.missing, told.learners) == ((), whole.learners)
    shown, expected = (
        [msgspec.structs.replace(syncer, tape_bytes=0) for syncer in each.syncers]
        for each in (told, whole)
    )
    assert shown == expected, "all but the size of the tape, of which a part was cut off"
    early = cluster_at(
        open_job(tmp_path / "cut"), "learner-0.1", begun.starts["learner-0.1"].part.number + 1
    )
    assert not [each for each in early.missing if each.endswith("no tape")]
