"""What would another quorum have cost? The same failures, the same speeds, another setting.

Run it with:  python -m examples.what_if
It takes a few seconds and writes to temporary folders. A recorded run takes the scenario's place:
``ddloco simulate runs/first --set sync.quorum=2`` simulates it with its own speeds and delays.
"""

import tempfile
from pathlib import Path

import ddloco
from examples.kill_a_learner import SCENARIO, simulate

QUORUMS = (1, 2, 4)


def row(quorum: int, folder: Path) -> str:
    """Simulate the scenario with a quorum; returns what came of it, on one line."""
    run = ddloco.open(simulate(folder, SCENARIO, f"sync.quorum={quorum}"))
    merges = run.merges
    waited = sum(merge.wait.quorum_s for merge in merges)
    learners = sum(len(merge.contributions) for merge in merges) / len(merges)
    took_s = merges[-1].at
    return f"{quorum:>6}  {took_s:>8.0f} s  {waited:>12.1f} s  {learners:>19.2f}"


def main() -> None:
    """Print a line for each quorum."""
    print("quorum  time taken  quorum waited  learners in a merge")
    for quorum in QUORUMS:
        with tempfile.TemporaryDirectory() as folder:
            print(row(quorum, Path(folder)))


if __name__ == "__main__":
    main()
