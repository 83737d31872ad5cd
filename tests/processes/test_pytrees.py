"""Parameters in pytrees of all shapes: they are resumed, replayed, exported and loaded."""

import jax
import pytest

import ddloco
from tests.processes.conftest import Job
from tests.tasks import PYTREES, Shaped


@pytest.mark.slow
@pytest.mark.parametrize("tree", sorted(PYTREES))
def test_any_pytree_is_resumed(tools, tmp_path, tree):
    """Every snapshot is replayed from and verified, a job goes on from one and its bounded tapes
    replay, and the model comes back as the task's own pytree, from a file and from a snapshot."""
    text = (
        f"[job]\nname = 'tree'\ntask = 'tests.tasks:shaped'\nsteps = 40\nlearners = 2\n"
        f"[task]\ntree = '{tree}'\nstep_s = 0.005\n[sync]\nfragments = 2\ninterval = 4\n"
        "[snapshot]\nevery_steps = 12\n"
    )
    job = Job(tmp_path, text)
    done = job.run('--set=compress.up="int8"', "--set=compress.feedback=true")
    assert done.returncode == 0, done.stdout + done.stderr
    taken = sorted((job.run_folder / "snapshots" / "snapshots").glob("*.json"))
    assert len(taken) >= 2
    for each in taken[:2]:
        replayed = tools.replay(job.run_folder, f"--from={each.stem}")
        assert replayed.returncode == 0, (tree, replayed.stdout, replayed.stderr)

    (tmp_path / "next").mkdir()
    later = Job(tmp_path / "next", text)
    more = (
        "--set=job.steps=60",
        '--set=tape.keep="2 snapshots"',
        "--set=tape.ship=false",
        "--set=snapshot.every_steps=4",
    )
    again = later.run(f"--from={job.run_folder}", '--set=compress.up="int8"', *more)
    assert again.returncode == 0, again.stdout + again.stderr
    replayed = tools.replay(later.run_folder, "--from=latest")
    assert replayed.returncode == 0, (tree, replayed.stdout, replayed.stderr)

    wanted = jax.tree.structure(Shaped(tree, 0.0, "float32").init(jax.random.key(0)))
    file = tmp_path / "exported.safetensors"
    export = tools.call_here("snapshot", "export", str(later.run_folder), "latest", f"--to={file}")
    assert export.returncode == 0, export.stderr
    for place in (later.run_folder, file, later.run_folder / "snapshots" / "latest"):
        params = ddloco.load(place, "tests.tasks:shaped", options={"tree": tree})
        assert jax.tree.structure(params) == wanted
