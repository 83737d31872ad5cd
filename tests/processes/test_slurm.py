"""Jobs under a real Slurm, with the scripts that ``ddloco launch`` prints."""

import time
from pathlib import Path

import pytest

from tests.installed import DDLOCO
from tests.processes.conftest import JOB, Job, call_here, replay
from tests.processes.slurm import Slurm, missing, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is Slurm"),
]

LONG = JOB.replace("learners = 2", "learners = 4").replace("steps = 40", "steps = 100000")
LONG = LONG.replace("step_s = 0.01", "step_s = 0.05")
MORE = f"""
[transport]
insecure = true

[tape]
segment_s = 1.0

[launch.slurm]
setup = "export PATH={Path(DDLOCO[0]).parent}:$PATH TMPDIR=/tmp"
"""


class OnSlurm:
    """A job on a Slurm."""

    def __init__(self, slurm, folder):
        self.slurm = slurm
        self.job = Job(folder, LONG + MORE.replace("TMPDIR=/tmp", f"TMPDIR={folder}"))
        self.folder = self.job.run_folder

    def launch(self, *more):
        """Print the script, and run it."""
        command = ["launch", str(self.job.file), "--on", "slurm", "--dir", str(self.folder), *more]
        printed = call_here(*command)
        assert printed.returncode == 0, printed.stderr
        self.slurm.call("bash", "-s", text=printed.stdout)

    def joined(self, name):
        """How often a learner has joined."""
        return sum(
            line["event"] == "joined" and str(line.get("learner", "")).split(".")[0] == name
            for line in self.log()
        )

    def log(self):
        """What the syncer logged."""
        return self.job.log() if self.folder.exists() else []

    def merges(self):
        """How many merges there were."""
        return sum(line["event"] == "merge" for line in self.log())

    def again(self, name, before):
        """Wait until a learner has joined once more."""
        wait_until(lambda: self.joined(name) > before, f"{name} joins again\n{self.said()}")

    def more_merges(self, count=8):
        """Wait for some merges."""
        before = self.merges()
        wait_until(lambda: self.merges() >= before + count, f"merges\n{self.said()}")

    def merge_of(self, names):
        """Wait for a merge, from now on, with contributions of all of these learners."""
        before = self.merges()

        def met():
            merges = [line for line in self.log() if line["event"] == "merge"][before:]
            found = [{each.split(".")[0] for each in line["learners"]} for line in merges]
            return any(names <= each for each in found)

        wait_until(met, f"a merge of all\n{self.said()}")

    def said(self):
        """What all scripts printed."""
        files = sorted((self.folder / "slurm").glob("*.out"))
        return "\n".join(f"{each.name}\n{each.read_text()[-3000:]}" for each in files)

    def all_run(self):
        """Whether every actor has a node."""
        jobs = {name: state for name, (state, _) in self.slurm.jobs().items() if "small" in name}
        return len(jobs) == 4 and set(jobs.values()) == {"RUNNING"}

    def end(self):
        """Stop the job; all Slurm jobs end, and the run replays."""
        address = (self.folder / "syncer.address").read_text().strip()
        stopped = call_here("stop", address, "--timeout", "60")
        assert stopped.returncode == 0, stopped.stderr
        wait_until(lambda: not self.slurm.jobs(), f"all jobs end\n{self.said()}")
        replayed = replay(self.folder)
        said = replayed.stdout + replayed.stderr
        assert "identical: " in said or "identical as far as it was compared: " in said, said
        return replayed


@pytest.fixture
def on_slurm(tmp_path):
    """A job of four learners at most on a Slurm of three nodes."""
    with Slurm(tmp_path / "slurm", ("n1", "n2", "n3")) as slurm:
        yield OnSlurm(slurm, tmp_path)


def test_a_killed_learner_is_started_again(on_slurm):
    """A crash is restarted under the same name; when the job ends, everything is final."""
    on_slurm.launch("--learners", "2")
    wait_until(lambda: on_slurm.joined("learner-1"), f"joined\n{on_slurm.said()}")
    on_slurm.more_merges()

    on_slurm.slurm.kill("learner", "learner-1")
    on_slurm.again("learner-1", 1)
    on_slurm.more_merges()

    replayed = on_slurm.end()
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_a_lost_node_a_preemption_and_a_syncer_that_moves(on_slurm):
    """Learners and the syncer come back elsewhere, each alone; no merge is lost, and it replays."""
    on_slurm.launch("--learners", "3")
    for n in range(3):
        wait_until(lambda n=n: on_slurm.joined(f"learner-{n}"), f"joined\n{on_slurm.said()}")
    on_slurm.more_merges()
    slurm = on_slurm.slurm

    host = slurm.jobs()["small-syncer"][1]
    name, node = next(
        (name, node)
        for name, (_, node) in sorted(slurm.jobs().items())
        if "learner" in name and node != host
    )
    learner = name.removeprefix("small-")
    before = on_slurm.joined(learner)
    slurm.lose_node(node)
    on_slurm.again(learner, before)
    assert slurm.jobs()[name][1] != node
    slurm.start_node(node)

    merges = on_slurm.merges()
    slurm.call("scontrol", "requeue", slurm.id_of("small-syncer"))
    wait_until(lambda: on_slurm.merges() > merges + 8, f"merges\n{on_slurm.said()}")

    wait_until(on_slurm.all_run, f"all run\n{on_slurm.said()}")
    left = "ended with exit code 75, to be started again"
    before = on_slurm.said().count(left)
    host = slurm.jobs()["small-learner-0"][1]
    slurm.call(
        "sbatch", "--partition=urgent", "--exclusive", "--nodes=1", f"--nodelist={host}",
        "--output=/dev/null", "--wrap=sleep 20",
    )  # fmt: skip
    wait_until(lambda: slurm.jobs().get("wrap", ("",))[0] == "RUNNING", "the urgent job runs")
    assert on_slurm.said().count(left) > before
    wait_until(on_slurm.all_run, f"all run again\n{on_slurm.said()}")
    # Only a learner that has found the syncer again hears of the end.
    on_slurm.merge_of({"learner-0", "learner-1", "learner-2"})

    on_slurm.end()


def test_more_learners_and_fewer_for_good(on_slurm):
    """A further array adds learners; those with the highest numbers leave and stay away."""
    on_slurm.launch("--learners", "2")
    wait_until(lambda: on_slurm.joined("learner-1"), f"joined\n{on_slurm.said()}")

    on_slurm.launch("--learners", "2", "--scale", "4")
    for name in ("learner-2", "learner-3"):
        wait_until(lambda name=name: on_slurm.joined(name), f"joined\n{on_slurm.said()}")
    on_slurm.more_merges()

    on_slurm.launch("--learners", "4", "--scale", "1")
    alone = {"small-syncer", "small-learner-0"}
    wait_until(lambda: set(on_slurm.slurm.jobs()) == alone, f"they leave\n{on_slurm.said()}")
    on_slurm.more_merges()
    time.sleep(3.0)  # Slurm starts a job that was requeued after one second.
    assert set(on_slurm.slurm.jobs()) == alone

    replayed = on_slurm.end()
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
