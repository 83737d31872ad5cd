"""A process is lost in the second in which its job ends, before or after each of its writes, under
an engine that starts it again. ``tests/simulation/test_last_second.py`` loses it at each event."""

import shutil

import pytest

from tests.commands import here

LEAD = {
    "the model": "ddloco.workers.executor:save_tensors",
    "that it is done": "ddloco.workers.fragment_store:FragmentFolder.note_done",
    "the result": "ddloco.machines.syncer.shutdown:JobShutdown.result",
    "the end beside its address": "ddloco.stage.nodes.serve:write_end",
    "the end of its lease": "ddloco.stage.nodes.lease:Lease.close",
}
LEARNER = {
    "the rest of its tape": "ddloco.stage.nodes.tape_shipping:TapeSenders.finish",
    "its log": "ddloco.stage.process.log:ActorLog.close",
}
CASES = [(each, when) for each in (*LEAD, *LEARNER) for when in ("before", "after")]


def start_all(engine, what, when, *more):
    """A syncer and a learner, one of which is lost."""
    lost = ((LEAD | LEARNER)[what], when)
    common = ("job.toml", "--set=job.learners=1", "--set=sync.quorum=1")
    bind = ("--bind", "tcp://127.0.0.1:*", *more)
    at = f"lease:{engine.folder}/place" if more else f"file:{engine.folder}/a/syncer.address"
    engine.start("syncer", "syncer", *common, *bind, "--dir", "a", lost=lost * (what in LEAD))
    if more:
        engine.wait_for("a/syncer.address")
        engine.start("standby", "syncer", *common, *bind, "--dir", "b", "--standby")
    words = ("learner", *common, "--connect", at, "--name", "learner-0", "--dir", "l")
    engine.start("learner-0", *words, lost=lost * (what in LEARNER))


def assert_sound(engine, folder):
    """The model is there, and what was recorded of the run is consistent."""
    assert (engine.folder / folder / "model" / "model.safetensors").is_file(), engine.said()
    found = here("tape", "verify", engine.folder / folder, cwd=engine.folder)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("what", "when"), CASES)
def test_whoever_is_lost_at_the_end_is_started_again_and_ends(engine, what, when):
    """Everyone ends with 0, the model is there, and the tapes are well."""
    start_all(engine, what, when)
    assert engine.run() == {"syncer": 0, "learner-0": 0}, engine.said()
    assert engine.mark.exists(), "nobody was lost"
    assert_sound(engine, "a")


@pytest.mark.slow
@pytest.mark.parametrize(("what", "when"), [each for each in CASES if each[0] in LEAD])
def test_a_standby_ends_the_job_of_a_host_that_is_lost_at_the_end(engine, what, when):
    """With nothing but what is in the place of the lease; if the lead had said how the job has
    ended, its model was all there."""
    start_all(engine, what, when, "--lease", engine.folder / "place")
    engine.wait_for(engine.mark)
    engine.running.pop("syncer").wait()
    if (what, when) != ("the end of its lease", "after"):
        shutil.rmtree(engine.folder / "a")
    ends = engine.run(restarts=False)
    assert ends == {"standby": 0, "learner-0": 0}, engine.said()
    assert_sound(engine, "a" if (engine.folder / "a").exists() else "b")
