"""Two runs of one job with their snapshots in one place, as people on a cluster have them."""

import json
import os

import pytest

from snapshot import Store

pytestmark = pytest.mark.slow


def test_each_run_has_its_own(job, tools, tmp_path):
    """`latest` of the first is its own, replays identically, and the second's is refused."""
    place = tmp_path / "place"
    runs = [tmp_path / "one", tmp_path / "two"]
    more = ("--set=snapshot.every_steps=10", "--set=sync.quorum=2", f"--set=snapshot.place={place}")
    for job.run_folder in runs:
        ended = job.run(*more)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    names = [(run / "kept" / "run").read_text() for run in runs]
    ids = [[each.id for each in Store(place, name).snapshots()] for name in names]
    assert all(ids)

    found = tools.replay(runs[0], "--from", "latest", "--json")
    assert found.returncode == 0, found.stdout + found.stderr
    assert json.loads(found.stdout)["events"] > 0
    found = tools.replay(runs[0], "--from", ids[1][0])
    assert found.returncode == 2
    assert "is of another run than these tapes" in found.stderr
    listed = tools.call_here("snapshot", "list", str(runs[1]))
    assert all(id_ in listed.stdout for id_ in ids[1])
    assert not any(id_ in listed.stdout for id_ in ids[0])

    # A user with another key did not record this run.
    other = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "others")}
    command = [*tools.DDLOCO, "replay", str(runs[0]), "--from", "latest"]
    assert tools.call(command, env=other).returncode == 2
    assert tools.call([*command, "--trust"], env=other).returncode == 0
    own = tools.call([*command, "--task", "tests.tasks:regression"], env=other)
    assert own.returncode == 0, own.stdout + own.stderr
