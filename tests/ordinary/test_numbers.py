"""Numbers, models and optimizers that users bring: as they were asked for, or refused by name."""

import pytest

SMALL = 24
"""Steps of a job that ends soon."""

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("double", "tensor 'in' is float64, and merges are in float32: make it float32 in init"),
        ("complex", "tensor 'modes' is complex64; keep its real and imaginary parts as two"),
        ("late", "sets JAX_ENABLE_X64 in os.environ when JAX has read it already"),
    ],
)
def test_what_would_be_another_number_is_refused(situation, kind, said):
    """Before anything is trained, with what would be right."""
    numbers = situation("asked_numbers")
    assert numbers.run(f"--set=task.kind={kind}", steps=SMALL) == 2
    assert said in numbers.said


def test_float64_is_rounded_where_that_was_asked_for(situation):
    """And a variable of the worker may be a number in the job file."""
    numbers = situation("asked_numbers")
    more = ("--set=task.kind=double", "--set=sync.round_float64=true")
    assert numbers.run(*more, "--set=worker.env.JAX_ENABLE_X64=1", steps=SMALL) == 0, numbers.said
    assert "identical" in numbers.replay()


@pytest.mark.parametrize(
    "kind", [*(pytest.param(each, marks=SLOW) for each in ("many", "random", "search")), "average"]
)
def test_what_people_train_trains(situation, kind):
    """Many tensors; streams of random numbers; a line search; an average that the count of a
    learner's steps corrects, without which the held-out loss is NaN."""
    numbers = situation("asked_numbers")
    assert numbers.run(f"--set=task.kind={kind}", steps=SMALL) == 0, numbers.said
    assert "identical" in numbers.replay()


def test_the_environment_of_a_task_is_on_its_tape(situation, monkeypatch):
    """A replay where a variable has another value, or a file other data, names it, with the value
    that it had: also what is read at the first batch, or while the step is traced."""
    numbers = situation("asked_numbers")
    shift = numbers.folder / "shift.txt"
    shift.write_text("0.5\n")
    monkeypatch.setenv("LR", "0.03")
    assert numbers.run("--set=task.kind=environment", steps=SMALL) == 0, numbers.said
    found = numbers.replayed()
    assert found.returncode == 0
    assert "differs from the recording" not in found.stdout + found.stderr
    monkeypatch.delenv("LR")
    monkeypatch.setenv("SCALE", "2")
    shift.write_text("0.25\n")
    found = numbers.replayed()
    assert found.returncode == 1
    said = " ".join((found.stdout + found.stderr).split())
    assert "the variable LR, which the task reads, was 0.03, is not set" in said
    assert "the variable SCALE, which the task reads, was not set, is 2" in said
    assert "the file shift.txt, which the task reads, was " in said
