"""The examples, from the wheel or a checkout, copied for the user."""

import shutil
from pathlib import Path

from ddloco.config.toml import ConfigError

EXAMPLES = "examples"
"""The folder's name in a checkout, in the installed package, and in the copy: tasks are named
``examples.MODULE:FUNCTION`` in all three."""

HERE = Path(__file__).parents[1]
SOURCES = (HERE / EXAMPLES, HERE.parent / EXAMPLES)
"""Where they are: in the package installed from a wheel, or beside it in a checkout."""


def put_examples(folder: Path) -> tuple[list[Path], list[Path]]:
    """Copy the examples to ``folder/examples``; returns the new files, and existing ones not
    changed.

    Raises:
        ConfigError: they cannot be read or written.
    """
    source = next((each for each in SOURCES if each.is_dir()), None)
    if source is None:
        raise ConfigError(f"{SOURCES[0]}: is missing; the installation is incomplete")
    made: list[Path] = []
    left: list[Path] = []
    try:
        (folder / EXAMPLES).mkdir(parents=True, exist_ok=True)
        for path in sorted(each for each in source.iterdir() if each.is_file()):
            target = folder / EXAMPLES / path.name
            if target.exists():
                left.append(target)
                continue
            shutil.copyfile(path, target)
            made.append(target)
    except OSError as error:
        raise ConfigError(f"{folder / EXAMPLES}: {error.strerror}") from None
    return made, left
