"""The program for Ray: what it calls, and what it cannot do."""

import ast

RESOURCES = """
[launch.ray]
resources = {GPU = 1, fast = 0.5}
"""


def test_it_runs_the_job(launched, tmp_path):
    """It is Python that gives ``ddloco.ray.run`` the job, the number of learners and resources."""
    words = ("--on", "ray", "--learners", "5", "--set=job.seed=3")
    code, text, _ = launched(*words, job=RESOURCES, folder="it's here")

    assert code == 0
    [call] = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ddloco.ray.run"
    ]
    assert [str(tmp_path / "job.toml"), str(tmp_path / "it's here")] == [
        ast.literal_eval(each) for each in call.args
    ]
    assert {each.arg: ast.literal_eval(each.value) for each in call.keywords} == {
        "learners": 5,
        "resources": {"GPU": 1, "fast": 0.5},
        "overrides": ["job.seed=3"],
    }


def test_scaling_is_refused_in_one_line(launched):
    """It says what to call instead."""
    code, out, err = launched("--on", "ray", "--scale", "3")

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "call job.scale(3)" in err
