"""Bad input gets one line and exit code 2, never a traceback, never a stopped job."""

from pathlib import Path

import pytest

from replay import Tape
from replay.tape import FORMAT_VERSION


def one_line(ended, *parts: str) -> None:
    """Exit code 2 and a single line on standard error that says all of ``parts``."""
    lines = ended.stderr.strip().splitlines()
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert len(lines) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    for part in parts:
        assert part in lines[0]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sync.quorums=2", "sync: unknown key `quorums`"),
        ("sync.quorum=two", "sync.quorum: Expected `int`, got `str`"),
        ("sync.fragments=9", "sync.fragments: 9 fragments in an interval of 8"),
        ("sync.quorum=3", "sync.quorum: a quorum of 3 of 2 learners can never be met"),
        ("learner.learner-7.factor=2", "learner.learner-7: no such learner"),
        ("sync", "want section.key=value"),
    ],
)
def test_job_files(job, setting, said):
    """What is wrong in a job file is named with file and field."""
    one_line(job.run("--set", setting), said)
    assert not job.run_folder.exists()


def test_no_such_job_file(tools, tmp_path):
    """A file that is not there is named."""
    ended = tools.call_here("run", str(tmp_path / "none.toml"))

    one_line(ended, "none.toml: cannot be read: No such file")


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("tests.nothing:task", "there is no module tests.nothing"),
        ("tests.tasks:nobody", "tests.tasks has no function nobody"),
        ("tests.tasks:not_a_number", "loss is nan at the first step"),
        ("tests.tasks:wobbly", "differs between two runs of the same step"),
        ("tests.tasks:counting", "parameter 'count' is int32, which cannot be trained"),
        ("tests.tasks:wordy", "its name and shape have 600 characters and 1 dimensions"),
        ("tests.tasks:wordless", "task tests.tasks:wordless: tokens(batch) is -1; want 0 or more"),
    ],
)
def test_tasks(job, task, said):
    """A task that does not import, is NaN at once, or differs between two runs, is refused."""
    more = ("--set=task={}", "--set=job.learners=1")
    one_line(job.run(f"--set=job.task={task}", *more), said)


@pytest.mark.parametrize("form", [(), pytest.param(("--processes",), marks=pytest.mark.slow)])
def test_an_option_that_a_task_does_not_take_is_named(job, form):
    """With the override that has set it, or else the job file."""
    task = "--set=job.task='tests.tasks:wordless'"
    line = "task.foo: task 'tests.tasks:wordless' takes no foo; it takes no options"
    form = (*form, "--set=job.learners=1")
    one_line(job.run(*form, task, "--set=task={foo=3}"), f"ddloco: --set task={{foo=3}}: {line}")
    if "--processes" in form:
        return
    text = job.file.read_text().partition("[task]")
    job.file.write_text(f"{text[0]}[task]\nfoo = 3\n")
    one_line(job.run(*form, task, "--overwrite"), f"ddloco: {job.file}: {line}")


@pytest.mark.parametrize("form", [(), pytest.param(("--processes",), marks=pytest.mark.slow)])
def test_what_user_code_raises_is_shown(job, form):
    """Where in their code, not in jax's: on the screen, in the log, and in a line of the end."""
    more = ("--set=task={}", "--set=job.learners=1")
    ended = job.run(*form, '--set=job.task="tests.tasks:raising"', *more)
    [last] = [line for line in ended.stdout.splitlines() if " failed: " in line]

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "KeyError: 'nothing at the third batch' (tasks.py:" in last
    traces = [line["traceback"] for line in job.log() if line["event"] == "task raised"]
    assert all("in nothing" in trace and 'raise KeyError("nothing' in trace for trace in traces)
    assert all("jax/_src" not in trace for trace in traces)
    assert traces
    named = last.partition("; traceback in ")[2]
    assert "jax" in Path(named).read_text()
    assert Path(named) == job.run_folder / "tracebacks" / "learner-0.3.txt"
    assert form or traces[0] in ended.stderr


def test_data_that_ends_is_explained(job):
    """Not by the name of Python's exception alone."""
    ended = job.run("--set=job.task=tests.tasks:finite", "--set=task={}", "--set=job.learners=1")

    assert ended.returncode == 1, ended.stdout + ended.stderr
    [last] = [line for line in ended.stdout.splitlines() if " failed: " in line]
    assert "batches must be endless" in last


def test_a_run_folder_is_not_overwritten_by_accident(finished, job):
    """A folder that holds a run is left alone unless --overwrite is given."""
    before = (finished.run_folder / "tapes" / "syncer.1.tape").read_bytes()
    job.run_folder = finished.run_folder

    one_line(job.run(), "holds a run already")
    assert before == (finished.run_folder / "tapes" / "syncer.1.tape").read_bytes()


def test_binding_to_everyone_wants_a_word(job, tools):
    """A syncer on anything but loopback needs transport.insecure."""
    command = ["syncer", str(job.file), "--dir", str(job.run_folder)]
    ended = tools.call_here(*command, "--bind", "tcp://*:5")

    one_line(ended, "--bind tcp://*:5", "transport.insecure = true")


def test_tape_with_a_flipped_byte(copied, tools):
    """A damaged byte is named with file and position, by replay and by verify, with the option that
    reads what is before it, until that is given."""
    path = copied / "tapes" / "learner-0.1.tape"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    help_is = "; --salvage reads what is before that"
    one_line(tools.call_here("replay", str(copied)), "learner-0.1.tape: byte ", "damaged", help_is)
    one_line(tools.call_here("tape", "verify", str(copied)), "damaged", help_is)
    salvaged = tools.call_here("replay", str(copied), "--salvage")
    assert help_is not in salvaged.stdout + salvaged.stderr
    assert "damaged at " in salvaged.stdout


def test_tape_that_ends_with_zeros(copied, tools):
    """As a file may that was being written when the machine lost its power."""
    path = copied / "tapes" / "learner-0.1.tape"
    path.write_bytes(path.read_bytes() + bytes(100_000))
    said = "damaged: zeros from here to its end, as after a loss of power; --salvage reads"
    one_line(tools.call_here("replay", str(copied)), "learner-0.1.tape: byte ", said)


def test_a_run_that_cannot_be_marked_as_ones_own(job, tools, monkeypatch):
    """Without a home that can be written a replay wants --trust, and the commands that the run
    suggests have it."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    ran = job.run("--set=job.steps=8", "--set=job.learners=1")
    assert ran.returncode == 0, ran.stderr
    for each in ("replay", "report"):
        assert f"ddloco {each} {job.run_folder} --trust" in ran.stdout
    assert tools.replay(job.run_folder).returncode == 2
    assert tools.replay(job.run_folder, "--trust").returncode == 0


def test_tape_from_another_version(copied, tools):
    """Another tape format is named, with the one that this program reads."""
    path = copied / "tapes" / "learner-0.1.tape"
    data = bytearray(path.read_bytes())
    data[8] = FORMAT_VERSION + 1
    path.write_bytes(data)

    one_line(
        tools.call_here("replay", str(copied)), "learner-0.1.tape", f"format {FORMAT_VERSION + 1}"
    )


def test_tape_of_another_job(copied, job, tools):
    """Tapes of two jobs in one folder are refused, both named."""
    ran = job.run("--set=job.steps=4", "--set=job.seed=9", "--set=job.learners=1")
    assert ran.returncode == 0, ran.stderr
    source = job.run_folder / "tapes" / "learner-0.1.tape"
    (copied / "tapes" / "learner-0.1.tape").write_bytes(source.read_bytes())

    one_line(tools.call_here("replay", str(copied)), "of job small-")


def test_no_tapes_at_all(tools, tmp_path):
    """A folder without tapes says what was looked for."""
    one_line(tools.call_here("replay", str(tmp_path)), "no tapes here")


def test_tape_cut_in_its_last_record_replays_what_is_whole(copied, tools):
    """A tape that ends early is no damage: it replays to its last whole record."""
    path = copied / "tapes" / "learner-1.1.tape"
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    Tape(path).scan()
    found = tools.replay(copied)

    assert found.returncode == 0, found.stdout + found.stderr
    assert "learner-1.1: the tape ends after event" in found.stdout
