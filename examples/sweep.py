"""Search the outer learning rate and momentum at the size of the quickstart; write what came out.

The lineage's values (0.7 and 0.9) come from large models and hundreds of inner steps between two
merges; at this size they are worse than not merging at all. Run with ``make sweep`` (about half
an hour on two idle cores); the outcome is kept in ``examples/sweep.md``.
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
"""(learning rate, momentum); the first two are DiLoCo's and Streaming DiLoCo's."""

SEEDS = (0, 1, 2)


def run(folder: Path, seed: int, *settings: str) -> tuple[float, int]:
    """One job; its held-out loss and the inner steps of its learners."""
    overrides = [f"--set={setting}" for setting in (f"job.seed={seed}", *settings)]
    command = [sys.executable, "-m", "ddloco", "run", str(JOB), "--dir", str(folder), "--overwrite"]
    subprocess.run([*command, *overrides], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    loss = next(line["held_out_loss"] for line in lines if line["event"] == "result")
    return loss, sum(line["event"] == "step" for line in lines)


def main() -> None:
    """Every point of the grid with every seed; ``sweep.py SEED...`` for some seeds only."""
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
