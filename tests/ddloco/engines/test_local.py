"""The script for this machine: what it starts again, and how it ends."""

import os
import signal
import subprocess
import time

import pytest

FAKE = """\
#!/bin/bash
trap 'exit 75' TERM
name=$(echo "$@" | sed 's/.*--name \\([^ ]*\\).*/\\1/')
echo "$name" >> {folder}/started
code=$(cat {folder}/$name.code 2>/dev/null || echo 0)
if [ "$code" = long ]; then
  sleep 60 &
  wait $!
  kill $!
fi
rm -f {folder}/$name.code
exit "$code"
"""


@pytest.fixture
def started(launched, tmp_path):
    """Run the printed script with a ddloco whose first exit codes are given, by name."""
    running = []

    def start(codes, *words):
        code, text, _ = launched("--on", "local", *words)
        assert code == 0
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / "ddloco").write_text(FAKE.format(folder=tmp_path))
        (tmp_path / "bin" / "ddloco").chmod(0o755)
        for name, each in codes.items():
            (tmp_path / f"{name}.code").write_text(str(each))
        env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        running.append(subprocess.Popen(["bash", "-c", text], env=env, start_new_session=True))
        return running[-1]

    yield start
    for each in running:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def starts(tmp_path, name):
    """How often an actor was started."""
    path = tmp_path / "started"
    return path.read_text().split().count(name) if path.exists() else 0


@pytest.mark.parametrize("code", [0, 1, 2, 75, 137])
def test_what_is_final_and_what_is_started_again(started, tmp_path, code):
    """0, 1 and 2 are final, all else is started again; the script ends with the worst code."""
    script = started({"learner-1": code}, "--learners", "2")

    assert script.wait(20) == (code if code in (1, 2) else 0)
    assert starts(tmp_path, "learner-0") == 1
    assert starts(tmp_path, "learner-1") == (1 if code in (0, 1, 2) else 2)
    assert starts(tmp_path, "syncer") == 1


def test_a_signal_makes_all_leave(started, tmp_path):
    """SIGTERM to the script reaches every actor, and none is started again."""
    names = ("syncer", "learner-0", "learner-1")
    script = started(dict.fromkeys(names, "long"), "--learners", "2")
    while any(starts(tmp_path, name) == 0 for name in names):
        time.sleep(0.01)

    script.terminate()
    assert script.wait(20) == 75
    assert [1, 1, 1] == [starts(tmp_path, name) for name in names]


def test_learners_of_no_run_are_not_changed(launched):
    """In a line that names the folder."""
    code, _, said = launched("--on", "local", "--learners", "2", "--scale", "1")
    assert code == 2
    assert "/run: no run that was launched here; --scale changes" in said


def test_fewer_learners_stay_away(started, launched, tmp_path):
    """Those with the highest numbers leave for good; the others go on."""
    names = ("syncer", "learner-0", "learner-1")
    script = started(dict.fromkeys(names, "long"), "--learners", "2")
    while any(starts(tmp_path, name) == 0 for name in names):
        time.sleep(0.01)
    time.sleep(0.2)

    _, text, _ = launched("--on", "local", "--learners", "2", "--scale", "1")
    subprocess.run(["bash", "-c", text], check=True)
    file = tmp_path / "run" / "local" / "learner-1.pid"
    while file.exists():
        time.sleep(0.01)
    time.sleep(0.2)
    assert starts(tmp_path, "learner-1") == 1
    assert script.poll() is None
    assert (file.parent / "learner-0.pid").exists()
