"""What an engine is told is data in its script: words arrive as they are, or are refused."""

import json
import re
import shlex
import subprocess

import pytest
import yaml

from tests.hostile_text import CONTROL, PRINTABLE

CLOUD = '\n[launch.skypilot]\nbucket = "s3://mine/first"\n'


IMAGE = '\n[launch.kubernetes]\nimage = "registry.example/ddloco:0.2"\n'


def task_of(text):
    """An override of an option of the task."""
    return f"task.note={json.dumps(text, ensure_ascii=False)}"


@pytest.mark.parametrize("engine", ["local", "slurm", "kubernetes", "ray", "skypilot"])
@pytest.mark.parametrize("text", CONTROL)
def test_what_has_more_than_one_line_is_refused(launched, tmp_path, monkeypatch, engine, text):
    """In one line that shows it, and nothing is printed."""
    monkeypatch.chdir(tmp_path)
    override = f"--set=task.note='''{text}'''"
    code, out, err = launched("--on", engine, override, job=CLOUD)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.rstrip("\n").isprintable()


@pytest.mark.parametrize("text", PRINTABLE)
def test_a_word_arrives_in_slurms_script(launched, text):
    """As one word of the command, for the shell that runs it."""
    code, out, err = launched("--on", "slurm", f"--set={task_of(text)}")
    assert code == 0, err
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0
    assert f"--set={task_of(text)}" in words(out)


@pytest.mark.parametrize("text", PRINTABLE)
def test_a_word_arrives_in_the_tasks_of_skypilot(launched, tmp_path, monkeypatch, text):
    """Through YAML, and then the shell."""
    monkeypatch.chdir(tmp_path)
    code, out, err = launched("--on", "skypilot", f"--set={task_of(text)}", job=CLOUD)
    assert code == 0, err
    assert subprocess.run(["bash", "-n"], input=out, text=True, check=False).returncode == 0
    found = re.findall(r"<<'END_OF_TASK'\n(.*?)^END_OF_TASK$", out, re.DOTALL | re.MULTILINE)
    tasks = [yaml.safe_load(each) for each in found]
    assert len(tasks) == 2
    for each in tasks:
        assert f"--set={task_of(text)}" in words(each["run"])


@pytest.mark.parametrize("text", PRINTABLE)
def test_a_word_arrives_in_kubernetes_objects(launched, text):
    """Through YAML, Kubernetes' own variables, and then the shell."""
    code, out, err = launched("--on", "kubernetes", f"--set={task_of(text)}", job=IMAGE)
    assert code == 0, err
    found = [each for each in yaml.safe_load_all(out) if each and each["kind"] == "Job"]
    assert len(found) == 2
    for each in found:
        [container] = each["spec"]["template"]["spec"]["containers"]
        script = container.get("args", container["command"])[-1]
        assert f"--set={task_of(text)}" in words(re.sub(r"\$\$", "$", script))


def words(script):
    """The words of the lines of a script that call ddloco."""
    lines = [line for line in script.splitlines() if "--set=" in line]
    return [
        word for line in lines for word in shlex.split(line.strip().rstrip("&"), comments=False)
    ]
