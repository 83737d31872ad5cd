"""States of the world that pass, under an engine that starts again what ends with 75 and gives up
on 0, 1 and 2: the job is alive at the end of each."""

import subprocess
import sys

import pytest

from tests.commands import here
from tests.installed import CHECKOUT


def test_a_name_that_cannot_be_resolved_now(situation):
    """The learner waits for its syncer, says so, and is to be started again."""
    made = situation("plain")
    made.write()
    words = ("job.toml", "--connect", "tcp://syncer.example.invalid:5555", "--name", "learner-0")
    found = here("learner", *words, "--patience", "5", cwd=made.folder)
    assert found.returncode == 75, found.stderr
    assert "waits for a number from syncer at tcp://syncer.example.invalid:5555" in found.stderr


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while(engine):
    """The syncer ends with 75 again and again, and the job is done once there is room."""
    inside = ["unshare", "--map-root-user", "--mount"]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces of one's own here")
    command = [*inside, sys.executable, "-m", "tests.ordinary.full_disk", engine.folder]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
