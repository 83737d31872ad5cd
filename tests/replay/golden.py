"""Records the golden tapes again: ``python -m tests.replay.golden``, where a change of semantics
must refuse the old ones. The run is simulated without arithmetic, so that every processor agrees.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from ddloco.simulation.experiment import run_case
from ddloco.simulation.scenario import cases_of
from replay.tape import FORMAT_VERSION

FOLDER = Path(__file__).parents[1] / "tapes" / f"format-{FORMAT_VERSION}"

SCENARIO = """
[scenario]
name = "golden"
[job]
steps = 24
learners = 2
[sync]
fragments = 3
interval = 6
overlap = 2
quorum = 1
grace = 0.5
grace_steps_max = 1.0
[work]
step_s = 1.0
variance = 0.0
tensors = 3
[[chaos.fault]]
what = "crash"
who = "learner-1"
at_s = 6.0
for_s = 4.0
"""


def record(folder: Path) -> None:
    """Record the run, and put its job file and tapes into a folder."""
    with TemporaryDirectory() as name:
        made = Path(name)
        (made / "golden.toml").write_text(SCENARIO)
        [(case, scenario)] = cases_of(made / "golden.toml", [])
        run_case(case, scenario, 0, made / "run")
        (folder / "tapes").mkdir(parents=True, exist_ok=True)
        shutil.copy(made / "run" / "job.toml", folder)
        for tape in (made / "run" / "tapes").glob("*.tape"):
            shutil.copy(tape, folder / "tapes")


if __name__ == "__main__":
    record(FOLDER)
