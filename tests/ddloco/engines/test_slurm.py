"""The script for Slurm: its directives, its shell, and what it refuses."""

import re
import shlex
import shutil
import subprocess

import pytest

TWO_SHARDS = """
syncers = 2

[launch.slurm]
sbatch = ["--partition=main"]
syncer = ["--mem=8G"]
learner = ["--gpus=1"]
setup = "module load cuda\\nsource venv/bin/activate"
"""


def scripts(text):
    """The scripts that a text submits."""
    return re.findall(r"^sbatch <<'(\w+)'\n(.*?)^\1$", text, flags=re.DOTALL | re.MULTILINE)


def directives(script):
    """The options of a script: sbatch reads them up to the first command."""
    lines = [each for each in script.splitlines() if each.strip()]
    last = next(n for n, each in enumerate(lines) if not each.startswith("#"))
    assert not any(each.startswith("#SBATCH") for each in lines[last:])
    options = [each.removeprefix("#SBATCH ") for each in lines[:last] if "#SBATCH" in each]
    return dict(shlex.split(each)[0].partition("=")[::2] for each in options)


def test_each_actor_is_a_job_of_its_own(launched, tmp_path):
    """One Slurm job per shard, one array of learners, with the options of the job file."""
    code, text, _ = launched("--on", "slurm", "--learners", "5", job=TWO_SHARDS)

    assert code == 0
    found = [directives(script) for _, script in scripts(text)]
    assert ["small-syncer-0", "small-syncer-1", "small-learner"] == [
        each["--job-name"] for each in found
    ]
    for each in found:
        assert each["--signal"] == "B:TERM@120"
        assert each["--open-mode"] == "append"
        assert {"--requeue", "--partition"} <= set(each)
        assert each["--output"].startswith(str(tmp_path / "run" / "slurm"))
    assert [None, None, "0-4"] == [each.get("--array") for each in found]
    assert [None, None, "1"] == [each.get("--gpus") for each in found]
    assert ["8G", "8G", None] == [each.get("--mem") for each in found]
    learner = scripts(text)[-1][1]
    assert "\nmodule load cuda\nsource venv/bin/activate\n" in learner
    assert f"file:{tmp_path}/run/syncer-0.address file:{tmp_path}/run/syncer-1.address" in learner


@pytest.mark.parametrize("more", [(), ("--learners", "3", "--scale", "6"), ("--scale", "2")])
@pytest.mark.parametrize("folder", ["run", "a folder with $HOME"])
def test_the_shell_reads_it(launched, more, folder):
    """Bash parses the text and each script in it; shellcheck has nothing to say, where it is."""
    code, text, _ = launched("--on", "slurm", *more, "--set=job.seed=3", folder=folder)
    assert code == 0

    for each in (text, *(script for _, script in scripts(text))):
        read = subprocess.run(
            ["bash", "-n"], input=each, capture_output=True, text=True, check=False
        )
        assert (read.returncode, read.stderr) == (0, "")
        if shutil.which("shellcheck"):
            checked = subprocess.run(
                ["shellcheck", "--severity=warning", "-"],
                input=each,
                capture_output=True,
                text=True,
                check=False,
            )
            assert checked.stdout == ""


@pytest.mark.parametrize("folder", ["it's", 'a "b"', "50%"])
def test_paths_that_slurm_reads_otherwise(launched, folder):
    """Slurm has its own quotes, and replaces %; such a path is refused in one line."""
    code, out, err = launched("--on", "slurm", folder=folder)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "Slurm needs a path without quotes, backslashes and %" in err


def run_script(script, tmp_path, code):
    """Run a script with an srun that ends with a code; returns its exit code and requests."""
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "srun").write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/srun\nexit {code}\n')
    (programs / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\n')
    for each in programs.iterdir():
        each.chmod(0o755)
    (tmp_path / "asked").write_text("")
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_JOB_ID": "6"}
    env |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    done = subprocess.run(["bash", "-c", script], env=env, check=False)
    return done.returncode, (tmp_path / "asked").read_text()


@pytest.mark.parametrize("code", [0, 1, 2, 75, 137, 139])
def test_what_is_final_and_what_is_started_again(launched, tmp_path, code):
    """0, 1 and 2 end the Slurm job with that code; all else asks Slurm to start it again."""
    _, text, _ = launched("--on", "slurm")
    (_, syncer), (_, learner) = scripts(text)

    for script, me in ((syncer, "6"), (learner, "7_3")):
        ended, asked = run_script(script, tmp_path, code)
        final = code in (0, 1, 2)
        assert ended == (code if final else 0)
        assert asked == ("" if final else f"requeue {me}\n")
    assert "--name learner-3 " in (tmp_path / "srun").read_text()


def test_the_folders_of_learners_cannot_be_foretold(launched):
    """Everybody may write to a node's /tmp, and see the number of the Slurm job."""
    wheres = {
        re.search(r"ddloco-\$SLURM_ARRAY_JOB_ID-(\w{16})/", launched("--on", "slurm")[1])[1]
        for _ in "ab"
    }
    assert len(wheres) == 2


def test_a_learner_of_several_processes_has_as_many_nodes(launched):
    """They end together, so that the next incarnation begins with all; syncers have one node."""
    _, text, _ = launched("--on", "slurm", "--set=worker.processes=4")
    (_, syncer), (_, learner) = scripts(text)
    told = directives(learner)
    assert (told["--nodes"], told["--ntasks"], told["--ntasks-per-node"]) == ("4", "4", "1")
    assert directives(syncer)["--nodes"] == "1"
    assert "srun --kill-on-bad-exit=1 " in learner
    assert "srun --kill-on-bad-exit=0 " in syncer


def test_scaling_names_only_what_changes(launched):
    """More learners are a further array; fewer are those with the highest numbers."""
    _, more, _ = launched("--on", "slurm", "--learners", "3", "--scale", "6")
    [(_, script)] = scripts(more)
    assert directives(script)["--array"] == "3-5"

    _, fewer, _ = launched("--on", "slurm", "--learners", "6", "--scale", "2")
    assert scripts(fewer) == []
    assert '"$number" -ge 2' in fewer


@pytest.mark.parametrize(
    ("words", "job", "said"),
    [
        (["--learners", "9"], "", "--learners 9: want 1 to 8, which is job.learners"),
        (["--scale", "0"], "", "--scale 0: want 1 to 8"),
        (["--scale", "8"], "", "--scale 8: there are as many"),
        (["--set=transport.insecure=false"], "", "transport.keys: missing"),
        ([], '[launch.slurm]\nsbatch = ["gpu"]', "launch.slurm.sbatch: 'gpu' is no option"),
        ([], '[launch.slurm]\nlearner = ["--a\\nb"]', "launch.slurm.learner: '--a\\nb' is no"),
        ([], '[launch.slurm]\nsetup = "END_OF_SCRIPT"', "launch.slurm.setup: no line may be"),
        ([], "[launch.slurm]\npartition = 3", "launch.slurm"),
        ([], "[launch]\nslurn = {}", "slurn"),
        (["--set=launch.slurm.sbatch=3"], "", "launch.slurm.sbatch"),
        (
            ["--set=learner.learner-1.processes=2"],
            "",
            "learner.learner-1.processes: 2, others have 1; on Slurm",
        ),
    ],
)
def test_bad_input_is_one_line(launched, words, job, said):
    """It names the option or the key, and the exit code is 2."""
    code, out, err = launched("--on", "slurm", *words, job=job)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
