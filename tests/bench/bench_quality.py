"""What decoupled training is worth: the demo's held-out loss against its two baselines.

Three whole runs: ``examples/quickstart.toml`` as ``ddloco run`` runs it; a lone learner; and
data-parallel training. Both baselines take as many steps as the job's learners took on average, so
every model has seen the same number of updates; data-parallel averages the gradients of the very
batches that the learners of the job saw, so it has seen the same tokens, too.

Printed is the difference of held-out loss relative to the baseline's (positive is better than it).
The lone learner is the fair floor: the same optimizer and as many steps as each learner, on all of
the text; on one learner's third of it, it would be crippled (2.51 against 1.91). Data-parallel is
the ceiling: it exchanges all gradients at every step. Aim: 5 % or more below the lone learner's
loss.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

from tools import ROOT, say

JOB = ROOT / "examples" / "quickstart.toml"
QUICK_STEPS = 24
RUN_S_MAX = 600


def measure(quick: bool) -> dict[str, Any]:
    """Loss, steps and seconds of the three methods."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        steps = (f"job.steps={QUICK_STEPS}",) if quick else ()
        job = figures["decoupled-diloco"] = _run(Path(scratch) / "job", *steps)
        for method in ("lone", "data-parallel"):
            settings = (f"job.method={method}", f"job.steps={round(job['steps'])}")
            figures[method] = _run(Path(scratch) / method, *settings)
    for method in ("lone", "data-parallel"):
        figures[f"better than {method}"] = 1 - job["loss"] / figures[method]["loss"]
    return figures


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures in words."""
    ours = figures["decoupled-diloco"]
    return [
        f"{figures[f'better than {method}']:+.1%} held-out loss against {method}{aim}: "
        f"{ours['loss']:.4f} against {theirs['loss']:.4f} nats per byte, "
        f"{ours['steps']:.0f} and {theirs['steps']:.0f} steps of each learner, "
        f"{ours['seconds']:.0f} and {theirs['seconds']:.0f} s"
        for method, aim in (("lone", " (aim +5 %)"), ("data-parallel", ""))
        for theirs in [figures[method]]
    ]


def _run(folder: Path, *settings: str) -> dict[str, float]:
    say(f"ddloco run {JOB.name} {' '.join(settings)}")
    command = [sys.executable, "-m", "ddloco", "run", str(JOB), "--dir", str(folder)]
    begun = perf_counter()
    # subprocess.run kills the child when it takes too long or when we are interrupted.
    done = subprocess.run(
        [*command, *(f"--set={setting}" for setting in settings)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=RUN_S_MAX,
        check=False,
    )
    seconds = perf_counter() - begun
    if done.returncode:
        raise RuntimeError(done.stdout.decode(errors="replace")[-2000:])
    steps: Counter[str] = Counter()
    loss = float("nan")
    for line in (folder / "log.jsonl").read_text().splitlines():
        said = json.loads(line)
        if said["event"] == "step":
            steps[said["actor"]] = max(steps[said["actor"]], said["step"])
        elif said["event"] == "result":
            loss = said["held_out_loss"]
    say(f"held-out loss {loss:.4f} in {seconds:.0f} s")
    return {"loss": loss, "steps": sum(steps.values()) / len(steps), "seconds": seconds}
