"""Data as users have them: of many sizes, without tokens, away for a moment, damaged, hanging."""

import subprocess

import pytest

from tests.commands import here

DAMAGED = "ValueError: record 12 is damaged (broken.py:15)"
METHODS = ["decoupled-diloco", pytest.param("data-parallel", marks=pytest.mark.slow)]


def test_sequences_that_grow(situation):
    """What all learners do together is no outlier, and who grows first is believed soon."""
    growing = situation("growing")
    assert growing.run(learners=3) == 0, growing.said
    assert max(each["t"] for each in growing.logged("merge")) == 80
    assert growing.logged("disregarded") == []
    assert "identical" in growing.replay()


def test_batches_of_many_sizes(situation):
    """Of those that the job file asks for, none is an outlier."""
    sized = situation("sized")
    table = "[learner.learner-0]\nbatch = 64\n"
    assert sized.run("--set=sync.quorum=3", learners=3, table=table) == 0, sized.said
    assert [each["reason"] for each in sized.logged("refused") if "tokens" in each["reason"]] == []
    assert any("learner-0.1" in each["learners"] for each in sized.logged("merge"))


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_without_tokens(situation, method):
    """It has no weight and is counted, and the job goes on."""
    masked = situation("masked")
    assert masked.run(steps=40, method=method) == 0, masked.said
    assert masked.logged("result")[0]["status"] == "done"
    assert "identical" in masked.replay()


@pytest.mark.parametrize("method", METHODS)
def test_a_store_that_is_away_for_a_moment(situation, method):
    """The same batch is drawn again, which is said; nobody ends."""
    away = situation("away")
    assert away.run("--set=task.who=[0, 1]", steps=40, method=method) == 0, away.said
    assert {each["actor"] for each in away.logged("data again")} == {"learner-0", "learner-1"}
    assert "learner-1: its data stream is tried again in 0.5 s: ConnectionError" in away.said
    assert away.logged("comes back") == []
    assert "identical" in away.replay()


@pytest.mark.parametrize(
    ("method", "form", "way"),
    [
        ("data-parallel", (), 'method = "elastic-data-parallel"'),
        pytest.param(
            *("diloco", ("--set=sync.interval=4",), 'method = "decoupled-diloco"'),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_record_that_is_damaged_where_all_learners_are_needed(situation, method, form, way):
    """The job ends, with its model, and says which method would have gone on."""
    broken = situation("broken")
    assert broken.run("--set=worker.retry_s=0", *form, steps=80, method=method) == 1, broken.said
    assert f"{DAMAGED}, at batch 13; 3 incarnations in a row" in broken.said
    said = f"1 of 2 learners is left, and a merge needs 2; {way} goes on"
    assert said in broken.ended.stderr.splitlines()[-1]
    assert broken.model
    assert "identical" in broken.replay()


@pytest.mark.slow
def test_a_record_that_is_damaged_under_elastic_data_parallel(situation):
    """It goes on."""
    broken = situation("broken")
    job = {"steps": 60, "method": "elastic-data-parallel"}
    assert broken.run("--set=worker.retry_s=0", **job) == 0, broken.said
    assert broken.logged("comes back")
    assert "identical" in broken.replay()


@pytest.mark.parametrize(
    "form",
    [(), pytest.param(("--processes",), marks=pytest.mark.slow)],
    ids=["one process", "processes"],
)
def test_a_record_that_is_damaged(situation, form):
    """That learner comes back twice, ends for good with its reason, and the others train on."""
    broken = situation("broken")
    assert broken.run("--set=worker.retry_s=0", *form, steps=160) == 0, broken.said
    assert [each["actor"] for each in broken.logged("comes back")] == ["learner-1"] * 2
    assert f"{DAMAGED}, at batch 13; 3 incarnations in a row" in broken.said
    assert max(each["t"] for each in broken.logged("merge")) == 160
    assert "identical" in broken.replay()


def test_before_the_first_good_step_the_user_must_change_something(situation):
    """The command ends with 2 and the user's line."""
    broken = situation("broken")
    assert broken.run("--set=task.at=0") == 2, broken.said
    assert DAMAGED in broken.ended.stderr.splitlines()[-1]


@pytest.mark.slow
def test_when_nobody_is_left_what_was_merged_is_saved(situation):
    """The job has failed, and its model and tapes are there."""
    broken = situation("broken")
    more = "--set=worker.retry_s=0", "--set=task.who=[0, 1]", "--set=task.at=30"
    assert broken.run(*more) == 1, broken.said
    assert broken.model
    assert "no learner is left" in broken.ended.stderr.splitlines()[-1]
    assert "identical" in broken.replay()


@pytest.mark.parametrize("method", ["decoupled-diloco"])
def test_a_stream_that_hangs(situation, method):
    """The job does not wait for it."""
    stuck = situation("stuck")
    assert stuck.run(steps=40, method=method) == 0, stuck.said
    assert stuck.model
    assert "identical" in stuck.replay()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "said"), [("next", "learner-1: its worker"), ("evaluate", "syncer: its worker")]
)
def test_a_call_that_takes_a_minute(situation, call, said):
    """After a minute it is said whose worker has been in which call for how long."""
    busy = situation("busy")
    job = f"--set=task.call='{call}'", "--set=sync.quorum=2"
    assert busy.run(*job, steps=40) == 0, busy.said
    (found,) = busy.logged("worker busy")
    assert found["call"] == f"{call}()"
    assert 60.0 <= found["for_s"] < 70.0
    assert said in busy.said
    assert busy.model


def test_a_loader_with_processes_of_its_own(situation):
    """They end with the job, also those that their own parents have left behind."""
    loader = situation("loader")
    before = sleepers()
    assert loader.run(steps=8) == 0, loader.said
    assert len(list(loader.folder.glob("loader-*"))) == 2
    assert sleepers() == before


def sleepers():
    """The processes that loaders have started."""
    return set(here_and_now("pgrep", "-f", "import time; time.sleep.600").split())


def here_and_now(*command):
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize(("threads", "told"), [(1, 2), (2, 0)])
def test_a_loss_that_calls_a_function_of_the_host(situation, threads, told):
    """With one thread such a step may hang: which setting helps is said before its first step."""
    callback = situation("callback")
    more = f"--set=worker.threads={threads}", "--set=sync.quorum=2"
    assert callback.run(*more, steps=8) == 0, callback.said
    assert len(callback.logged("host callback")) == told
    assert ("set worker.threads = 2" in callback.said) == bool(told)


def test_what_runs_at_the_end_is_tried_by_doctor(situation):
    """A task whose evaluation or export fails is found before the job, one that is sound is not."""
    unscored, plain = situation("unscored"), situation("plain")
    unscored.write()
    found = here("doctor", "job.toml", "--set=task.width=4", cwd=unscored.folder)
    assert found.returncode == 1, found.stdout
    assert "evaluate returns a tuple; want the held-out loss" in found.stdout
    assert "hugging_face failed: KeyError: 'embedding'" in found.stdout
    assert unscored.run("--set=task.width=4", steps=8) == 0, unscored.said
    assert "could not be evaluated: task unscored:task: evaluate returns" in unscored.said
    plain.write()
    found = here("doctor", "job.toml", cwd=plain.folder)
    assert "held-out loss 0." in found.stdout
    assert "export" not in found.stdout


EMPTY = [
    (),
    ("--set=compress.up='int4'", "--set=compress.down='int4'"),
    ("--set=snapshot.every_steps=10",),
]


@pytest.mark.parametrize(
    "more", [EMPTY[1], *(pytest.param(e, marks=pytest.mark.slow) for e in EMPTY)]
)
def test_a_model_with_tensors_without_elements(situation, more):
    """Whole fragments may have none: the job trains, and its replay is identical."""
    empty = situation("empty")
    fragments = "--set=sync.fragments=5", "--set=sync.interval=8"
    assert empty.run(*fragments, *more, steps=40) == 0, empty.said
    assert "identical: " in empty.replay()


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_optimizer_that_keeps_the_first_parameters(situation, method):
    """It trains, and its replay is identical."""
    aliased = situation("aliased")
    assert aliased.run(steps=40, method=method) == 0, aliased.said
    assert "identical: " in aliased.replay()
