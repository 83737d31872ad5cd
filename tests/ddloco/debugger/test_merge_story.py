"""``ddloco story RUN merge:T`` and ``fragment:P``."""

from itertools import pairwise

import pytest

from ddloco.debugger.recorded_job import open_job
from ddloco.debugger.recorded_run import parse_event
from ddloco.debugger.story import story_of
from ddloco.job.protocol.work import RunStep
from ddloco.stage.files.toml import ConfigError


def test_a_merge_from_its_launch_to_its_versions(run):
    """Each contribution, who is not in it, the merge, and each learner that has its version."""
    for merge in list(run.merges())[4::9]:
        lines = story_of(run, f"merge:{merge.t}")
        said = "\n".join(each.text for each in lines)
        assert all(one.at <= other.at for one, other in pairwise(lines))
        for each in merge.contributions:
            assert f"the contribution of {each.learner} comes: " in said
        for each in merge.absent:
            assert f"without {each.learner}: {each.reason}" in said
        assert f"merge {merge.t} of fragment {merge.fragment} is launched" in said
        for each in lines:
            who, number = parse_event(each.event)
            assert 0 < number <= run.tapes[who].events


def test_when_a_version_is_installed(run):
    """Is the request of the step that did."""
    merge = list(run.merges())[10]
    installs = [each for each in story_of(run, f"merge:{merge.t}") if " installs " in each.text]
    assert len(installs) >= 3
    for each in installs:
        who, number = parse_event(each.event)
        [request] = [e for e in run.at(who, number).effects if isinstance(e, RunStep)]
        assert (merge.fragment, merge.t) in {(o.fragment, o.version) for o in request.overwrites}


def test_a_fragment_in_few_lines(run):
    """Merges in a row are one line, and all are in it."""
    for p in range(3):
        lines = story_of(run, f"fragment:{p}")
        merges = [each for each in run.merges() if each.fragment == p]
        assert len(lines) < 8
        counts = [int(each.text.split(" merges")[0].split()[-1]) for each in lines
                  if " merges, " in each.text]  # fmt: skip
        assert sum(counts) + sum(" merges, " not in each.text for each in lines) == len(merges)


def test_what_stands_out_is_a_line_of_its_own(simulate):
    """A standstill of a minute, which one merge of each fragment had to wait for."""
    stall = "chaos.fault=[{what='stall', who='learner-1', at_s=60.0, for_s=90.0}]"
    run = open_job(simulate("job.learners=3", stall, "sync.quorum=3", "learner={}"))
    said = [each.text for p in range(6) for each in story_of(run, f"fragment:{p}")]
    assert any(" after the one before, usually " in text for text in said)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("merge:41", "no merge at global step 41; the nearest are 40 and 44"),
        ("fragment:77", "no merge of a fragment 77; fragments 0 to 5 were merged"),
        ("merge:x", "no tape of merge:x; there are learner-0.1, "),
        ("message:bob", "'bob' is no event; want INCARNATION:NUMBER"),
        ("message:syncer.1:0", "the tape has events 1 to"),
        ("message:learner-9.1:4", "no tape of learner-9.1; there are "),
    ],
)
def test_what_is_not_there_is_named(run, what, said):
    """With what there is."""
    with pytest.raises(ConfigError, match=said):
        story_of(run, what)
