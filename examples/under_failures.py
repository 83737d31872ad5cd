"""Train a real model under simulated failures, and compare their cost.

Every case of ``under_failures.toml`` is simulated, which records tapes; the quickstart's model is
then trained along those tapes. The results are in ``under_failures.md``. Run with ``make failures``
(about five minutes on two idle cores). All cases train on the same number of batches, so failures
cost time and quality; both are shown.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
SCENARIO = HERE / "under_failures.toml"
JOB = HERE / "quickstart.toml"
DDLOCO = [sys.executable, "-m", "ddloco"]
SETTINGS = ["--set=job.name=under-failures", "--set=outer.lr=0.7", "--set=outer.momentum=0.6"]


def case(name: str, seed: int, folder: Path) -> dict[str, float]:
    """Simulate a case and train along its tapes; returns the results of both."""
    simulate = ["simulate", str(SCENARIO), "--case", name, "--seed", str(seed), "--json"]
    tapes = ["--dir", str(folder / "schedule")]
    simulated = subprocess.run([*DDLOCO, *simulate, *tapes], check=True, capture_output=True)  # noqa: S603
    train = ["run", str(JOB), "--schedule", str(folder / "schedule"), "--dir", str(folder / "run")]
    subprocess.run([*DDLOCO, *train, *SETTINGS], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    row = next(each for each in json.loads(simulated.stdout)["cases"] if each["case"] == name)
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    loss = next(line["held_out_loss"] for line in lines if line["event"] == "result")
    steps = sum(line["event"] == "step" for line in lines)
    crashes = len(list((folder / "run" / "tapes").glob("learner-*"))) - 4
    return {**row["values"], "loss": loss, "inner steps": steps, "crashes": crashes}


def main() -> None:
    """Run every case with every seed; ``under_failures.py SEED...`` selects seeds, default 1."""
    seeds = tuple(int(seed) for seed in sys.argv[1:]) or (1,)
    names = [each["name"] for each in tomllib.loads(SCENARIO.read_text())["case"]]
    rows = [
        "| case | seed | held-out loss | batches | crashes | chip goodput | uptime | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        for seed in seeds:
            for index, name in enumerate(names):
                got = case(name, seed, Path(scratch) / f"{seed}-{index}")
                rows.append(
                    f"| {name} | {seed} | {got['loss']:.4f} | {got['inner steps']} "
                    f"| {got['crashes']} | {got['chip goodput']:.1f} % | {got['uptime']:.1f} % "
                    f"| {60 * got['hours']:.1f} |"
                )
                print(rows[-1], flush=True)
    head = [
        "# A real model under simulated failures",
        "",
        "Made by `make failures` from `under_failures.toml`, with the quickstart's model and text;",
        "held-out loss in nats per byte: the project's small version of the paper's Tables 2, 3.",
        "",
    ]
    (HERE / "under_failures.md").write_text("\n".join([*head, *rows, ""]))


if __name__ == "__main__":
    main()
