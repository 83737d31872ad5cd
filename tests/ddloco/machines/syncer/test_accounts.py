"""The numbers of a job, counted in one place: what they mean, and that every reader says them."""

import json
import math
import re

import pytest
from msgspec.structs import asdict

from ddloco.debugger.cluster_status import cluster_at
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.report_data import report_data
from ddloco.job.config import load_job
from ddloco.job.protocol.messages import Progress
from ddloco.job.protocol.status import Numbers
from ddloco.job.protocol.time_spent import TimeSpent
from ddloco.machines.syncer.accounts import DISREGARDED, LATE, PASSED, SPENT_S_MAX, Accounts
from ddloco.machines.syncer.membership import Membership
from ddloco.monitoring.live_display import Board
from ddloco.monitoring.log_metrics import LogMetrics
from ddloco.monitoring.metrics import Metrics, PrintedNotices
from ddloco.monitoring.status_view import header, time_in_words
from ddloco.simulation.before_after import outcome_of
from ddloco.stage.actors.effects import Observe
from ddloco.stage.observers.observer_protocol import News
from tests.ddloco.debugger.conftest import simulate

__all__ = ["simulate"]


def report(step, computing, tokens=0, **spent):
    """What a learner says after a step."""
    told = TimeSpent(computing=computing, **spent)
    return Progress(step, 1.0, (0,), (0,), (0,), trained=tokens, spent=told)


def told(accounts, at, live=1, quorum=1, merges=1, fragments=2):
    """The numbers."""
    return accounts.numbers(at, live=live, quorum=quorum, merges=merges, fragments=fragments)


def test_goodput_is_the_share_of_time_spent_computing():
    """Of the time of each learner since it first joined; the rest has names, or is time away."""
    accounts = Accounts()
    accounts.join(10.0, "learner-0.1")
    accounts.report("learner-0.1", report(0, 0.0))
    accounts.join(20.0, "learner-1.1")
    accounts.report("learner-1.1", report(0, 0.0))
    accounts.report("learner-0.1", report(4, 60.0, 32, compiling=10.0, data=5.0))
    accounts.report("learner-1.1", report(3, 45.0, 24, stopped=20.0))
    found = told(accounts, 110.0)

    assert (0.552632, 7, 56) == (found.goodput, found.inner_steps, found.trained_tokens)
    assert (105.0, 10.0, 5.0, 20.0) == (
        found.computing_s, found.compiling_s, found.data_s, found.stopped_s,
    )  # fmt: skip
    assert 50.0 == found.away_s
    assert time_in_words(found) == (
        "55.3% computing, 5.3% compiling, 2.6% waiting for data, 10.5% stopped, "
        "26.3% away or between reports"
    )


def test_only_merged_steps_are_good():
    """Before the first merge it is unknown; below the quorum nothing is merged."""
    accounts = Accounts()
    accounts.join(0.0, "learner-0.1")
    accounts.report("learner-0.1", report(0, 0.0))
    accounts.report("learner-0.1", report(1, 5.0))

    assert told(accounts, 10.0, merges=0).goodput is None
    assert told(accounts, 10.0, live=1, quorum=2).goodput == 0.0
    assert told(accounts, 10.0).goodput == 0.5


def test_the_lives_of_a_learner_add_up():
    """Time between them is time away. What it did before it joined a syncer that has started again
    is not counted twice; a link that was lost changes nothing."""
    accounts = Accounts()
    accounts.join(0.0, "learner-0.1")
    accounts.report("learner-0.1", report(100, 500.0))  # It had trained with the syncer before.
    accounts.report("learner-0.1", report(102, 502.0, 16))
    accounts.join(3.0, "learner-0.1")
    accounts.report("learner-0.1", report(103, 503.0, 24))
    accounts.join(8.0, "learner-0.2")
    accounts.report("learner-0.2", report(0, 0.0))
    accounts.report("learner-0.2", report(1, 1.0, 8))
    found = told(accounts, 10.0)

    assert (0.4, 4, 32, 6.0) == (
        found.goodput, found.inner_steps, found.trained_tokens, found.away_s,
    )  # fmt: skip
    assert list(accounts.newest) == ["learner-0.2"]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 2 * SPENT_S_MAX])
def test_what_cannot_be_is_not_believed(wrong):
    """A learner may report anything: the numbers stay numbers."""
    accounts = Accounts()
    accounts.join(0.0, "learner-0.1")
    accounts.report("learner-0.1", report(0, wrong, stopped=wrong))
    accounts.report("learner-0.1", report(2**62, wrong, 2**63 - 1, data=wrong))
    found = told(accounts, 10.0)

    assert 0.0 == found.goodput == found.data_s == found.stopped_s
    assert 10.0 == found.away_s


def test_refused_and_late_contributions_are_two_things():
    """One that is refused as late is counted when its sync is closed without it."""
    membership = Membership(2)
    membership.refuse("learner-0.1", 4, 0, "its norm is out of bounds")
    membership.refuse("learner-0.1", 4, 0, LATE)
    membership.accounts.merge(0, 7, late=2)
    membership.accounts.merge(1, 4)
    found = told(membership.accounts, 0.0)

    assert (1, 2, 5) == (found.refusals, found.late, found.merged_tokens)
    assert {"learner-0.1": 1} == membership.refused


class Kept:
    """A tracker."""

    def __init__(self):
        self.values = {}

    def gauge(self, name, value, t, **labels):
        """The newest value of a number of the job."""
        if not labels:
            self.values[name] = value

    def close(self):
        """The end."""


FAULTS = ("sync.band=1.05", "sync.grace=0.0", "network.jitter_s=6.0", "job.steps=72")


@pytest.mark.parametrize("overrides", [(), FAULTS], ids=["clean", "late"])
def test_every_reader_says_the_same_numbers(simulate, overrides):
    """To the last digit: machine, log, live display, trackers, status at an event, report and
    simulator."""
    folder = simulate(*overrides)
    run = open_job(folder)
    numbers = run.numbers
    assert 0.5 < numbers.goodput < 1.0
    assert numbers.inner_steps > 100
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    board, tracker = Board(load_job(folder / "job.toml")), Kept()
    tracked = LogMetrics(load_job(folder / "job.toml"), [tracker])
    for line in lines:
        board.take(line)
        tracked.take(line)
        if line["event"] == "result":
            break
    [result] = [line for line in lines if line["event"] == "result"]

    stepper = run.stepper("syncer.1")
    [number] = [
        step.number
        for step in stepper.steps()
        if any(isinstance(each, Observe) and each.event == "result" for each in step.effects)
    ]
    [status] = cluster_at(run, "syncer.1", number).syncers
    observer, follower, lines_of_text = Kept(), Kept(), []
    Metrics([observer]).status(status)
    notice = News(1, 0, "result", 1.0, "syncer.1:9", result)
    Metrics([follower]).news(notice)
    PrintedNotices(lines_of_text.append, as_json=False).news(notice)
    wanted = {**asdict(numbers), "live": status.live}
    assert wanted == {name: result[name] for name in wanted}
    assert wanted == asdict(board.numbers)
    assert wanted == {name: getattr(status, name) for name in wanted}
    assert wanted == {name: tracker.values[name] for name in wanted}
    assert wanted == {name: observer.values[name] for name in wanted}
    assert wanted == {name: follower.values[name] for name in wanted}
    assert f"goodput {numbers.goodput}" in lines_of_text[0]
    assert "computing_s" not in lines_of_text[0]
    assert f"goodput {numbers.goodput:.1%}" in board.line()
    assert f"goodput {numbers.goodput:.1%}" in header(status)

    [shown] = report_data(run).runs
    facts = {fact.label: fact for fact in shown.facts}
    assert facts["Goodput"].value == f"{numbers.goodput:.1%}"
    assert facts["Goodput"].note == time_in_words(numbers)
    assert facts["Inner steps"].value == f"{numbers.inner_steps:,}"
    said = f"{numbers.merged_tokens:,} of {numbers.trained_tokens:,} trained"
    assert facts["Tokens merged"].note.startswith(said)
    assert f"{numbers.refusals} refused, {numbers.late} late" in facts["Merges"].note
    outcome = outcome_of(folder, trust=True)
    assert (outcome.goodput, outcome.inner_steps, outcome.merged_tokens) == (
        numbers.goodput, numbers.inner_steps, numbers.merged_tokens,
    )  # fmt: skip
    assert set(Numbers.__struct_fields__) == set(wanted)


STOPPED_AT, STOPPED_FOR = 120.0, 20.0


def test_a_learner_that_was_stopped_is_shown_so(simulate):
    """For as long as it was, whoever is asked; a run without a stop shows none."""
    stop = f'{{what = "stall", who = "learner-2", at_s = {STOPPED_AT}, for_s = {STOPPED_FOR}}}'
    run = open_job(simulate(f"chaos.fault=[{stop}]"))
    clean = open_job(simulate("chaos.fault=[]"))

    assert abs(run.numbers.stopped_s - STOPPED_FOR) < 2.0
    assert clean.numbers.stopped_s == 0.0
    assert run.numbers.goodput < clean.numbers.goodput
    number = run.history("syncer.1").merges()
    last = [merge.number for merge in number][-1]
    [status] = cluster_at(run, "syncer.1", last).syncers
    stopped = {each.learner: each.stopped_s for each in status.members if each.stopped_s}
    assert list(stopped) == ["learner-2.1"]
    assert abs(stopped["learner-2.1"] - STOPPED_FOR) < 2.0
    lanes = {lane.actor: lane.segments[0].gaps for lane in report_data(run).runs[0].lanes}
    [gap] = [gap for gap in lanes["learner-2"] if gap.kind == "stopped"]
    assert re.match("stopped for (19|20|21)[0-9.]* s in inner step", gap.text)
    assert not [gap for actor in ("learner-0", "learner-3") for gap in lanes[actor]
                if gap.kind == "stopped"]  # fmt: skip
    quiet = [gap.kind for lane in report_data(clean).runs[0].lanes
             for segment in lane.segments for gap in segment.gaps]  # fmt: skip
    assert "stopped" not in quiet
    # The chart of goodput, too, has less than all computing while one of four is stopped.
    [shown] = report_data(run).runs
    span = shown.end * shown.unit_s
    bins = [
        share
        for i, share in enumerate(shown.goodput)
        if STOPPED_AT + 3 < (i + 0.5) * span / len(shown.goodput) < STOPPED_AT + STOPPED_FOR - 3
    ]
    assert bins
    assert max(bins) <= 0.75


def test_an_interval_has_the_steps_of_the_median_learner():
    """Between two merges of a fragment, on average; none before the second one."""
    accounts = Accounts()
    known = {"live": 3, "quorum": 1, "merges": 2, "fragments": 1}
    accounts.count_interval(8, {"a.1": 5, "b.1": 9, "c.1": 7}, 8)
    assert accounts.numbers(9.0, **known).interval_steps is None
    accounts.count_interval(16, {"a.1": 12, "b.1": 40, "c.1": 17, "d.1": 90}, 8)
    assert accounts.numbers(9.0, **known).interval_steps == 10
    accounts.count_interval(32, {"a.1": 32, "c.2": 1}, 8)  # One of them was repeated.
    assert accounts.numbers(9.0, **known).interval_steps == 10
    accounts.count_interval(40, {"e.1": 1}, 8)
    assert accounts.numbers(9.0, **known).interval_steps == 10


def test_a_learner_that_trains_and_is_never_merged_is_named():
    """After so many merges, once; it does not judge the job, and one merge ends it."""
    accounts = Accounts()
    told = [accounts.pass_by(["learner-0.1", "learner-1.1"]) for _ in range(PASSED - 1)]
    accounts.use("learner-1.1")
    told += [accounts.pass_by(["learner-0.1", "learner-1.1"]) for _ in range(9)]
    assert [each for each in told if each] == [["learner-0.1"]]
    said = f"was in 0 of 30 merges: it trained during {PASSED + 8} of them"
    assert accounts.disregarded(30) == {"learner-0": said}
    assert accounts.unused() == []
    accounts.use("learner-0.2")
    assert accounts.disregarded(31) == {}


def test_who_counts_tokens_otherwise_is_named_once():
    """When all have done some steps; the status names it from then on."""
    accounts = Accounts()
    for who, tokens in (("learner-0.1", 32), ("learner-1.1", 320), ("learner-2.1", 32)):
        accounts.report(who, Progress(4, 0.1, (0,), (0,), (0,), trained=4 * tokens))
    assert accounts.compare({}, ()) == ("", "")
    for who, tokens in (("learner-0.1", 32), ("learner-1.1", 320), ("learner-2.1", 32)):
        accounts.report(who, Progress(9, 0.1, (0,), (0,), (0,), trained=9 * tokens))
    said = "it counts 320 tokens a step, the others 32"
    assert accounts.compare({}, {"learner-1"}) == ("", ""), "the job file gives it batches"
    assert [accounts.compare({}, ()) for _ in range(2)] == [("learner-1.1", said), ("", "")]
    assert accounts.disregarded(9) == {"learner-1": said}


def test_whose_batches_have_another_shape_is_named_once():
    """When all have done some steps, and unless the job file says so."""
    accounts, shapes = Accounts(), {f"learner-{n}.1": "8x9 int32" for n in range(3)}
    shapes["learner-2.1"] = "16x9 int32"
    for who in shapes:
        accounts.report(who, Progress(9, 0.1, (0,), (0,), (0,), trained=288))
    said = "its batches are 16x9 int32, those of the others 8x9 int32"
    assert accounts.compare(shapes, {"learner-2"}) == ("", "")
    assert [accounts.compare(shapes, ()) for _ in range(2)] == [("learner-2.1", said), ("", "")]
    assert accounts.disregarded(9) == {"learner-2": said}


def test_a_learner_whose_work_is_of_no_use_is_named():
    """Five refusals in a row, or lateness without ever being merged; one merge ends the row."""
    accounts = Accounts()
    for _ in range(DISREGARDED - 1):
        assert not accounts.refuse("learner-0.1", "norm 9").is_new
        accounts.refuse("learner-1.1", LATE)
    accounts.use("learner-2.1")
    assert accounts.disregarded(7) == {}
    assert accounts.refuse("learner-0.2", "norm 10").is_new
    accounts.refuse("learner-1.1", LATE)
    assert accounts.disregarded(7) == {
        "learner-0": "was in 0 of 7 merges: refused 5 times, because norm 10",
        "learner-1": "was in 0 of 7 merges: late 5 times",
    }
    accounts.use("learner-0.2")
    accounts.use("learner-1.1")
    assert accounts.disregarded(9) == {}
    told = [accounts.refuse("learner-0.2", "norm 9").is_new for _ in range(4 * DISREGARDED)]
    assert [n + 1 for n, new in enumerate(told) if new] == [5, 10, 20]
