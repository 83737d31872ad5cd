"""The fault language: what a file may say, and what is drawn from it."""

import tomllib

import msgspec
import pytest

from ddloco.job.config import job_from, load_job
from ddloco.stage.files.faults import (
    FAULTS_MAX,
    LINK_KINDS,
    Fault,
    Faults,
    Storm,
    impossible,
    schedule,
)
from ddloco.stage.files.toml import ConfigError, convert

NAMES = ("learner-0", "learner-1", "learner-2")
GUSTS = Storm(what=("stall", "cut"), every_s=2.0, for_s=1.5)


def storms(*several, seed=3):
    """Faults of storms alone."""
    return Faults(seed=seed, storm=several)


def test_schedule_is_a_pure_function():
    """The same file, names and end give the same faults; each of the three matters."""
    drawn = schedule(storms(GUSTS), NAMES, until_s=100.0)

    assert drawn == schedule(storms(GUSTS), NAMES, until_s=100.0)
    assert drawn != schedule(storms(GUSTS, seed=4), NAMES, until_s=100.0)
    assert drawn != schedule(storms(GUSTS), (*NAMES, "learner-3"), until_s=100.0)
    longer = schedule(storms(GUSTS), NAMES, until_s=200.0)
    assert drawn == longer[: len(drawn)]
    assert len(drawn) < len(longer)


def test_schedule_is_in_order_of_time():
    """Single faults and those of storms come sorted; those after the end do not come."""
    single = (Fault("crash", "learner-1", at_s=90.0), Fault("stall", "learner-0", at_s=5.0))
    late = Fault("stall", "learner-0", at_s=101.0)
    drawn = schedule(Faults(fault=(*single, late), storm=(GUSTS,)), NAMES, until_s=100.0)

    assert [each.at_s for each in drawn] == sorted(each.at_s for each in drawn)
    assert set(single) <= set(drawn)
    assert late not in drawn


def test_faults_of_one_time_keep_the_order_of_the_file():
    """What is written first happens first."""
    both = (Fault("stall", "learner-1", at_s=5.0), Fault("crash", "learner-0", at_s=5.0))

    assert both == schedule(Faults(fault=both), NAMES, until_s=10.0)


def test_a_storm_keeps_its_mean_rate_and_duration():
    """Over a long time a storm brings one fault per ``every_s``, and they last ``for_s``."""
    drawn = schedule(storms(GUSTS), NAMES, until_s=20_000.0)

    assert 9_500 < len(drawn) < 10_500
    assert 1.4 < sum(each.for_s for each in drawn) / len(drawn) < 1.6
    for who in NAMES:
        assert 0.3 < sum(each.who == who for each in drawn) / len(drawn) < 0.37
    assert 0.47 < sum(each.what == "cut" for each in drawn) / len(drawn) < 0.53


def test_a_storm_keeps_within_its_times():
    """Nothing before ``from_s``, nothing after ``until_s``, and something in between."""
    storm = msgspec.structs.replace(GUSTS, from_s=30.0, until_s=60.0)
    drawn = schedule(storms(storm), NAMES, until_s=100.0)

    assert drawn
    assert all(30.0 < each.at_s < 60.0 for each in drawn)


def test_another_storm_changes_nothing_in_the_first():
    """Each storm has a stream of its own; two equal storms are not the same faults."""
    alone = schedule(storms(GUSTS), NAMES, until_s=100.0)
    other = Storm(what=("slow",), every_s=1.0)
    joined = schedule(storms(GUSTS, other), NAMES, until_s=100.0)
    twice = schedule(storms(GUSTS, GUSTS), NAMES, until_s=100.0)

    assert alone == tuple(each for each in joined if each.what != "slow")
    assert len(set(twice)) == len(twice) > len(alone)


def test_a_storm_hands_its_measures_on():
    """Factor, delay, rate and direction are those of the storm."""
    storm = Storm(("bandwidth",), 1.0, factor=7.0, delay_s=0.3, mbit=2.0, direction="to-syncer")
    first = schedule(storms(storm), NAMES, until_s=100.0)[0]

    assert (first.factor, first.delay_s, first.mbit) == (7.0, 0.3, 2.0)
    assert first.direction == "to-syncer"


def test_a_storm_that_never_ends_is_refused():
    """More faults than ``FAULTS_MAX`` are refused as a mistake."""
    with pytest.raises(ConfigError, match=f"every_s: 1e-06 gives over {FAULTS_MAX} faults"):
        schedule(storms(Storm(("stall",), 1e-6)), NAMES, until_s=100.0)


@pytest.mark.parametrize("what", ["slow", "leave", "join", *LINK_KINDS])
def test_what_cannot_happen_to_the_syncer(what):
    """The syncer can crash and stall; everything else is a learner's or a link's."""
    problem = f"{what} of syncer: applies to a learner or its link"

    assert f"fault[0]: {problem}" in impossible(Faults(fault=(Fault(what, "syncer"),)), NAMES)
    gusts = Storm(("stall", what), 1.0, who=("learners", "syncer"))
    assert f"storm[0]: {problem}" in impossible(storms(gusts), NAMES)


@pytest.mark.parametrize("what", ["crash", "stall", "slow", "leave", "join", *LINK_KINDS])
def test_a_fault_of_no_actor_is_refused(what):
    """An actor that the job does not have is named, with those that it has."""
    faults = Faults(fault=(Fault(what, "learner-0"), Fault(what, "learner-7")))

    said = f"fault[1]: {what} of learner-7: no such actor; this job has syncer, learner-0 to"
    assert impossible(faults, NAMES).startswith(said)
    assert impossible(storms(Storm((what,), 1.0, who=("learner-7",))), NAMES)


@pytest.mark.parametrize("what", ["crash", "stall"])
def test_what_is_possible(what):
    """Learners can suffer everything, the syncer these two."""
    assert impossible(Faults(fault=(Fault(what, "syncer"), Fault("cut", NAMES[0]))), NAMES) is None
    assert impossible(storms(Storm((what,), 1.0, who=("learners", "syncer"))), NAMES) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[fault]]\nwho = 'learner-0'", "fault[0]: missing key `what`"),
        ("[[fault]]\nwhat = 'crash'", "fault[0]: missing key `who`"),
        ("[[fault]]\nwhat = 'explode'\nwho = 'a'", "fault[0].what: Invalid enum value 'explode'"),
        ("[[fault]]\nwhat = 'cut'\nwho = 'a'\nat = 3", "fault[0]: unknown key `at`"),
        ("[[fault]]\nwhat = 'cut'\nwho = 'a'\nat_s = -1", "fault[0].at_s: Expected `float` >= 0"),
        ("[[fault]]\nwhat = 'cut'\nwho = 'a'\nat_s = nan", "at_s: nan: want a finite number"),
        ("[[fault]]\nwhat = 'cut'\nwho = 'a'\nfor_s = inf", "for_s: inf: want a finite number"),
        ("[[fault]]\nwhat = 'slow'\nwho = 'a'\nfactor = 0.5", "factor: Expected `float` >= 1"),
        ("[[fault]]\nwhat = 'cut'\nwho = 'a'\ndirection = 'up'", "fault[0].direction: Invalid"),
        ("[[fault]]\nwhat = 'bandwidth'\nwho = 'a'\nmbit = 0", "fault[0].mbit: Expected `float`"),
        ("[[storm]]\nwhat = []\nevery_s = 1", "storm[0].what: Expected `array` of length >= 1"),
        ("[[storm]]\nwhat = ['cut']", "storm[0]: missing key `every_s`"),
        ("[[storm]]\nwhat = ['cut']\nevery_s = 0", "storm[0].every_s: Expected `float` > 0"),
        ("[[storm]]\nwhat = ['cut']\nevery_s = inf", "storm[0].every_s: inf: want a finite number"),
        ("seed = -1", "seed: Expected `int` >= 0"),
        ("[fault]\nwhat = 'cut'", "fault: Expected `array`, got `object`"),
    ],
)
def test_bad_files(text, said):
    """What is wrong in a file of faults is named by its field."""
    with pytest.raises(ConfigError) as raised:
        convert(tomllib.loads(text), Faults, "chaos.toml")

    assert str(raised.value).startswith("chaos.toml: ")
    assert said in str(raised.value)


@pytest.fixture
def files(tmp_path):
    """A job file and a place for a file of faults."""
    (tmp_path / "job.toml").write_text(
        "[job]\ntask = 'x:y'\n[chaos]\nseed = 1\nfault = [{what = 'stall', who = 'learner-0'}]\n"
    )
    return tmp_path


def test_a_file_replaces_the_job_s_own(files):
    """The whole table is the file's; what the command line says comes on top."""
    (files / "chaos.toml").write_text("seed = 5\n[[fault]]\nwhat = 'cut'\nwho = 'learner-1'\n")
    job = load_job(files / "job.toml", (), files / "chaos.toml")
    seeded = load_job(files / "job.toml", ["chaos.seed=9"], files / "chaos.toml")

    assert job.chaos == Faults(seed=5, fault=(Fault("cut", "learner-1"),))
    assert seeded.chaos == Faults(seed=9, fault=(Fault("cut", "learner-1"),))
    assert len({job.id, seeded.id, load_job(files / "job.toml").id}) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("seed = 'x'", "chaos.toml: seed: Expected `int`"),
        ("seed = ", "chaos.toml: not TOML"),
        ("[[fault]]\nwhat = 'cut'\nwho = 'learner-9'", "chaos.toml: fault[0]: cut of learner-9"),
    ],
)
def test_a_bad_file_is_named(files, text, said):
    """Not the job file, which is right, but the file that is wrong."""
    (files / "chaos.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_job(files / "job.toml", (), files / "chaos.toml")

    assert said in str(raised.value)


def test_faults_survive_the_resolved_job():
    """What is written into job.toml and into tapes reads back as the same faults."""
    fault, storm = {"what": "crash", "who": "learner-0"}, {"what": ["cut"], "every_s": 2}
    chaos = {"fault": [fault], "storm": [storm]}
    job = job_from({"job": {"task": "x:y"}, "chaos": chaos}, "test")

    assert job_from(job.as_plain(), "again") == job
