"""Scenario files: what they say, what cases override, and one line for what is wrong."""

import random

import pytest

from ddloco.simulation.chips import ChipPace
from ddloco.simulation.scenario import BUILT_IN, Lending, cases_of, find
from ddloco.stage.files.toml import ConfigError

PLAIN = """
[scenario]
name = "mine"
hours = 2
[job]
steps = 50
learners = 3
[sync]
fragments = 2
interval = 4
overlap = 2
[work]
step_s = 2.0
tensors = 4
[network]
mbit = 8
[learner]
learner-1 = { factor = 1.5 }
"""
CASES = """
[[case]]
name = "one"
set = { "sync.quorum" = 2 }
paper = { "chip goodput" = 90 }
[[case]]
name = "two"
set = { "job.learners" = 2, "work.variance" = 0.5 }
"""


@pytest.fixture
def write(tmp_path):
    """Writes a scenario file."""

    def written(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return written


def test_a_scenario_without_cases_is_one(write):
    """Named after itself; its job is that of a job file."""
    [(case, scenario)] = cases_of(write(PLAIN))
    job = scenario.resolved("here")
    assert ("mine", {}, {}) == (case.name, case.set, case.paper)
    assert (3, 2, 4) == (job.job.learners, job.sync.fragments, job.sync.interval)
    assert ("simulated:tensors", {"tensors": 4}) == (job.job.task, job.task)


def test_cases_vary_it_and_overrides_outweigh_them(write):
    """Each case its own keys, of the job or of the scenario; the command line's for all."""
    found = cases_of(write(PLAIN + CASES), ["sync.quorum=1", "work.step_s=3"])
    jobs = [scenario.resolved("here") for _, scenario in found]
    assert ["one", "two"] == [case.name for case, _ in found]
    assert ([1, 1], [3, 2]) == ([j.sync.quorum for j in jobs], [j.job.learners for j in jobs])
    assert [0.0, 0.5] == [scenario.work.variance for _, scenario in found]
    assert {3.0} == {scenario.work.step_s for _, scenario in found}
    assert {"chip goodput": 90} == found[0][0].paper


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("hours = 2", "hours = 0", "scenario.hours"),
        ("hours = 2", "hour = 2", "hour"),
        ("step_s = 2.0", "step_s = -1.0", "work.step_s"),
        ("tensors = 4", "tensors = 0", "work.tensors"),
        ("mbit = 8", 'mbit = "fast"', "network.mbit"),
        ("fragments = 2", "fragments = 9", "fragments"),
        ("learners = 3", "learners = 0", "learners"),
        ("[network]", "[networks]", "networks"),
        ('name = "mine"', "", "name"),
        ("[work]", "[work", ""),
        ("learner-1", "learner-7", "learner-7"),
        ('set = { "sync.quorum" = 2 }', 'set = { "sync.quorum" = 9 }', "quorum"),
        ('set = { "sync.quorum" = 2 }', 'set = { "sync.quorums" = 2 }', "quorums"),
        ("variance", "varying", "varying"),
    ],
)
def test_one_line_for_what_is_wrong(write, changed, to, said):
    """With the file's name, and where in it."""
    text = PLAIN + CASES
    assert changed in text
    path = write(text.replace(changed, to, 1))
    with pytest.raises(ConfigError) as caught:
        cases_of(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    """Neither read nor taken for a name; an unknown name lists those that are known."""
    with pytest.raises(ConfigError, match=r"nothing\.toml"):
        cases_of(find(str(tmp_path / "nothing.toml")))
    with pytest.raises(ConfigError, match="goodput, heterogeneous"):
        find("nothing")


@pytest.mark.parametrize("path", sorted(BUILT_IN.glob("*.toml")), ids=lambda path: path.stem)
def test_what_comes_with_the_package_can_be_used(path):
    """Every case of it makes a job, a world's physics and a schedule of faults."""
    assert path == find(path.stem)
    for _, scenario in cases_of(path):
        job = scenario.resolved("here")
        assert scenario.physics(job, 3).leaves
        faults = scenario.faults(job, 3, 1000.0)
        assert sorted(faults, key=lambda each: each.at_s) == list(faults)


def test_what_a_world_is_made_of(write):
    """Units: megabits on a link, megabytes of a fragment; factors of single learners."""
    text = PLAIN.replace("tensors = 4", "tensors = 4\nfragment_mb = 2.5\nencode_s = 0.5")
    [(_, scenario)] = cases_of(write(text))
    job = scenario.resolved("here")
    physics = scenario.physics(job, 5)
    assert (1e6, 2.5e6, 0.5, 5) == (
        physics.wire.bytes_per_s,
        physics.fragment_bytes,
        physics.costs.encode_s,
        physics.seed,
    )
    paces = [physics.pace(name, random.Random(0)).step_s for name in job.learner_names()]
    assert [2.0, 3.0, 2.0] == paces


def test_learners_of_chips(write):
    """Chips are shared evenly; the syncer has none."""
    [(_, scenario)] = cases_of(write(PLAIN + "[chips]\ntotal = 3072\n"))
    job = scenario.resolved("here")
    pace = scenario.pace(job)
    assert [True, False] == [
        isinstance(pace(name, random.Random(0)), ChipPace) for name in ("learner-1", "syncer")
    ]
    assert 4 == pace("learner-1", random.Random(0))._slices


def test_faults_are_drawn_for_each_seed(write):
    """The same for the same seed, others for another; lent learners come and go in between."""
    storm = '[[chaos.storm]]\nwhat = ["stall"]\nevery_s = 10.0\n'
    lent = "[lending]\nbase = 2\nwith_s = 30.0\nwithout_s = 20.0\n"
    [(_, scenario)] = cases_of(write(PLAIN + storm + lent))
    job = scenario.resolved("here")
    one, again, other = (scenario.faults(job, seed, 100.0) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert [20.0, 50.0, 100.0] == [fault.at_s for fault in one if fault.what in {"join", "leave"}]


def test_lending_begins_without():
    """The first ``base`` stay; the others join, leave for a while, and leave again."""
    faults = Lending(1, 10.0, 5.0).faults(["a", "b", "c"], 40.0)
    told = [(f.what, f.at_s, f.for_s) for f in faults if f.who == "b"]
    assert ("join", 5.0, None) == told[0]
    assert [("leave", 15.0, 5.0), ("leave", 30.0, 5.0), ("leave", 45.0, 5.0)] == told[1:]
    assert {"b", "c"} == {fault.who for fault in faults}
