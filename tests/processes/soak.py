"""A soak: six learners and two shards of a syncer, something goes wrong every two seconds.

``python -m tests.processes.soak --minutes 10 --seed 7``. Processes are killed, stopped, slowed,
sent away, cut off, delayed and reset, as the seed draws it; then everything is looked at: every
invariant on the tapes (no step waited for another learner, every token has one fate), the replay to
the bit, the held-out loss beside the same steps without faults, and whether memory stayed flat.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.installed import DDLOCO, WORK, install
from tests.lab.audit import violated_in
from tests.reruns import look_at

JOB = """
[job]
name = "soak"
task = "tests.tasks:regression"
steps = 1000000
learners = 6
syncers = 2

[task]
step_s = 0.1

[sync]
fragments = 4
interval = 8

[outer]
lr = 0.7
momentum = 0.6
"""

FAULTS = """
seed = {seed}

[[storm]]
what = ["crash", "stall", "slow", "leave", "cut", "reset", "delay", "bandwidth"]
every_s = 2.5
for_s = 3.0

[[storm]]
what = ["crash", "stall"]
who = ["syncer-0", "syncer-1"]
every_s = 10.0
for_s = 1.0
"""

LOSS_WITHIN = 0.02
SETTLED_S = 60.0
BEGUN_S_MAX = 180.0
GROWTH_MAX = 1.25
"""A process that is a minute old may grow by a quarter: a few hundred arrivals fill its arena."""


Until = Callable[[Path], bool]


@dataclass
class Soak:
    """What came of one: what does not hold of that which was looked at."""

    broken: list[str] = field(default_factory=list[str])

    def say(self, holds: bool, line: str) -> None:
        """One thing that was looked at, said at once: the next may take as long as the run."""
        print(f"{'held  ' if holds else 'BROKEN'} {line}", flush=True)
        if not holds:
            self.broken.append(line)


class Memory:
    """Resident memory of a run's actors, by process, in MiB."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self.seen: dict[str, list[tuple[float, float]]] = {}

    def look(self) -> None:
        """Measure all actors that run; their workers are children and not counted."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                command = (path / "cmdline").read_text().split("\0")
                pages = int((path / "statm").read_text().split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if self._folder in " ".join(command) and {"syncer", "learner"} & set(command):
                who = f"{path.name} {'-'.join(command[-6:])}"
                self.seen.setdefault(who, []).append((time.monotonic(), pages / 256))

    def growth(self) -> float:
        """The largest growth of a process after its first minute, as a factor."""
        factors = [1.0]
        for readings in self.seen.values():
            settled = [mib for at, mib in readings if at - readings[0][0] > SETTLED_S]
            if len(settled) > 1:
                factors.append(settled[-1] / settled[0])
        return max(factors)


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A ddloco command to its end."""
    done = subprocess.run(
        [*DDLOCO, *arguments], cwd=WORK, text=True, capture_output=True, check=False
    )
    look_at(done.stdout)
    return done


def log_of(run: Path) -> list[dict]:
    """A run's log."""
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def rage(
    folder: Path, seconds: float, seed: int, memory: Memory, learners: int, until: Until
) -> tuple[int, str]:
    """Run the job under faults for so long from its first merge, and until it is as far as is
    asked for, then end it in good order."""
    (folder / "job.toml").write_text(JOB)
    (folder / "chaos.toml").write_text(FAULTS.format(seed=seed))
    command = [*DDLOCO, "run", str(folder / "job.toml"), "--dir", str(folder / "run"),
               f"--set=job.learners={learners}",
               "--processes", "--chaos", str(folder / "chaos.toml")]  # fmt: skip
    with subprocess.Popen(
        command, cwd=WORK, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        latest = time.monotonic() + BEGUN_S_MAX
        while not _begun(folder / "run", learners) and running.poll() is None:
            assert time.monotonic() < latest, f"nothing was merged in {BEGUN_S_MAX} s"
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while running.poll() is None:
            now = time.monotonic()
            if now > end + BEGUN_S_MAX or (now > end and until(folder / "run")):
                break
            memory.look()
            time.sleep(1.0)
        if running.poll() is None:
            running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=300)
    return running.returncode, said


def _begun(run: Path, learners: int) -> bool:
    """Whether each actor has a tape, and something was merged."""
    names = {path.name.partition(".")[0] for path in (run / "tapes").glob("*.tape")}
    log = run / "log.jsonl"
    return len(names) == learners + 2 and log.exists() and '"merge"' in log.read_text()


def soak(
    folder: Path,
    minutes: float,
    seed: int,
    *,
    learners: int = 6,
    compare: bool = True,
    until: Until = lambda _: True,
) -> Soak:
    """Do it all, and return the results. If need be, the run continues until it is as far as
    ``until`` asks of its folder."""
    found, run, memory = Soak(), folder / "run", Memory(folder / "run")
    code, said = rage(folder, minutes * 60, seed, memory, learners, until)
    faults = [line for line in said.splitlines() if line.startswith("chaos:")]
    found.say(code == 0, f"{minutes:g} minutes, seed {seed}: exit {code}; {' '.join(faults)}")
    results = [line for line in log_of(run) if line["event"] == "result"]
    found.say(len(results) > 0, f"the job ended with a model: {results[-1:]}")
    verified = call("tape", "verify", str(run))
    found.say(verified.returncode == 0, verified.stdout.strip().splitlines()[-1])
    for line in violated_in(run):
        found.say(False, line)
    growth = memory.growth()
    found.say(growth <= GROWTH_MAX, f"memory of a settled process grew {growth:.2f} times at most")
    replayed = call("replay", str(run))
    last = (replayed.stdout + replayed.stderr).strip().splitlines()[-1:]
    identical = replayed.returncode == 0 and "identical" in replayed.stdout
    found.say(identical, f"replay: {' '.join(last)}")
    if compare and results:
        found.say(*_beside(folder, results[-1]))
    return found


def _beside(folder: Path, result: dict) -> tuple[bool, str]:
    """The same global steps without any fault, and as slow: a step that takes no time would be
    taken more often between two syncs."""
    calm = call("run", str(folder / "job.toml"), "--dir", str(folder / "calm"),
                f"--set=job.steps={result['t']}")  # fmt: skip
    ends = [line for line in log_of(folder / "calm") if line["event"] == "result"]
    losses = [line["held_out_loss"] for line in ends]
    if calm.returncode or not losses:
        return False, f"without faults: {calm.stdout[-300:]}"
    ratio = result["held_out_loss"] / losses[-1]
    said = f"held-out loss {result['held_out_loss']:.4f}, without faults {losses[-1]:.4f}"
    return ratio <= 1 + LOSS_WITHIN, f"{said}: {ratio:.3f} times"


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.processes.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    parser.add_argument("--dir", type=Path, default=None, help="keep the run here")
    given = parser.parse_args()
    install()
    print(f"seed {given.seed}: again with --seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ddloco-soak-") as made:
        folder = given.dir or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(folder, given.minutes, given.seed)
    return 1 if found.broken else 0


if __name__ == "__main__":
    sys.exit(main())
