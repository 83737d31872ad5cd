"""Tapes that travel: hosts with folders of their own, a lost one, a syncer that starts again."""

import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

from ddloco.stage.tapes.receiver import MARKS
from replay import Tape, TapeError
from tests.lab.audit import violated_in

COMMON = ("--set=job.learners=2", "--set=tape.segment_s=0.2")
PATIENCE_S = 180.0


class Hosts:
    """A syncer and learners, each with a folder of its own, as if on different hosts."""

    def __init__(self, tools, job, root, *settings):
        self.root = root
        self._tools, self._job = tools, job
        self._settings = [*COMMON, *settings]
        self.running = {}

    def start(self, role, *words, folder=None, settings=()):
        """Start an actor; again under the same name is its next incarnation."""
        name = words[words.index("--name") + 1] if "--name" in words else role
        folder = folder or self.root / name
        command = [*self._tools.DDLOCO, role, str(self._job.file), *self._settings, *settings,
                   "--dir", str(folder), "--join", *words]  # fmt: skip
        self.root.mkdir(exist_ok=True)
        with (self.root / f"{name}.out").open("ab") as out:
            said = {"stdout": out, "stderr": subprocess.STDOUT}
            self.running[name] = subprocess.Popen(command, cwd=self._tools.WORK, **said)
        return self.running[name]

    def syncer(self, bind="tcp://127.0.0.1:*"):
        """Start the syncer, and wait until it listens; its address."""
        at = self.root / "syncer" / "syncer.address"
        at.unlink(missing_ok=True)
        started = self.start("syncer", "--bind", bind)
        wait(lambda: at.exists() or started.poll() is not None)
        return at.read_text()

    def learner(self, name, address, **more):
        """Start a learner."""
        return self.start("learner", "--connect", address, "--name", name, **more)

    def shipped(self, incarnation):
        """Events of a tape in the syncer's folder, 0 while it is not there."""
        path = self.root / "syncer" / "tapes" / f"{incarnation}.tape"
        try:
            return Tape(path).scan().events
        except TapeError:
            return 0

    def end(self):
        """Wait until all have ended in good order."""
        for name, each in self.running.items():
            assert each.wait(PATIENCE_S) == 0, (self.root / f"{name}.out").read_text()

    def log(self):
        """The log lines of all actors."""
        return "".join(path.read_text() for path in self.root.glob("*/log.jsonl"))


def wait(until):
    """Wait for a condition."""
    for _ in range(int(PATIENCE_S / 0.05)):
        if until():
            return
        time.sleep(0.05)
    pytest.fail("it does not come to that")


@pytest.fixture
def hosts(tools, job, tmp_path):
    """Hosts that are gone afterwards, whatever happens."""

    @contextmanager
    def opened(*settings):
        made = Hosts(tools, job, tmp_path / "hosts", *settings)
        try:
            yield made
        finally:
            for each in made.running.values():
                each.kill()
                each.wait()

    return opened


@pytest.mark.slow
def test_all_tapes_are_in_the_syncers_folder(hosts, tools):
    """A learner that ends in good order ships all of its tape: the syncer's folder replays
    alone."""
    with hosts("--set=job.steps=60") as made:
        address = made.syncer()
        made.learner("learner-0", address)
        made.learner("learner-1", address)
        made.end()
        for name in ("learner-0", "learner-1"):
            ours = made.root / name / "tapes" / f"{name}.1.tape"
            theirs = made.root / "syncer" / "tapes" / f"{name}.1.tape"
            assert ours.read_bytes() == theirs.read_bytes()
            shutil.rmtree(made.root / name)
        replayed = tools.replay(made.root / "syncer")
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr
        assert "identical" in replayed.stdout
        verified = tools.call_here("tape", "verify", str(made.root / "syncer"))
        assert verified.returncode == 0, verified.stdout
        assert [] == violated_in(made.root / "syncer")
        assert "not shipped" not in made.log()


@pytest.mark.slow
def test_a_lost_host_costs_its_last_segment(hosts, tools):
    """A learner is killed and its folder gone: what was shipped replays, and the gap is named."""
    with hosts("--set=job.steps=4000", "--set=tape.segment_s=5") as made:
        address = made.syncer()
        lost = made.learner("learner-0", address)
        made.learner("learner-1", address)
        wait(lambda: made.shipped("learner-0.1") > 0)
        whole = made.root / "learner-0" / "tapes" / "learner-0.1.tape"
        wait(lambda: Tape(whole).scan().events > made.shipped("learner-0.1") + 40)
        lost.kill()
        lost.wait()
        del made.running["learner-0"]
        shutil.rmtree(made.root / "learner-0")
        assert tools.call_here("stop", address, "--timeout", "60").returncode == 0
        made.end()
        last = made.shipped("learner-0.1")
        replayed = tools.replay(made.root / "syncer")
        verified = tools.call_here("tape", "verify", str(made.root / "syncer"))
    assert replayed.returncode == 1, replayed.stdout + replayed.stderr
    assert "DIFFERENT " not in replayed.stdout
    assert f"learner-0.1: the tape ends after event {last}, not closed" in replayed.stdout
    assert f"gap: learner-0.1: the tape ends after event {last}, others have" in replayed.stdout
    assert "identical as far as it was compared" in replayed.stdout
    assert verified.returncode == 1, verified.stdout  # A gap is no success.
    assert f"gap: learner-0.1: events {last + 1} to " in verified.stdout


@pytest.mark.slow
def test_a_syncer_that_starts_again_goes_on(hosts, tools):
    """Killed in the middle: what had come is kept, the rest follows, nothing comes twice."""
    with hosts("--set=job.steps=4000") as made:
        address = made.syncer()
        made.learner("learner-0", address)
        made.learner("learner-1", address)
        wait(lambda: made.shipped("learner-0.1") > 40)
        made.running["syncer"].kill()
        made.running["syncer"].wait()
        before = made.shipped("learner-0.1")
        made.syncer(address)
        wait(lambda: made.shipped("learner-0.1") > before + 40)
        wait(lambda: made.log().count('"joined","actor":"syncer"') == 4)
        assert tools.call_here("stop", address, "--timeout", "60").returncode == 0
        made.end()
        for name in ("learner-0", "learner-1"):
            ours = made.root / name / "tapes" / f"{name}.1.tape"
            theirs = made.root / "syncer" / "tapes" / f"{name}.1.tape"
            assert ours.read_bytes() == theirs.read_bytes()
        replayed = tools.replay(made.root / "syncer")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.slow
def test_in_a_shared_folder_nothing_is_shipped(hosts):
    """Where both write to one folder the tape is there already, and is left alone."""
    with hosts("--set=job.steps=12", "--set=job.learners=1") as made:
        address = made.syncer()
        made.learner("learner-0", address, folder=made.root / "syncer")
        made.end()
        tapes = made.root / "syncer" / "tapes"
        assert {"syncer.1.tape", "learner-0.1.tape"} == {each.name for each in tapes.iterdir()}
        assert not (tapes / MARKS).exists()
        assert Tape(tapes / "learner-0.1.tape").scan().closed is not None
        assert "not shipped" not in made.log()
        assert "segment refused" not in made.log()
