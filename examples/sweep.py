"""Search the outer learning rate and momentum at the size of the quickstart; write the results.

The usual values (0.7 and 0.9) come from large models with hundreds of inner steps between merges;
at this size others are better. Run with ``make sweep`` (about half an hour on two idle cores); the
results are in ``examples/sweep.md``.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
JOB = HERE / "sweep.toml"

GRID = [
    (0.7, 0.9),
    (0.4, 0.9),
    (0.7, 0.6),
    (1.0, 0.3),
    (0.7, 0.3),
    (1.3, 0.0),
    (1.0, 0.0),
    (0.7, 0.0),
]
"""(learning rate, momentum); the first two are those of DiLoCo and Streaming DiLoCo."""

SEEDS = (0, 1, 2)


def run(folder: Path, seed: int, *settings: str) -> tuple[float, int]:
    """Run one job; returns its held-out loss and its learners' inner steps in total."""
    overrides = [f"--set={setting}" for setting in (f"job.seed={seed}", *settings)]
    command = [sys.executable, "-m", "ddloco", "run", str(JOB), "--dir", str(folder), "--overwrite"]
    subprocess.run([*command, *overrides], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    loss = next(line["held_out_loss"] for line in lines if line["event"] == "result")
    return loss, sum(line["event"] == "step" for line in lines)


def main() -> None:
    """Run every grid point with every seed; ``sweep.py SEED...`` selects seeds."""
    seeds = tuple(int(seed) for seed in sys.argv[1:]) or SEEDS
    rows = ["| outer lr | momentum | seed | held-out loss | inner steps |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as scratch:
        for seed in seeds:
            for lr, momentum in GRID:
                outer = (f"outer.lr={lr}", f"outer.momentum={momentum}")
                loss, steps = run(Path(scratch) / "run", seed, *outer)
                rows.append(f"| {lr} | {momentum} | {seed} | {loss:.4f} | {steps} |")
                print(rows[-1], flush=True)
    head = [
        "# Outer learning rate and momentum at the size of the quickstart",
        "",
        "Made by `make sweep` from `sweep.toml`; held-out loss in nats per byte.",
        "",
    ]
    (HERE / "sweep.md").write_text("\n".join([*head, *rows, ""]))


if __name__ == "__main__":
    main()
