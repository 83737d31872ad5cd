"""Learners and syncer of one host read each other's fragments where they lie, through any fault."""

import pytest

WIDE = ("--processes", "--set=job.task=tests.tasks:wide", "--set=sync.fragments=2")


def in_place(job):
    """Bytes that each actor did not send, because they were read where they lie."""
    lines = [line for line in job.log() if line["event"] == "traffic"]
    return {line["actor"]: line["sent_in_place_bytes"] for line in lines}


@pytest.mark.slow
def test_most_bytes_are_read_in_place_and_the_tapes_replay(job, tools):
    """In both directions; what is on tape is the same."""
    said = job.run(*WIDE, "--set=task.step_s=0.05")
    assert said.returncode == 0, said.stderr
    found = in_place(job)
    assert {"syncer", "learner-0", "learner-1"} == found.keys()
    sent = {e["actor"]: e["sent_bytes"] for e in job.log() if e["event"] == "traffic"}
    assert all(nbytes > sent[actor] / 4 for actor, nbytes in found.items()), (found, sent)
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "off",
    ["transport.shared_memory=false", 'chaos.fault=[{what="delay", who="learner-0", at_s=1}]'],
)
def test_it_can_be_switched_off_and_faults_of_links_need_bytes(job, off):
    """Then every byte goes through a socket."""
    said = job.run(*WIDE, "--set", off)
    assert said.returncode == 0, said.stderr
    assert {0} == set(in_place(job).values())


@pytest.mark.slow
@pytest.mark.parametrize("up", ["float32", "int4"])
def test_contributions_wait_in_a_file_where_memory_is_little(job, tools, up):
    """Only the first byte may stay in memory; merges are those of a replay, which has no limit."""
    more = "--set=transport.shared_memory=false", f"--set=compress.up={up}"
    said = job.run(*WIDE, *more, "--set=transport.memory_gb=1e-9")
    assert said.returncode == 0, said.stderr
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_a_killed_learner_comes_back_and_shares_again(job, tools):
    """Its successor is another process with memory of its own."""
    kills = 'chaos.fault=[{what="crash", who="learner-1", at_s=2.0, for_s=1.0}]'
    said = job.run(*WIDE, "--set=task.step_s=0.1", "--set=job.steps=120", "--set", kills)
    assert said.returncode == 0, said.stderr
    started = {line["ref"].split(":")[0] for line in job.log() if line["event"] == "step"}
    assert "learner-1.2" in started
    last = [line for line in job.log() if line["event"] == "traffic"]
    refs = {line["ref"].split(":")[0]: line["sent_in_place_bytes"] for line in last}
    assert refs["learner-1.2"] > 0
    replayed = tools.replay(job.run_folder)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
