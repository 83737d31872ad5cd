"""The merges of a recorded run: what held their launches, who was in them, who was not and why."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddloco.debugger.merge_history import wait_of
from ddloco.machines.syncer.pacing import NextSync
from ddloco.stage.files.run_folder import LOG_FILE
from replay import Divergence, Stepper

times = st.floats(0, 1000)


def logged(folder):
    """The merges that the live log told, by global step."""
    lines = [json.loads(line) for line in (folder / LOG_FILE).read_text().splitlines()]
    return {line["t"]: line for line in lines if line["event"] == "merge"}


def test_every_merge_of_the_log_is_found_with_its_learners_and_weights(run, folder):
    """Every merge of the log is found with its learners and weights."""
    merges, told = list(run.merges()), logged(folder)
    assert [each.t for each in merges] == list(told)
    for merge in merges:
        line = told[merge.t]
        assert merge.fragment == line["fragment"]
        assert [each.learner for each in merge.contributions] == line["learners"]
        weights = [round(each.weight, 6) for each in merge.contributions]
        assert weights == line["weights"]
        assert sum(each.weight for each in merge.contributions) == pytest.approx(1.0)


def test_a_walk_that_ended_early_is_never_taken_for_the_whole_tape(run, monkeypatch):
    """Whoever asks for more merges is told what is wrong, each time."""
    steps = Stepper.steps

    def until_an_error(stepper, until=None):
        yield from islice(steps(stepper, until), 300)
        raise Divergence("syncer.1", 301, "effects", "", "", {})

    monkeypatch.setattr(Stepper, "steps", until_an_error)
    found = []
    for _ in range(2):
        with pytest.raises(Divergence):
            found += run.merges()
        with pytest.raises(Divergence):
            run.merge(239)
    assert found


def test_each_learner_of_the_job_is_in_a_merge_or_absent_with_a_reason(run):
    """Each learner of the job is in a merge or absent with a reason."""
    names = set(run.job.learner_names())
    for merge in run.merges():
        took = {each.learner.partition(".")[0] for each in merge.contributions}
        lacked = {each.learner.partition(".")[0] for each in merge.absent}
        assert took | lacked == names
        assert not took & lacked
        assert all(each.reason for each in merge.absent)


def test_a_killed_learner_is_absent_because_it_is_not_connected(run):
    """A killed learner is absent because it is not connected."""
    away = [each for merge in run.merges() for each in merge.absent if each.learner == "learner-1"]
    assert away
    assert all(each.reason.startswith("not connected: ") for each in away)


def test_the_parts_of_a_wait_add_up_to_the_time_from_the_free_slot_to_the_launch(run):
    """The parts of a wait add up to the time from the free slot to the launch."""
    for merge in run.merges():
        wait = merge.wait
        parts = (wait.floor_s, wait.quorum_s, wait.grace_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(wait.total_s)


@given(since=times, floor=times, quorum=times | st.none(), grace=times, late=times)
def test_a_wait_is_split_without_rest(since, floor, quorum, grace, late):
    """A wait is split without rest."""
    launched_at = since + late
    found = wait_of(NextSync(1, 0, 1, since, floor, quorum, grace), launched_at)
    parts = (found.floor_s, found.quorum_s, found.grace_s)
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(found.total_s)


def test_what_held_a_launch_is_named_in_order():
    """What held a launch is named in order."""
    waited = NextSync(4, 0, 2, since=8.0, floor_at=10.0, quorum_at=11.5, grace_s=1.0)
    found = wait_of(waited, 12.0)
    assert (found.total_s, found.floor_s, found.quorum_s, found.grace_s) == (4.0, 2.0, 1.5, 0.5)


def test_contributions_name_the_event_at_which_they_arrived(run):
    """Contributions name the event at which they arrived."""
    for merge in run.merges():
        for each in merge.contributions:
            step = run.at("syncer.1", int(each.event.partition(":")[2]))
            assert step.event.peer == each.learner
            assert (step.event.body.t, step.event.body.base) == (merge.t, each.base)
        if merge.t > 40:
            break


def test_who_was_merged_from_the_version_that_it_still_holds_is_told_which_merge_has_its_tokens(
    simulate, opened
):
    """A learner that is slower than the interval holds a version whose tokens are merged."""
    run = opened(simulate("learner.learner-3.factor=40.0", "sync.staleness=100"))
    reasons = {each.reason for merge in run.merges() for each in merge.absent}
    assert any("whose tokens merge" in reason for reason in reasons), reasons
