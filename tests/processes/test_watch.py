"""A replay that stops where something holds of a learner's state, and that state at an event."""

import json
import re

import pytest

from tests.processes.conftest import replay


def test_the_step_at_which_a_condition_holds(finished):
    """Of the optimizer's state; the command that it prints shows that state."""
    found = replay(finished.run_folder, "--watch", "learner-0 optimizer *count norm > 4")
    assert found.returncode == 0, found.stderr
    where = re.search(
        r"norm is 5 after inner step 5 \((learner-0\.1:\d+)\); before, it was 4", found.stdout
    )
    assert where, found.stdout
    assert f"--until {where[1]} --shell" in found.stdout
    there = replay(finished.run_folder, "--until", where[1], "--json")
    tensors = {each["name"]: each for each in json.loads(there.stdout)["tensors"]}
    [count] = [each for name, each in tensors.items() if name.endswith("count")]
    assert (count["norm"], count["shape"]) == (5.0, [])
    shown = replay(finished.run_folder, "--until", where[1]).stdout
    assert "state of its worker after the step that it was asked for last:" in shown
    assert re.search(r"optimizer:/\S*mu/\S+ +float32\[", shown), shown


def test_looking_changes_nothing(finished):
    """A replay of which each step is looked at is identical to its end."""
    found = replay(
        finished.run_folder, "--watch", "learner-1 update * norm >= 0", "--last", "--json"
    )
    assert found.returncode == 0, found.stdout
    told = json.loads(found.stdout)
    assert told["found"]["step"] == 2
    assert told["steps"] > 20


@pytest.mark.parametrize(
    ("condition", "code", "said"),
    [
        ("learner-0 * not-finite > 0", 1, "it never held, after "),
        ("learner-0 loss < 0", 1, "it never held, after "),
        ("learner-9 loss < 0", 2, "there is no learner learner-9; did you mean learner-"),
        ("learner-0 nothing norm > 0", 2, "the task has no tensor nothing"),
        ("learner-0 loss", 2, "want ACTOR "),
    ],
)
def test_what_never_holds_and_what_cannot(finished, condition, code, said):
    """In one line, with 1 or 2."""
    found = replay(finished.run_folder, "--watch", condition)
    assert found.returncode == code, found.stdout + found.stderr
    assert said in found.stdout + found.stderr


def test_options_that_do_not_go_together_are_refused(finished):
    """Before anything is replayed."""
    for options in (["--last"], ["--watch", "a loss > 1", "--until", "merge:1"]):
        assert replay(finished.run_folder, *options).returncode == 2
