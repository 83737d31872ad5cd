"""The script for SkyPilot: its tasks, its shell, and what it refuses."""

import re
import subprocess

import pytest
import yaml

CLOUD = """
[launch.skypilot]
bucket = "s3://mine/first"
syncer = {resources = {cpus = "4+"}}
learner = {resources = {accelerators = "H100:1", use_spot = true}, setup = "pip install ddloco"}
"""


@pytest.fixture
def on_skypilot(launched, tmp_path, monkeypatch):
    """Call the command in the folder of the job file."""
    monkeypatch.chdir(tmp_path)

    def call(*words, job=CLOUD):
        return launched("--on", "skypilot", *words, job=job)

    return call


def tasks(text):
    """The tasks that a text submits, by name."""
    found = re.findall(
        r"^cat > [^\n]*<<'END_OF_TASK'\n(.*?)^END_OF_TASK$", text, re.DOTALL | re.MULTILINE
    )
    return {each["name"]: each for each in map(yaml.safe_load, found)}


def started(text, tmp_path):
    """What a text calls, with its options: the client is a script here."""
    client = tmp_path / "bin" / "sky"
    client.parent.mkdir()
    client.write_text('#!/bin/bash\necho "$@"\n')
    client.chmod(0o755)
    path = f"{client.parent}:/usr/bin:/bin"
    ran = subprocess.run(
        ["bash", "-s"], input=text, capture_output=True, text=True, check=True, env={"PATH": path}
    )
    assert ran.stderr == ""
    return ran.stdout.splitlines()


def test_each_actor_is_a_managed_job_of_its_own(on_skypilot, tmp_path):
    """One per shard, one per learner; the codes that are not final restart it."""
    code, text, _ = on_skypilot("--learners", "2", job="syncers = 2\n" + CLOUD)
    assert code == 0
    found = tasks(text)
    assert set(found) == {"small-syncer-0", "small-syncer-1", "small-learner"}
    for each in found.values():
        again = each["resources"]["job_recovery"]["recover_on_exit_codes"]
        assert 75 in again
        assert not {0, 1, 2} & set(again)
        assert each["file_mounts"] == {"/ddloco": {"source": "s3://mine/first", "mode": "MOUNT"}}
        assert each["workdir"] == str(tmp_path)
    assert found["small-learner"]["resources"]["use_spot"] is True
    assert found["small-learner"]["setup"] == "pip install ddloco"
    said = found["small-learner"]["run"]
    for shard in ("syncer-0", "syncer-1"):
        assert f"file:/ddloco/small-{shard}.address" in said
    assert "--connect file:/ddloco/small-syncer-0.address" in found["small-syncer-1"]["run"]

    calls = [each.split() for each in started(text, tmp_path)]
    names = [each[each.index("--name") + 1] for each in calls if "--name" in each]
    assert names == ["small-learner-0", "small-learner-1"]
    assert 4 == len(calls)
    assert calls[-1][-1].endswith("/learner-1.yaml")


def test_a_machine_gets_the_key_of_its_own_actor_only(on_skypilot, tmp_path, tmp_path_factory):
    """Neither the owner's nor those of others; and no folder with all of them is copied."""
    keys = tmp_path_factory.mktemp("keys")
    more = ("--learners", "2", f"--set=transport.keys={keys}", "--set=transport.insecure=false")
    code, text, said = on_skypilot(*more)
    assert code == 0, said
    written = tmp_path / "written"
    kept = text.replace("tasks=$(mktemp -d)", f"tasks={written}").replace("trap 'rm", "# 'rm")
    written.mkdir()
    started(kept, tmp_path)
    for name in ("syncer", "learner-0", "learner-1"):
        task = yaml.safe_load((written / f"{name}.yaml").read_text())
        given = {k: v for k, v in task["file_mounts"].items() if k != "/ddloco"}
        assert given == {
            f"~/.ddloco-keys/{each}": str(keys / each) for each in ("public.toml", f"{name}.key")
        }
        assert "--keys ~/.ddloco-keys" in task["run"]
        assert f"--name {name}" in task["run"]
    code, _, error = on_skypilot(*more[:2], f"--set=transport.keys={tmp_path / 'keys'}")
    assert (code, "to all machines; keep keys elsewhere" in error) == (2, True)


@pytest.mark.parametrize("ends_with", [0, 75])
def test_the_syncer_leaves_its_address_and_its_run(on_skypilot, tmp_path, ends_with):
    """The address goes to the bucket, also after the last change, and the run folder at the end;
    SIGTERM reaches the syncer, and its exit code is passed on."""
    _, text, _ = on_skypilot()
    script = tasks(text)["small-syncer"]["run"].replace("/ddloco/", f"{tmp_path}/")
    fake = tmp_path / "ddloco"
    fake.write_text(
        '#!/bin/bash\nmkdir -p run; echo "${@: -1}" > run/syncer.address; sleep 1.5\n'
        f"echo job ended > run/syncer.address.ended; exit {ends_with}\n"
    )
    fake.chmod(0o755)
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SKYPILOT_NODE_IPS": "10.0.0.7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ends_with, "") == (ran.returncode, ran.stderr)
    kept = tmp_path / "small-syncer" / "syncer.address.ended"
    assert kept.is_file() == (ends_with == 0)
    assert "tcp://10.0.0.7:*\n" == (tmp_path / "small-syncer.address").read_text()
    assert "job ended\n" == (tmp_path / "small-syncer.address.ended").read_text()


def test_fewer_and_more(on_skypilot, tmp_path):
    """The highest numbers are cancelled; further ones are started."""
    code, text, _ = on_skypilot("--learners", "4", "--scale", "2")
    assert code == 0
    assert started(text, tmp_path) == [
        f"jobs cancel --yes --name small-learner-{number}" for number in (2, 3)
    ]
    code, text, _ = on_skypilot("--learners", "4", "--scale", "6")
    assert code == 0
    assert set(tasks(text)) == {"small-learner"}
    assert "for n in 4 5; do" in text


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ("", "launch.skypilot.bucket: '': want a bucket"),
        ("[launch.skypilot]\nbucket = 'mine'", "launch.skypilot.bucket: 'mine': want a bucket"),
        (CLOUD.replace("setup", "run"), "launch.skypilot.learner: 'run' is written by ddloco"),
        (CLOUD.replace("setup", '"a b"'), "launch.skypilot.learner: 'a b' is no field of a task"),
    ],
)
def test_what_cannot_be_written_is_refused(on_skypilot, job, said):
    """One line, exit code 2."""
    code, _, error = on_skypilot(job=job)
    assert (code, error.count("\n")) == (2, 1)
    assert said in error


def test_what_only_skypilot_knows_is_passed_on(on_skypilot):
    """Whatever its text is: no field ends a line or the task."""
    odd = CLOUD.replace("{cpus", '{odd = \'a"b\', END_OF_TASK = "x\\nEND_OF_TASK\\n", cpus')
    _, text, _ = on_skypilot(job=odd)
    resources = tasks(text)["small-syncer"]["resources"]
    assert ('a"b', "x\nEND_OF_TASK\n") == (resources["odd"], resources["END_OF_TASK"])


def test_a_job_file_elsewhere_is_refused(launched):
    """SkyPilot copies the current folder only."""
    code, _, error = launched("--on", "skypilot", job=CLOUD)
    assert code == 2
    assert "the job file is not in it" in error


def test_skypilot_reads_the_tasks(on_skypilot):
    """By its own package, where that is installed."""
    sky = pytest.importorskip("sky")
    _, text, _ = on_skypilot()
    for each in tasks(text).values():
        task = sky.Task.from_yaml_config(each)
        [resources] = task.resources
        assert 75 in resources.job_recovery["recover_on_exit_codes"]
