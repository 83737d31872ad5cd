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


def test_scaling_finds_the_job_by_its_folder(launched):
    """The program gives ``ddloco.ray.attach`` the same job, and its ``scale`` the number."""
    code, out, err = launched("--on", "ray", "--scale", "3")

    assert (code, err) == (0, "")
    calls = {ast.unparse(each.func): each for each in ast.walk(ast.parse(out))
             if isinstance(each, ast.Call)}  # fmt: skip
    assert calls.keys() == {"ddloco.ray.attach", "job.scale"}
    assert [ast.literal_eval(each) for each in calls["job.scale"].args] == [3]


def test_without_keys_it_is_refused(launched):
    """As for every engine whose actors are on several hosts."""
    for more in ((), ("--scale", "3")):
        code, _, said = launched("--on", "ray", "--set=transport.insecure=false", *more)
        assert code == 2
        assert "transport.keys: missing; a syncer listens to other hosts with keys" in said
