"""A fuzzer of user code: it raises, hangs, dies or returns odd things at some call, at some batch,
a few times or for ever, in one of the learners of a job, as these situations do one by one."""

import random

import pytest

CALLS = ("next", "next", "next", "state", "restore")
FAILS = ("OSError", "ConnectionError", "ValueError", "KeyError", "StopIteration", "MemoryError")
DOES = (*FAILS, "RuntimeError", "hang", "exit", "nothing", "text", "half", "nan", "other shape")
AT, TIMES = (0, 1, 12, 30), (1, 2, 4, 1000)

ALL = range(60)
FAST = (2,)

ODD = ("nothing", "text", "half", "other shape")
"""What is returned, and is none of what was asked for."""


def drawn(seed):
    """What user code does, as options of the task."""
    rng = random.Random(seed)
    plan = {
        "call": rng.choice(CALLS),
        "at": rng.choice(AT),
        "does": rng.choice(DOES),
        "times": rng.choice(TIMES),
    }
    form = rng.choice([(), (), (), ("--processes",)])
    return plan, form


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] * (seed not in FAST)) for seed in ALL]
)
def test_the_others_train_on(situation, seed):
    """Two learners are sound, so the job is done, unless nothing worked before the first step,
    which is bad input; each end has a line, and each run replays."""
    plan, form = drawn(seed)
    wild = situation("wild")
    options = [f"--set=task.{name}={value}" for name, value in plan.items()]
    code = wild.run(*options, "--set=worker.retry_s=0.5", "--set=job.seed=3", *form, steps=60)
    said = f"{plan} {form}: {code}\n{wild.said}"
    assert "this is a bug" not in wild.said, said
    early = plan["at"] <= 1 or plan["call"] == "restore" or plan["does"] in ODD
    assert code in ((0, 1, 2) if early else (0, 1)), said
    if code == 2:
        assert wild.ended.stderr.strip().splitlines()[-1].startswith("ddloco: "), said
        return
    assert wild.model, said
    assert wild.logged("result"), said
    if code == 1:
        assert "of no use to the model: learner-1" in wild.said, said
    if plan["call"] != "state" or plan["does"] not in ODD:  # That is another state each time.
        wild.replay()
