"""Chaos in a real job: processes are killed, stopped, slowed and cut off, and the run replays."""

import signal
import subprocess
import time
from contextlib import ExitStack

import pytest

from tests.processes.actors import Actors, Relay

FAULTS = """
seed = 11
fault = [
    {what = "crash", who = "learner-1", at_s = 0.8, for_s = 0.1},
    {what = "delay", who = "learner-0", at_s = 1.0, for_s = 2.0, delay_s = 0.02},
    {what = "stall", who = "learner-2", at_s = 1.2, for_s = 0.5},
    {what = "slow", who = "learner-0", at_s = 1.5, for_s = 1.0, factor = 3.0},
    {what = "cut", who = "learner-2", at_s = 2.0, for_s = 0.5},
    {what = "stall", who = "syncer", at_s = 2.8, for_s = 0.2},
    {what = "crash", who = "syncer", at_s = 6.0, for_s = 0.2},
]
"""


def processes_of(folder):
    """The processes that have a run folder on their command line."""
    command = ["pgrep", "-f", str(folder)]
    found = subprocess.run(command, text=True, capture_output=True, check=False)
    return found.stdout.split()


def wait_until(condition, seconds=180.0):
    """Look now and then until it is so."""
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"not so within {seconds} s")


@pytest.mark.slow
def test_a_job_survives_and_replays(job, tools):
    """Crashed and returned, stalled, slowed, cut, delayed: exit 0, all told, all replayed."""
    chaos = job.file.with_name("chaos.toml")
    chaos.write_text(FAULTS)

    def healed():
        """Every fault is over, and the learner that came back takes part."""
        log = job.log()
        back = (line["learners"] for line in log if line["event"] == "merge")
        over = sum(line["event"] == "fault ended" for line in log) == FAULTS.count("what")
        again = sum(line["event"] == "merge" and "syncer.2:" in line["ref"] for line in log)
        return over and again > 3 and any("learner-1.2" in learners for learners in back)

    slower = ("--set=job.steps=100000", "--set=task.step_s=0.05")  # Fewer steps to replay.
    running = job.start("--processes", f"--chaos={chaos}", "--set=job.learners=3", *slower)
    wait_until(healed)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=180)
    replayed = tools.replay(job.run_folder)

    assert running.returncode == 0, said
    assert "chaos: 2 crash, 1 cut, 1 delay, 1 slow, 2 stall" in said
    assert "failed" not in said
    assert "held-out loss" in said
    applied = [(line["what"], line["who"]) for line in job.log() if line["event"] == "fault"]
    assert applied == [
        ("crash", "learner-1"),
        ("delay", "learner-0"),
        ("stall", "learner-2"),
        ("slow", "learner-0"),
        ("cut", "learner-2"),
        ("stall", "syncer"),
        ("crash", "syncer"),
    ]
    assert processes_of(job.run_folder) == []
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout
    assert "learner-1.1: the tape ends after event" in replayed.stdout
    assert "syncer.1: the tape ends after event" in replayed.stdout
    # On a busy machine the syncer may die before it has merged anything.
    merged = any(line["event"] == "merge" and "syncer.1:" in line["ref"] for line in job.log())
    assert any(line["event"] == "recovered" for line in job.log()) or not merged


def test_the_last_learner_of_all_ends_the_job(job):
    """With all learners crashed for good the syncer ends in good order; that is no success."""
    chaos = job.file.with_name("chaos.toml")
    chaos.write_text(
        "".join(f"[[fault]]\nwhat = 'crash'\nwho = 'learner-{i}'\nat_s = {i}\n" for i in range(2))
    )
    many = ("--set=job.steps=100000", "--set=job.learners=2")
    ran = job.run("--processes", f"--chaos={chaos}", *many)

    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "of 100000: no learner is left" in ran.stderr
    assert "chaos: 2 crash" in ran.stdout
    assert "failed" not in ran.stdout
    assert processes_of(job.run_folder) == []


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("", ("--schedule=x",), "--chaos {chaos}: with --schedule faults are those of the tapes"),
        ("", (), "--chaos {chaos}: applies to processes; add --processes"),
        ("seed = 1.5", ("--processes",), "{chaos}: seed: Expected `int`, got `float`"),
        ("[[fault]]\nwhat = 'crash'", ("--processes",), "{chaos}: fault[0]: missing key `who`"),
        (
            "[[fault]]\nwhat = 'crash'\nwho = 'syncer'",
            ("--processes", "--set=job.method=data-parallel"),
            "{chaos}: fault[0]: crash of syncer: data-parallel",
        ),
        (
            "[[storm]]\nwhat = ['cut']\nwho = ['learner-3']\nevery_s = 1",
            ("--processes",),
            "{chaos}: storm[0]: cut of learner-3: no such actor",
        ),
    ],
)
def test_what_is_refused(job, text, more, said):
    """Chaos that cannot happen is refused in one line, before anything is written."""
    chaos = job.file.with_name("chaos.toml")
    chaos.write_text(text)
    ended = job.run(f"--chaos={chaos}", *more)

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"ddloco: {said.format(chaos=chaos)}")
    assert len(ended.stderr.splitlines()) == 1
    assert not job.run_folder.exists()


def test_a_job_file_with_chaos_wants_processes(job):
    """A job file that carries its own faults is refused like the option, by its name."""
    job.file.write_text(
        job.file.read_text() + "[[chaos.fault]]\nwhat = 'stall'\nwho = 'learner-0'\n"
    )
    ended = job.run()

    assert ended.returncode == 2
    assert ended.stderr.startswith(f"ddloco: {job.file}: chaos: applies to processes")


SETTINGS = ("job.learners=2", "job.steps=100000", "task.step_s=0.05")


def test_who_comes_back_takes_over_a_peers_state(job, tools):
    """With its moments, and where its own data continues; the donor steps on, and all replays."""
    with Actors(job, 1, SETTINGS, lambda _: {}) as actors:
        for name in ("syncer", "learner-0", "learner-1"):
            actors.start(name)

        def all_merged():
            """There is a state to take over, and a learner that has it."""
            merges = job.merges()
            names = {name for merge in merges for name in merge["learners"]}
            return {0, 1, 2, 3} == {each["fragment"] for each in merges} and len(names) == 2

        actors.wait_until(all_merged, "all fragments are merged")
        actors.kill("learner-1")
        actors.again("learner-1")
        actors.wait_until(
            lambda: any("learner-1.2" in merge["learners"] for merge in job.merges()), "it is back"
        )
        assert {0} == set(actors.stop().values())
    replayed = tools.replay(job.run_folder)

    # A learner that starts when the other one has begun takes over its state as well.
    told = [line for line in job.log() if "learner-1.2" in {line.get("learner"), who(line)}]
    (named,) = [line for line in told if line["event"] == "recovering"]
    (taken,) = [line for line in told if line["event"] == "state taken over"]
    steps = [line for line in job.log() if line["event"] == "step"]
    former = [line["step"] for line in steps if line["ref"].startswith("learner-1.1:")]
    assert (named["learner"], named["donor"]) == ("learner-1.2", taken["from"])
    assert taken["actor"] == "learner-1"
    assert 0 < taken["batches"] <= max(former) + 1  # The last one may have been under way.
    assert taken["copy"] in [s["step"] for s in steps if s["ref"].startswith(taken["from"])]
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout


def who(line):
    """The incarnation that logged a line."""
    return line.get("ref", "").rpartition(":")[0]


@pytest.mark.slow
def test_shards_go_on_without_each_other(job, tools):
    """Each is killed once and continues from what it kept; so does a learner whose link is cut; the
    model is whole, the run replays."""

    def merges_of(shard):
        return sum(merge["ref"].startswith(f"{shard}:") for merge in job.merges())

    with Actors(job, 2, SETTINGS, lambda _: {}) as actors, ExitStack() as stack:
        relay = stack.enter_context(Relay(list(actors.addresses.values())))
        actors.relays["learner-0"] = relay
        for name in ("syncer-0", "syncer-1", "learner-0", "learner-1"):
            actors.start(name)
        actors.wait_until(
            lambda: all(merges_of(f"syncer-{n}.1") > 1 for n in range(2)), "both shards merge"
        )
        for shard in ("syncer-1", "syncer-0"):
            actors.kill(shard)
            actors.again(shard)
            relay.hold()
            relay.lose()
            actors.wait_until(lambda who=shard: merges_of(f"{who}.2") > 3, f"{shard} merges again")
        assert {0} == set(actors.stop().values())
    replayed = tools.replay(job.run_folder)

    log = job.log()
    assert any(line["event"] == "result" for line in log)
    lost = [line for line in log if line["event"] == "syncer lost"]
    assert {"syncer-0", "syncer-1"} <= {line["syncer"] for line in lost}
    assert processes_of(job.run_folder) == []
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout


@pytest.mark.slow
def test_shards_in_one_process(job, tools):
    """Over inproc, too: every fragment merged by its own shard, the whole model scored."""
    ran = job.run("--set=job.syncers=3")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "held-out loss" in ran.stdout
    merges = [line for line in job.log() if line["event"] == "merge"]
    assert {0, 1, 2, 3} == {line["fragment"] for line in merges}
    assert all(line["actor"] == f"syncer-{line['fragment'] % 3}" for line in merges)
    replayed = tools.replay(job.run_folder)
    assert "identical" in replayed.stdout, replayed.stdout + replayed.stderr
