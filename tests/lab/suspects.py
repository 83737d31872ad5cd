"""Who is named, in many real runs: ``python -m tests.lab.suspects --seeds 200 [--clean]``.

Each seed draws a job of one of five tasks. With ``--clean`` nothing is wrong with it, whatever its
method, speeds, stalls, returns and compression: nobody may be named. Otherwise one learner has a
fault, which must be found with its step or tensor, and nobody else may be named. Exit code 1: an
innocent was named, or a fault was not found in one of twenty.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ddloco.debugger.detectors import Found, detect
from ddloco.debugger.recorded_job import RecordedJob, open_job
from tests.commands import here
from tests.lab.suspect_tasks import BASES

FLAGS = "--xla_cpu_enable_fast_math=true"

MEASURED = frozenset({"time", "merges"})
"""Detectors that say what a learner suffered, and not what it did."""

STEP_SLACK = 24
"""Inner steps after a fault in which a loss may break: a band has three, and learners take several
at once."""


class Drawn(NamedTuple):
    """A job, with what is wrong with it."""

    settings: tuple[str, ...]
    fault: str = ""
    who: str = ""
    at: int = 0
    chaos: str = ""


def _first_number(found: Sequence[Found], word: str) -> list[int]:
    text = " ".join(line for each in found for line in each.lines)
    words = text.replace(",", " ").replace(":", " ").split()
    return [int(b) for a, b in pairwise(words) if a == word and b.isdecimal()]


def _at_step(found: Sequence[Found], at: int) -> bool:
    return any(at <= step <= at + STEP_SLACK for step in _first_number(found, "step"))


def _says(word: str) -> Callable[[Sequence[Found], int], bool]:
    return lambda found, _: any(word in line for each in found for line in each.lines)


FAULTS: dict[str, tuple[str, Callable[[Sequence[Found], int], bool]]] = {
    "garbage": ("losses", _at_step),
    "nan": ("finite numbers", _at_step),
    "state": ("finite numbers", _says("optimizer:/1 has a NaN")),
    "flip": ("losses", lambda *_: True),
    "rate": ("losses", lambda *_: True),
    "frozen": ("tensors", _says("left second as it was")),
    "twins": ("batches", _says("drew the same data")),
    "one batch": ("batches", lambda found, at: at in _first_number(found, "steps")),
    "tokens": ("losses", _says("it counts 160 tokens a step, the others 16")),
    "slow data": ("time", _says("waits for data")),
    "flags": ("settings", _says(FLAGS)),
}
"""By fault, the detector that finds it, and whether what it says has the step or the tensor."""


def draw(seed: int, *, clean: bool) -> Drawn:
    """A job of a seed."""
    rng = random.Random(f"suspects {seed} {clean}")
    learners = rng.randint(3, 4)
    method = rng.choice(("decoupled-diloco", "decoupled-diloco", "streaming-diloco", "diloco"))
    base = sorted(BASES)[seed % len(BASES)]
    if not clean and [*FAULTS][seed % len(FAULTS)] == "rate":
        base = rng.choice(("noise", "teacher"))  # Where nothing is left to learn, it does nothing.
    interval = rng.choice((8, 12, 24))
    settings = [
        "job.task=tests.lab.suspect_tasks:task",
        f"task.base={base}",
        f"job.seed={seed}",
        f"job.learners={learners}",
        f"job.method={method if clean else 'decoupled-diloco'}",
        f"sync.interval={interval}",
        f"job.steps={interval * rng.choice((12, 16))}",
    ]
    if not clean or method == "decoupled-diloco":
        settings += ["sync.fragments=2", f"sync.quorum={rng.randint(2, learners)}"]
        settings += [f"compress.up={rng.choice(('float32', 'bfloat16', 'int8', 'int4'))}"] * clean
    if rng.random() < 0.4 and (clean or [*FAULTS][seed % len(FAULTS)] != "twins"):
        # The learner with a fault is learner-1 or a later one, and gets far enough to have it.
        slow = rng.randrange(learners) if clean else 0
        settings += [f"task.slow={slow}", f"task.slower={rng.choice((8, 30))}"]
    if clean:
        chaos = rng.choice(("stall", "crash")) if rng.random() < 0.1 else ""
        chaos = chaos if method == "decoupled-diloco" else ""
        return Drawn(tuple(settings), chaos=chaos)
    fault, who, at = [*FAULTS][seed % len(FAULTS)], rng.randint(1, learners - 1), 41
    wrong = [f"task.fault='{fault}'", f"task.who={who}", f"task.at={at}"]
    if fault == "flags":
        wrong = [f"learner={{learner-{who}={{env={{XLA_FLAGS='{FLAGS}'}}}}}}"]
    return Drawn((*settings, *wrong), fault, f"learner-{who}", at)


def run(drawn: Drawn, folder: Path) -> RecordedJob:
    """Run a job; the fault of a world, if it has one, is a second of standstill, or a crash."""
    (folder / "job.toml").write_text('[job]\ntask = "tests.lab.suspect_tasks:task"\n')
    words = ["run", folder / "job.toml", "--dir", folder / "run"]
    for each in drawn.settings:
        words += ["--set", each]
    if drawn.chaos:
        fault = f'what = "{drawn.chaos}"\nwho = "learner-1"\nat_s = 1.5\nfor_s = 0.8\n'
        (folder / "chaos.toml").write_text(f"[[fault]]\n{fault}")
        words += ["--processes", "--chaos", folder / "chaos.toml"]
        words += ["--set", "job.steps=600"]
    done = here(*words)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return open_job(folder / "run")


def far_enough(done: RecordedJob, drawn: Drawn) -> bool:
    """Whether the learner with the fault took enough steps after it; on a busy machine one may come
    so late that the others have ended the job by then."""
    steps = [
        step
        for who in done.learners
        if who == f"{drawn.who}.1"
        for _, step, _ in done.steps_of(who)
    ]
    return bool(steps) and max(steps) >= drawn.at + STEP_SLACK


def judged(drawn: Drawn, found: Sequence[Found]) -> tuple[str, list[str]]:
    """What is right or wrong with what was found, in a word; and all of that in lines."""
    lines = [f"{each.detector}: {line}" for each in found for line in each.lines]
    named = {each.learner.partition(".")[0] for each in found if each.learner}
    if drawn.chaos:  # What is said of the learner that stood still is true.
        named -= {"learner-1"}
        found = [each for each in found if each.detector not in MEASURED]
    if not drawn.fault:
        return ("named" if named else "flagged" if found else "quiet"), lines
    allowed = {drawn.who, "learner-0"} if drawn.fault == "twins" else {drawn.who}
    # Who was in few merges, or was stopped, was so on this machine.
    blamed = {each.learner.partition(".")[0] for each in found if each.detector not in MEASURED}
    if blamed - {"", *allowed}:
        return "innocent", lines
    detector, says = FAULTS[drawn.fault]
    own = [each for each in found if each.detector == detector]
    if not own or (drawn.who not in named and drawn.fault != "twins"):
        return "missed", lines
    return ("right" if says(own, drawn.at) else "vague"), lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds, and print those that are not as they should be."""
    options = argparse.ArgumentParser(prog="python -m tests.lab.suspects", description=__doc__)
    options.add_argument("--seed", type=int, default=0, help="the first seed")
    options.add_argument("--seeds", type=int, default=1, help="how many, from the first one on")
    options.add_argument("--keep", type=Path, help="keep the runs that are not as they should be")
    options.add_argument("--clean", action="store_true", help="nothing is wrong with the jobs")
    given = options.parse_args(arguments)
    counts: Counter[str] = Counter()
    for seed in range(given.seed, given.seed + given.seeds):
        drawn = draw(seed, clean=given.clean)
        folder = Path(tempfile.mkdtemp(prefix="suspects-"))
        try:
            done = run(drawn, folder)
            verdict, lines = judged(drawn, detect(done)[0])
            if verdict in {"missed", "vague"} and not far_enough(done, drawn):
                verdict = "too short"
            sound = verdict in {"quiet", "right", "too short"}
            if not sound and given.keep:
                shutil.copytree(folder / "run", given.keep / str(seed), dirs_exist_ok=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        counts[verdict] += 1
        if not sound:
            print(f"seed {seed}: {verdict}: {drawn}", *(f"  {each}" for each in lines), sep="\n")
        sys.stdout.flush()
    print(dict(counts))
    wrong = counts["named"] + counts["flagged"] + counts["innocent"]
    missed = counts["missed"] + counts["vague"]
    return 1 if wrong or missed > given.seeds / 20 else 0


if __name__ == "__main__":
    sys.exit(main())
