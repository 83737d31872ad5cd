"""How the time of a step was spent: what it is not computing."""

import pytest

from ddloco.job.protocol.time_spent import TimeSpent, of_step


@pytest.mark.parametrize(
    ("step", "took_s", "data_s", "compiling_s", "usual_s", "spent"),
    [
        (1, 9.0, 1.0, 0.0, None, TimeSpent(compiling=8.0, data=1.0)),
        (2, 1.0, 0.25, 0.0, None, TimeSpent(computing=0.75, data=0.25)),
        (5, 1.0, 0.0, 0.0, 0.5, TimeSpent(computing=1.0)),
        (5, 20.5, 0.0, 0.0, 0.5, TimeSpent(computing=0.5, stopped=20.0)),
        (5, 20.5, 0.0, 20.0, 0.5, TimeSpent(computing=0.5, compiling=20.0)),
        (5, 40.5, 0.0, 20.0, 0.5, TimeSpent(computing=0.5, compiling=20.0, stopped=20.0)),
        (5, 1.0, 0.25, 7.0, 0.5, TimeSpent(compiling=0.75, data=0.25)),
    ],
    ids=["first", "data", "slower", "stopped", "compiled", "both", "more than there is"],
)
def test_all_of_a_step_is_accounted_for(step, took_s, data_s, compiling_s, usual_s, spent):
    """Once each: the parts add up to the step."""
    found = of_step(step, took_s, data_s, compiling_s, usual_s)
    assert found == spent
    parts = (found.computing, found.compiling, found.data, found.parameters, found.stopped)
    assert sum(parts) == took_s
