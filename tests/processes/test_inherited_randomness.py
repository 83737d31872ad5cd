"""What a process inherits at random is the same in every worker, live and in a replay."""

import os


def test_a_vocabulary_from_a_set_is_the_same_in_a_replay(job, tools):
    """The order of sets of strings, and numbers drawn without a seed, wherever a worker starts."""

    def with_hash_seed(seed):
        return {**os.environ, "PYTHONHASHSEED": seed}

    one = "--set=job.learners=1"
    short = ("--set=job.task=tests.tasks:vocabulary", "--set=job.steps=8", one, "--set=task={}")
    ran = tools.call(job.command(*short), env=with_hash_seed("1"))
    assert ran.returncode == 0, ran.stdout + ran.stderr

    replayed = tools.call([*tools.DDLOCO, "replay", str(job.run_folder)], env=with_hash_seed("2"))
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "identical" in replayed.stdout
