"""A real job is observed while it runs, and its tapes are the same as without observers."""

import json
import signal
import subprocess
import time

import msgspec
import pytest

from ddloco.job.protocol.status import status_from


def looked_at(job):
    """The address of a job that has begun to merge."""
    job.wait_for("merge", 2)
    return (job.run_folder / "syncer.address").read_text()


def test_a_running_job_is_looked_at(job, tools, tmp_path):
    """Observers get its status and news and score its models; it replays identically."""
    running = job.start("--processes", "--set=job.steps=100000", "--set=task.step_s=0.05")
    address = looked_at(job)
    observe = ["observe", address, "--json", "--evaluate", str(job.run_folder / "job.toml")]
    news = tmp_path / "news.jsonl"
    with news.open("w") as told_of:
        observer = subprocess.Popen([*tools.DDLOCO, *observe], cwd=tools.WORK, stdout=told_of)
    told, drawn = tools.call_here("status", address, "--json"), tools.call_here("status", address)
    # Scores come one after the other, each in its time.
    for event in ("held out", "merge"):
        job.wait_until(lambda told=f'"{event}"': news.read_text().count(told) > 5)
    ended = job.stop(running)
    observer.wait(timeout=180)

    assert 0 == running.returncode, ended
    assert "held-out loss" in ended
    assert (job.run_folder / "model" / "model.safetensors").exists()
    assert 0 == told.returncode, told.stderr
    status = json.loads(told.stdout)
    assert (address, "small", 100000, "syncer.1") == tuple(
        status[key] for key in ("address", "name", "steps", "incarnation")
    )
    declared = json.loads(msgspec.json.encode(status_from(status)))
    assert status == {name: declared[name] for name in status}
    assert ["learner-0.1", "learner-1.1"] == [member["learner"] for member in status["members"]]
    assert 0 < status["t"]
    assert 0 < status["events"]
    assert 0 < status["tape_bytes"] < (job.run_folder / "tapes" / "syncer.1.tape").stat().st_size
    assert f"small at {address}  global step " in drawn.stdout
    assert "learner-1.1" in drawn.stdout
    assert 0 == observer.returncode
    check_news([json.loads(line) for line in news.read_text().splitlines()], job.log())
    replayed = tools.replay(job.run_folder)
    assert 0 == replayed.returncode, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout
    assert "not closed" not in replayed.stdout


def check_news(news, log):
    """What the observer printed is what the log says, and models that got better."""
    merges = [line for line in news if line["event"] == "merge"]
    logged = {line["ref"]: line for line in log if line["event"] == "merge"}
    scores = [line for line in news if line["event"] == "held out"]
    result = next(line for line in news if line["event"] == "result")

    assert len(merges) > 5
    assert all(logged[line["ref"]]["weights"] == line["weights"] for line in merges)
    assert "ended" in [line["event"] for line in news]
    assert len(scores) > 3
    assert (merges[-1]["t"], result["held_out_loss"]) == (
        scores[-1]["t"],
        scores[-1]["held_out_loss"],
    )
    untrained = next(line["loss"] for line in log if line["event"] == "step")
    assert all(score["held_out_loss"] < untrained for score in scores)


@pytest.mark.slow
def test_watching_ends_with_a_signal(job, tools):
    """Ctrl-C ends --watch and observe in good order; the job does not notice."""
    running = job.start("--processes", "--set=job.steps=4000")
    address = looked_at(job)
    commands = [["status", address, "--watch", "--json"], ["observe", address]]
    watching = [
        subprocess.Popen(
            [*tools.DDLOCO, *command], cwd=tools.WORK, stdout=subprocess.PIPE, text=True
        )
        for command in commands
    ]
    first = [each.stdout.readline() for each in watching]
    time.sleep(1.5)
    for each in watching:
        each.send_signal(signal.SIGINT)
    rest = [each.communicate(timeout=30)[0] for each in watching]
    running.send_signal(signal.SIGINT)
    ended, _ = running.communicate(timeout=60)

    assert [0, 0] == [each.returncode for each in watching]
    assert json.loads(first[0])["uptime_s"] < json.loads(rest[0].splitlines()[-1])["uptime_s"]
    assert "merge" in rest[1]
    assert 0 == running.returncode, ended


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["status", "nowhere"], 2, "nowhere: unknown kind of address"),
        (["status", "tcp://127.0.0.1:5", "--timeout", "0"], 2, "--timeout 0.0: want seconds"),
        (["observe", "tcp://127.0.0.1:5", "--prometheus", "70000"], 2, "--prometheus 70000: want"),
        (["observe", "tcp://127.0.0.1:5", "--evaluate", "none.toml"], 2, "none.toml: cannot be"),
        (["status", "tcp://127.0.0.1:5", "--keys", "none"], 2, "none/public.toml: cannot be read"),
        (["status", "tcp://127.0.0.1:5", "--timeout", "0.2"], 1, "no answer from tcp://127.0"),
        (["observe", "tcp://127.0.0.1:5", "--timeout", "0.2"], 1, "no answer from tcp://127.0"),
    ],
)
def test_one_line_for_what_is_wrong(tools, arguments, code, said):
    """Bad input exits with 2, an address without an answer with 1, each with one line."""
    ended = tools.call_here(*arguments)

    assert code == ended.returncode, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"ddloco: {said}")
