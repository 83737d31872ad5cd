"""A learner is killed, and the tapes say what that cost: simulated, explained and replayed.

Run it with:  python -m examples.kill_a_learner
It takes a few seconds and writes to a temporary folder.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import ddloco

SCENARIO = """
[scenario]
name = "kill a learner"
[job]
steps = 144
learners = 4
[sync]
fragments = 6
interval = 24
quorum = 2
[work]
variance = 0.2
arithmetic = true
[[chaos.fault]]
what = "crash"
who = "learner-1"
at_s = 60.0
for_s = 45.0
"""


def simulate(folder: Path, scenario: str, *settings: str) -> Path:
    """Run a scenario in virtual time; returns the run folder."""
    path = folder / "scenario.toml"
    path.write_text(scenario)
    run = folder / "run"
    overrides = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "ddloco", "simulate", str(path), "--dir", str(run), *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603, our own program
    return run


def explain(folder: Path) -> None:
    """Say which merges the killed learner missed, why, and how it came back."""
    run = ddloco.open(folder)
    missed = [
        (merge.t, absence)
        for merge in run.merges
        for absence in merge.absent
        if absence.learner.startswith("learner-1") and merge.t > 24  # It joined by then.
    ]
    print(f"{len(run.merges)} merges were done; learner-1 is not in {len(missed)} of them:")
    for t, absence in (missed[0], missed[-1]):
        print(f"  merge {t}: {absence.learner}: {absence.reason}, at {absence.event}")
    back = run.steps("learner-1.2")[0]
    print(f"it came back as {back.learner}; its first step is {back.event}, loss {back.loss:.1f}")
    waited = sum(merge.wait.grace_s for merge in run.merges)
    print(f"all merges together waited {waited:.1f} s for learners that were late")


def main() -> None:
    """Simulate, explain, replay."""
    with tempfile.TemporaryDirectory() as folder:
        run = simulate(Path(folder), SCENARIO)
        explain(run)
        command = [sys.executable, "-m", "ddloco", "replay", str(run)]
        subprocess.run(command, check=True)  # noqa: S603, our own program


if __name__ == "__main__":
    main()
