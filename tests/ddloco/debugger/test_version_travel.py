"""How long versions travelled, and where the time of a run went."""

import json

from ddloco.cli.debug import why
from ddloco.cli.parser import parser
from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.version_travel import arrivals_of, travels_of
from ddloco.job.protocol.messages import GlobalFragment


def test_each_arrival_is_that_of_its_version(run):
    """After its merge, on the tape of the learner that it names; to each incarnation once."""
    found = arrivals_of(run)
    assert set(found) == {(each.fragment, each.t) for each in run.merges()}
    for version, arrivals in found.items():
        assert len({each.learner for each in arrivals}) == len(arrivals)
        for each in arrivals:
            _, event = run.event(*parse_event(each.event))
            assert isinstance(event.body, GlobalFragment)
            assert (event.body.fragment, event.body.version) == version
            assert 0 < each.after_s < 1.0


def test_who_was_away_makes_no_journey_longer(run):
    """What was merged while a learner was away for a minute comes when it is back, and is not
    counted."""
    travels = {each.learner: each for each in travels_of(run)}
    assert set(travels) == {f"learner-{n}" for n in range(4)}
    assert travels["learner-1"].versions < travels["learner-0"].versions
    assert travels["learner-1"].longest_s < 1.0


def test_a_slow_line_is_seen(simulate):
    """Of one learner, whose median is the longest."""
    slow = "{what='delay', who='learner-2', at_s=0.5, for_s=300.0, delay_s=0.2}"
    run = open_job(simulate("job.learners=3", f"chaos.fault=[{slow}]", "learner={}"))
    first, *others = travels_of(run)
    assert first.learner == "learner-2"
    assert first.median_s > 2 * max(each.median_s for each in others)


def test_where_the_time_went(folder, capsys):
    """Of all learners, of each, of merges and of versions; shares of a learner add up."""
    assert why(parser().parse_args(["why", str(folder), "time"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("all learners: ")
    assert sum(line.startswith("versions reached ") for line in lines) == 4
    assert why(parser().parse_args(["why", str(folder), "time", "--json"])) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"numbers", "learners", "held_back", "versions"} < set(told)
    assert [each["learner"] for each in told["versions"]] == [
        each.learner for each in travels_of(open_job(folder))
    ]
