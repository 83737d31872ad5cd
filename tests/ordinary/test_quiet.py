"""What users begin with: a good run verifies, replays and is explained without one false word."""

import pytest

from tests.commands import here

CASES = [
    ("blank", 2, 200, ()),
    *(
        pytest.param(template, learners, steps, form, marks=pytest.mark.slow)
        for template, steps in (("blank", 3000), ("blank", 300), ("classifier", 200))
        for learners in (2, 4, 8)
        for form in ((), ("--processes",))
    ),
]


EXAMPLES = (
    *("quickstart", "classifier", "batch_norm", "moe", "lora", "vit", "captions", "nnx_decoder"),
    "mesh",
)


@pytest.mark.parametrize(("template", "learners", "steps", "form"), CASES)
def test_a_good_run_is_called_good(tmp_path, template, learners, steps, form):
    """Nothing is violated, nothing differs and nobody is suspected, to the end where the losses are
    those of rounding."""
    (tmp_path / "job").mkdir()
    folder = tmp_path / "job"
    assert here("init", "--template", template, folder, cwd=tmp_path).returncode == 0
    settings = (f"--set=job.learners={learners}", f"--set=job.steps={steps}")
    is_called_good(folder, "job.toml", *settings, *form)


@pytest.mark.slow
@pytest.mark.parametrize("learners", [2, 4])
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_good_run_of_an_example_is_called_good(tmp_path, example, learners):
    """The same of what users copy first."""
    assert here("init", "--template", "examples", cwd=tmp_path).returncode == 0
    settings = (f"--set=job.learners={learners}", "--set=job.steps=96")
    is_called_good(tmp_path, f"examples/{example}.toml", *settings)


def is_called_good(folder, job, *settings):
    """Run a job, and ask all that judge it."""
    ran = here("run", job, "--dir", "R", *settings, cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    verified = here("tape", "verify", "R", cwd=folder)
    assert verified.returncode == 0, verified.stdout
    replayed = here("replay", "R", cwd=folder)
    assert "identical: " in replayed.stdout, replayed.stdout
    why = here("why", "R", cwd=folder)
    assert why.stdout.startswith("nothing stands out; "), why.stdout
