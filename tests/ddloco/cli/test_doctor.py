"""`ddloco doctor` finds what is planted: every check has a problem that it sees."""

import json
import resource
import socket
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from ddloco.cli import doctor
from ddloco.cli.parser import main
from ddloco.job.config import job_from
from ddloco.job.job_folder import load_own_job
from ddloco.job.protocol.fragment_plan import Leaf, make_plan
from ddloco.stage.files.keys import make_keys
from ddloco.stage.files.run_folder import open_folder
from ddloco.stage.files.trust import MARK_FILE
from ddloco.stage.process.memory import kills_for_memory
from ddloco.workers import rpc

GIB = 2**30
HERE = rpc.Devices("cpu", 1, GIB)
"""Devices that do not tell how much memory they have."""


def job(**tables):
    """A small job."""
    said = {"task": "tests.tasks:regression", "learners": 2, **tables.pop("job", {})}
    return job_from({"job": said, **tables}, "job.toml")


def test_an_old_python(monkeypatch):
    """Named, with the one that is wanted."""
    assert doctor.python().status == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 10, 2, "final", 0))
    assert doctor.python().status == "problem"


def test_packages_that_are_missing_or_old():
    """Both are named with the command that installs them; missing extras are no problem."""

    def installed(name):
        if name == "gone":
            raise PackageNotFoundError(name)
        return {"old": "1.9.3", "jax": "0.10.1"}[name]

    wanted = ["gone>=2", "old>=1.10", "jax>=0.10", "other>=1; extra == 'more'"]
    gone, old, fine = doctor.packages(lambda _: wanted, installed)

    assert (gone.status, gone.remedy) == ("problem", "pip install 'gone>=2'")
    assert (old.status, old.said) == ("problem", "old 1.9.3 is too old")
    assert (fine.status, fine.said) == ("ok", "jax 0.10.1, and 0 more")
    assert [each.status for each in doctor.packages()] == ["ok"]


def test_sources_that_are_not_installed():
    """What they need is not known; the rest is looked at all the same."""

    def missing(name):
        raise PackageNotFoundError(name)

    (told,) = doctor.packages(missing)
    assert (told.status, "pip install" in told.remedy) == ("warning", True)


def test_arithmetic_that_is_not_compiled():
    """It is no problem, and the way to it is said."""
    found = doctor.arithmetic("merges", compiled=False)

    assert (found.check, found.status) == ("merges", "ok")
    assert "C compiler" in found.remedy
    assert not doctor.arithmetic("merges", compiled=True).remedy


def test_a_clock_that_was_never_set():
    """Dates in logs would be wrong."""
    assert doctor.clock(0.0).status == "warning"
    assert doctor.clock(2e9).status == "ok"


def test_too_few_file_descriptors():
    """The number that is needed is in the remedy."""
    many = job(job={"learners": 100})

    assert doctor.files(many, 256).remedy.startswith("ulimit -n 2")
    assert doctor.files(many, resource.RLIM_INFINITY).status == "ok"
    assert doctor.files(None, 1024).status == "ok"


def test_a_folder_that_cannot_be_written(tmp_path):
    """And a disk that is nearly full is a warning."""
    assert doctor.disk(tmp_path).status in {"ok", "warning"}
    assert doctor.disk(tmp_path / "none").status == "problem"


def test_a_port_in_use():
    """The system's own reason is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = doctor.port(f"tcp://127.0.0.1:{server.getsockname()[1]}")

    assert taken.status == "problem"
    assert "in use" in taken.said
    assert doctor.port("").status == "ok"
    assert doctor.port("tcp://*:*").status == "ok"


def test_congestion_control_that_takes_losses_for_a_full_line(tmp_path):
    """It is said what else there is; nothing is said where there is no such setting."""
    setting = tmp_path / "tcp_congestion_control"
    assert list(doctor.tcp(setting)) == []
    for name in ("cubic", "reno", "bbr"):
        setting.write_text(f"{name}\n")
        (found,) = doctor.tcp(setting)
        assert (found.status, found.said) == ("ok", f"congestion control {name}")
        assert ("bbr carries" in found.remedy) == bool(found.remedy) == (name != "bbr")


def test_keys_that_others_can_read(tmp_path):
    """As a run would refuse them."""
    make_keys(tmp_path / "keys", ["syncer", "learner-0", "learner-1", "observer"])
    keyed = job(transport={"keys": str(tmp_path / "keys")})
    assert doctor.keys_of_job(keyed).status == "ok"
    (tmp_path / "keys" / "learner-1.key").chmod(0o644)

    found = doctor.keys_of_job(keyed)
    assert found.status == "problem"
    assert "learner-1.key" in found.said


def test_a_place_that_is_a_file(tmp_path):
    """As a run would refuse it."""
    (tmp_path / "file").write_text("")
    found = doctor.place(job(snapshot={"place": str(tmp_path / "file")}))
    assert found.status == "problem"


def test_memory_that_is_too_small(tmp_path):
    """Against what the job needs; a cgroup's limit counts."""
    assert doctor.memory(3 * GIB, 3, 2 * GIB).status == "problem"
    assert doctor.memory(9 * GIB, 3, 10 * GIB).status == "warning"
    assert doctor.memory(GIB, 3, 10 * GIB).status == "ok"
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4194304 kB\n")
    assert doctor.available(tmp_path) == 4 * GIB
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{GIB}\n")
    assert doctor.available(tmp_path) == GIB


@pytest.mark.parametrize(
    ("line", "group", "names"),
    [
        (
            "0::/slurm/job_7/step_0",
            "slurm/job_7",
            ("memory.max", "memory.current", "memory.events"),
        ),
        (
            "4:cpu,memory:/slurm/job_7",
            "memory/slurm/job_7",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
        ),
    ],
)
def test_a_limit_of_the_own_group_counts(tmp_path, line, group, names):
    """Or of one above it, in either version of control groups; a group without a limit does not."""
    at = tmp_path / "sys/fs/cgroup" / group
    at.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable:    4194304 kB\n")
    (tmp_path / "proc/self/cgroup").write_text(f"12:pids:/other\n{line}\n")
    assert doctor.available(tmp_path) == 4 * GIB
    assert kills_for_memory(tmp_path) is None
    for name, value in zip(names, (GIB, GIB // 4, "max 1\noom_kill 2"), strict=True):
        (at / name).write_text(f"{value}\n")
    (at.parent / names[0]).write_text("max\n")
    assert doctor.available(tmp_path) == 3 * GIB // 4
    (tmp_path / "proc/vmstat").write_text("oom_kill 5\noom_kill_other 9\n")
    assert kills_for_memory(tmp_path) == 7


def test_shared_memory_that_is_too_small(tmp_path):
    """A warning, because slower files take its place; so it is where there is none."""
    assert doctor.shared(2**60, tmp_path).status == "warning"
    assert doctor.shared(0, tmp_path / "none").status == "warning"
    assert doctor.shared(1, tmp_path).status == "ok"


def call(words, capsys):
    """The exit code, and the findings by check."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    return left.value.code, {each["check"]: each for each in found}


@pytest.mark.parametrize(
    ("task", "code", "said"),
    [
        ("tests.tasks:regression", 0, "1,665 parameters"),
        ("tests.tasks:wobbly", 1, "differs between two runs of the same step"),
        ("tests.tasks:not_a_number", 1, "loss is nan"),
        ("tests.tasks:regresion", 1, "did you mean regression?"),
        ("tests.taskss:regression", 1, "did you mean tests.tasks?"),
    ],
)
def test_the_task_is_tried(task, code, said, tmp_path, capsys):
    """Some steps are run: what is not deterministic, or no number, is found before the run."""
    file = tmp_path / "job.toml"
    file.write_text(f'[job]\ntask = "{task}"\nlearners = 2\n[sync]\nfragments = 4\ninterval = 8\n')
    ended, found = call([str(file)], capsys)

    assert ended == code
    assert said in found["task"]["said"]
    if not code:
        assert "gave the same bits" in found["step"]["said"]
        assert "Gbit/s" in found["network"]["said"]
        assert {"memory", "shared", "keys", "files", "port"} <= set(found)


def test_a_line_that_is_too_slow():
    """The overlap hides what a line of the stated rate needs for a fragment, or it is a warning;
    without a stated rate, 10 Gbit/s is what a line may have."""
    leaves = [Leaf(f"w{n}", (1_250_000,), "float32") for n in range(4)]
    plan = make_plan(leaves, fragments=4, interval=8, strategy="balanced")
    mine = job(sync={"fragments": 4, "interval": 8, "overlap": 2})

    slow = doctor.round_trip(plan, mine, 0.05, 0.5)
    fast = doctor.round_trip(plan, mine, 0.05, 1.0)
    assert (slow.status, fast.status) == ("warning", "ok")
    assert "the largest fragment takes 160.0 ms at 0.5 Gbit/s" in slow.said
    assert "2 steps of overlap hide 100.0 ms, enough for 0.8 Gbit/s or more" in slow.said
    assert "sync.overlap" in slow.remedy
    assert doctor.round_trip(plan, mine, 0.05, None).status == "ok"
    assert doctor.round_trip(plan, mine, 0.0005, None).status == "warning"


def test_what_many_learners_need_of_the_syncers():
    """Too few shards are a warning with the number that would do, and so is what no number does."""
    leaves = [Leaf(f"w{n}", (25_000_000,), "float32") for n in range(4)]  # 400 MB.
    plan = make_plan(leaves, fragments=4, interval=8, strategy="balanced")
    mine = job(sync={"fragments": 4, "interval": 8})

    few = doctor.hub(plan, doctor.NetworkRates(learners=20).of(mine), 1.0, None)
    assert (few.status, few.remedy) == ("ok", "")
    assert "20 learners that all take part: 953.7 MiB/s to the syncers" in few.said
    assert "1.9 GiB of memory for the contributions of a merge" in few.said
    more = doctor.hub(plan, doctor.NetworkRates(learners=60).of(mine), 1.0, None)
    assert more.status == "warning"
    assert "set job.syncers = 3" in more.remedy
    assert doctor.hub(plan, doctor.NetworkRates(learners=60).of(mine), 1.0, 24.0).status == "ok"
    most = doctor.hub(plan, doctor.NetworkRates(learners=600).of(mine), 1.0, None)
    assert "more than the 4 fragments; raise sync.interval" in most.remedy


WRONG = [("--learners", "0"), ("--syncer-gbit", "0"), ("--learners", "2")]


@pytest.mark.parametrize("words", WRONG)
def test_what_the_syncers_are_asked_for_needs_a_job(words, tmp_path, capsys):
    """One line; a number of learners that no job can have is refused."""
    file = tmp_path / "job.toml"
    file.write_text('[job]\ntask = "tests.tasks:regression"\n')
    given = [*words] if words[1] == "2" else [str(file), *words]
    with pytest.raises(SystemExit) as left:
        main(["doctor", *given])
    assert left.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_too_few_cores(monkeypatch):
    """More threads of learners than cores make steps slower than the one that was timed."""
    tried = doctor.Tried(
        None, "cpu: a processor", 1.0, 0.05, 8, 0, HERE, doctor.Checked("evaluation", "ok", ""), {}
    )
    three = job(job={"learners": 3}, worker={"threads": 2})
    for cores, status in ((5, "warning"), (6, "ok")):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        found = doctor.step(tried, three)
        assert found.status == status
        assert ("6 threads of 3 learners share 5 cores" in found.said) == (status == "warning")
    elsewhere = doctor.Tried(
        None, "gpu: a card", 1.0, 0.05, 8, 0, HERE, doctor.Checked("evaluation", "ok", ""), {}
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert doctor.step(elsewhere, three).status == "ok"


@pytest.mark.parametrize(
    ("needs", "limit", "status", "said"),
    [
        (12, None, "ok", "a step needs 12.0 GiB on each, which is memory of this machine"),
        (12, 80, "ok", "a step needs 12.0 GiB on each, where 80.0 GiB may be used"),
        (79, 80, "warning", "79.0 GiB on each, where 80.0 GiB"),
        (81, 80, "problem", "81.0 GiB on each, where 80.0 GiB"),
    ],
)
def test_a_step_must_fit_the_devices(needs, limit, status, said):
    """As it was compiled; the mesh and the processes are named."""
    limit = limit * GIB if limit is not None else None
    found = doctor.devices(
        rpc.Devices("a card", 8, needs * GIB, limit),
        job(worker={"mesh": {"data": 2, "model": 4}, "processes": 2}),
    )
    assert found.status == status
    assert found.said.startswith("8 of kind a card, mesh data=2 model=4, 2 processes; ")
    assert said in found.said
    assert bool(found.remedy) == (status != "ok")


def test_a_step_that_does_not_fit_is_not_run(monkeypatch, capsys):
    """Its devices are named, and nothing is said of a step that would have failed."""
    real = doctor.devices

    def small(found, job):
        return real(rpc.Devices(found.kind, found.count, found.step_bytes, 1), job)

    monkeypatch.setattr(doctor, "devices", small)
    ended, found = call(["examples/classifier.toml"], capsys)
    assert ended == 1
    assert found["devices"]["status"] == "problem"
    assert "step" not in found


def test_the_devices_of_a_mesh_are_found(capsys):
    """Eight virtual ones, each with its part of the step."""
    _, found = call(["examples/mesh.toml"], capsys)
    assert found["devices"]["said"].startswith("8 of kind cpu, mesh data=2 model=4; a step needs")


def test_what_a_job_needs_of_the_machine_is_compared_with_it(tmp_path, capsys):
    """A slow line and more learners than cores are warnings of the command, and no failure."""
    file = tmp_path / "job.toml"
    file.write_text('[job]\ntask = "tests.tasks:regression"\nlearners = 512\n')
    ended, found = call([str(file), "--gbit", "1e-6", "--set", "job.learners=512"], capsys)
    assert found["network"]["status"] == found["step"]["status"] == "warning"
    assert found["files"]["status"] in {"ok", "problem"}
    assert ended == int(any(each["status"] == "problem" for each in found.values()))

    with pytest.raises(SystemExit) as left:
        main(["doctor", str(file), "--gbit", "0"])
    assert left.value.code == 2
    assert "--gbit 0: want Gbit/s" in capsys.readouterr().err


def test_without_a_job_the_machine_is_looked_at(capsys):
    """One line for each check, beginning with how it is; exit code 0 without a problem."""
    with pytest.raises(SystemExit) as left:
        main(["doctor"])

    lines = capsys.readouterr().out.splitlines()
    assert left.value.code == 0
    assert len(lines) >= 7
    assert {line.split()[0] for line in lines} <= {"ok", "warning"}


def test_a_job_file_that_is_wrong_is_bad_input(tmp_path, capsys):
    """Exit code 2, as of every command."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", str(tmp_path / "none.toml")])

    assert left.value.code == 2
    assert "cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--set", "sync.quorum=2"), ("--gbit", "1")])
def test_what_is_only_for_a_job_wants_one(words, capsys):
    """Settings and a line's rate are applied to nothing without a job."""
    with pytest.raises(SystemExit) as left:
        main(["doctor", *words])

    assert left.value.code == 2
    assert f"ddloco: {words[0]}: nothing to apply it to" in capsys.readouterr().err


def test_a_flag_that_xla_does_not_know_is_named(tmp_path, capsys):
    """XLA ends the process, and says why on standard error only."""
    file = tmp_path / "job.toml"
    env = 'env = { XLA_FLAGS = "--xla_nonsense=3" }'
    file.write_text(f'[job]\ntask = "tests.tasks:regression"\n[worker]\n{env}\n')
    ended, found = call([str(file)], capsys)

    assert ended == 1
    assert "exit status 1: Unknown flag in XLA_FLAGS: --xla_nonsense=3" in found["task"]["said"]
    assert found["task"]["remedy"] == "see [worker] env"


@pytest.mark.parametrize("command", [["doctor"], ["observe", "tcp://127.0.0.1:1", "--evaluate"]])
def test_the_task_of_somebody_elses_run_is_not_called(tmp_path, monkeypatch, capsys, command):
    """As with a replay: a run folder that this user has not recorded needs --trust."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = tmp_path / "run"
    open_folder(run, job())
    (run / "tapes").mkdir()
    (run / MARK_FILE).unlink()
    with pytest.raises(SystemExit) as left:
        main([*command, str(run / "job.toml")])
    said = capsys.readouterr()
    assert left.value.code == 2
    assert "was not recorded by this user on this machine" in said.err + said.out


def test_ones_own_run_is_looked_at(tmp_path, monkeypatch):
    """Without a question, and so is a job file that is in no run folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    open_folder(tmp_path / "run", job())
    (tmp_path / "run" / "tapes").mkdir()
    own = load_own_job(tmp_path / "run" / "job.toml", ["job.steps=7"], trust=False)
    assert own.job.steps == 7
    (tmp_path / "job.toml").write_text((tmp_path / "run" / "job.toml").read_text())
    assert load_own_job(tmp_path / "job.toml", trust=False).job.learners == 2
