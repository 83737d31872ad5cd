"""A job whose fragments take longer than half a minute over its links: it merges all the same."""

import pytest

from ddloco.machines.syncer.accounts import LATE
from transport.link_state import STALL_S

CHAOS = """
[[fault]]
what = "bandwidth"
who = "learner-0"
at_s = 0.0
mbit = 2.0
for_s = 900.0

[[fault]]
what = "bandwidth"
who = "learner-1"
at_s = 0.0
mbit = 2.0
for_s = 900.0
"""

SETTINGS = (
    "job.task=tests.tasks:wide", "task.step_s=0.5", "job.steps=12", "job.learners=2",
    "sync.fragments=4", "sync.interval=12", "tape.ship=false",
)  # fmt: skip
PAIR_S = 32.0
"""Two messages of four megabytes at two megabits a second."""


@pytest.mark.slow
def test_fragments_that_take_half_a_minute_are_merged(job, tools, tmp_path):
    """Two messages take longer than a link waits for credit, one longer than a first deadline."""
    chaos = tmp_path / "chaos.toml"
    chaos.write_text(CHAOS)
    settings = (f"--set={each}" for each in SETTINGS)
    ended = tools.call(job.command("--processes", "--chaos", str(chaos), *settings))
    assert ended.returncode == 0, ended.stdout + ended.stderr

    log = job.log()
    merges = [line for line in log if line["event"] == "merge"]
    assert {0, 1, 2, 3} == {merge["fragment"] for merge in merges}
    assert PAIR_S > STALL_S, "or a link would not have noticed"
    # Which contribution comes before its sync is closed depends on the machine.
    come = [*merges, *(line for line in log if line.get("reason") == LATE)]
    whose = {name for line in come for name in line.get("learners", [line.get("learner")])}
    assert {"learner-0.1", "learner-1.1"} == whose
    lost = [line for line in log if line["event"] in ("lost", "syncer lost")]
    assert [] == [line for line in lost if "global step" not in line["reason"]]
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
