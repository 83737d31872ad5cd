"""Two runs that should agree do not: where they part first, and of what kind the difference is.

Run it with:  python -m examples.find_the_bug
It takes a few seconds and writes to temporary folders.
"""

import tempfile
from pathlib import Path

import ddloco
from examples.kill_a_learner import SCENARIO, simulate


def main() -> None:
    """Compare a run with the same run again, with a changed setting, and with other timing."""
    with tempfile.TemporaryDirectory() as folder:
        runs = {
            "the same again": (),
            "another outer learning rate": ("outer.lr=0.69",),
            "another order of arrivals": ("scenario.seed=1",),
        }
        first = ddloco.open(simulate(_new(folder, "first"), SCENARIO))
        for title, settings in runs.items():
            other = simulate(_new(folder, title.replace(" ", "-")), SCENARIO, *settings)
            found = first.diff(other)
            print(f"{title}: {found.equal} equal, {found.differing} different")
            for line in found.recorded:
                print(f"  recorded differently: {line}")
            for difference in found.first[:1]:
                print(f"  first: {difference.what}: {difference.detail}")
                print(f"  cause: {difference.kind}; {difference.one} and {difference.other}")


def _new(folder: str, name: str) -> Path:
    made = Path(folder) / name
    made.mkdir()
    return made


if __name__ == "__main__":
    main()
