"""The lab of suspects: what is drawn, how it is judged, and a few of its runs."""

import pytest

from ddloco.debugger.detectors import Found
from tests.lab.suspect_tasks import BASES, SIGNALLED
from tests.lab.suspects import FAULTS, draw, judged, main


def test_each_fault_and_each_task_is_drawn():
    """Within few seeds; a clean job has no fault."""
    drawn = [draw(seed, clean=False) for seed in range(55)]
    assert {each.fault for each in drawn} == set(FAULTS)
    assert set(SIGNALLED) < set(FAULTS)
    bases = {setting for each in drawn for setting in each.settings if "task.base" in setting}
    assert bases == {f"task.base={each}" for each in BASES}
    assert {draw(seed, clean=True).fault for seed in range(55)} == {""}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([], "missed"),
        ([Found("finite numbers", ("its loss is nan at inner step 41",), "learner-1.1")], "right"),
        ([Found("finite numbers", ("its loss is nan at inner step 99",), "learner-1.1")], "vague"),
        ([Found("finite numbers", ("at inner step 41",), "learner-2.1")], "innocent"),
        ([Found("losses", ("first",), "learner-1.1")], "missed"),
    ],
)
def test_what_is_said_is_judged(found, verdict):
    """By its detector, its learner and its step."""
    drawn = draw(1, clean=False)._replace(who="learner-1")
    assert drawn.fault == "nan"
    assert judged(drawn, found)[0] == verdict


def test_a_clean_job_is_quiet_or_not():
    """Whoever is named is innocent."""
    drawn = draw(1, clean=True)._replace(chaos="")
    assert judged(drawn, [])[0] == "quiet"
    assert judged(drawn, [Found("losses", ("x",))])[0] == "flagged"
    assert judged(drawn, [Found("losses", ("x",), "learner-0.1")])[0] == "named"


@pytest.mark.slow
def test_some_of_its_runs():
    """One of each fault, and as many without."""
    assert main(["--seed", "200", "--seeds", f"{len(FAULTS)}"]) == 0
    assert main(["--clean", "--seed", "200", "--seeds", f"{len(FAULTS)}"]) == 0
