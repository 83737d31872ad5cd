"""``ddloco init``: a project that runs at once, made of an example; or all examples."""

import argparse
from pathlib import Path

from ddloco.cli.ask import complain
from ddloco.stage.files.run_folder import make_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import HELD

EXAMPLES = "examples"
"""The folder's name in a checkout, in the installed package, and in the copy: tasks are named
``examples.MODULE:FUNCTION`` in all three."""

HERE = Path(__file__).parents[1]
SOURCES = (HERE / EXAMPLES, HERE.parent / EXAMPLES)
"""Where they are: in the package installed from a wheel, or beside it in a checkout."""

TASK_FILE, JOB_FILE, README_FILE = "task.py", "job.toml", "README.md"

TEMPLATES = {
    "gpt": ("tiny_gpt.py", "quickstart.toml"),
    "classifier": ("classifier.py", "classifier.toml"),
    "blank": ("blank.py", "blank.toml"),
}
"""The task and the job file that a project of each name begins with."""

README = """\
# {name}

`task.py` is what is trained, `job.toml` how. In this folder:

```
ddloco run job.toml --dir runs/first
ddloco replay runs/first
ddloco report runs/first
```

The first command trains and leaves a run folder. The second executes the run again and compares
every event. The third writes one HTML page about it.

Change `task.py`: `init` makes the parameters, `loss` is minimised, `batches` gives each learner its
data, `tokens` weighs a batch, and `evaluate`, which is optional, scores the model. Settings can be
tried without an edit: `ddloco run job.toml --set sync.quorum=2`. `ddloco doctor job.toml`
looks at the machine before a long run. `ddloco docs` lists the documentation, which is installed
with ddloco: `ddloco docs own-tasks`, `ddloco docs configuration`.
"""


def put_template(folder: Path, template: str) -> tuple[list[Path], list[Path]]:
    """Write a project, or with the template ``examples`` all examples to ``folder/examples``.

    Returns:
        The new files, and existing ones, which are not changed.

    Raises:
        ConfigError: they cannot be read or written.
    """
    source = next((each for each in SOURCES if each.is_dir()), None)
    if source is None:
        raise ConfigError(f"{SOURCES[0]}: is missing; the installation is incomplete")
    try:
        if template == EXAMPLES:
            files = sorted(each for each in source.iterdir() if each.is_file())
            return _put(folder / EXAMPLES, {each.name: each.read_bytes() for each in files})
        return _put(folder, _project(source, template, folder.absolute().name))
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None


def _project(source: Path, template: str, name: str) -> dict[str, bytes]:
    """The files of a project."""
    task, job = TEMPLATES[template]
    module = f"{EXAMPLES}.{Path(task).stem}"
    renamed = ((module, "task"), (f"{EXAMPLES}/{job}", JOB_FILE), (f"{EXAMPLES}/{task}", TASK_FILE))
    texts = {TASK_FILE: (source / task).read_text(), JOB_FILE: (source / job).read_text()}
    for old, new in renamed:
        texts = {file: text.replace(old, new) for file, text in texts.items()}
    texts[README_FILE] = README.format(name=name)
    return {file: text.encode() for file, text in texts.items()}


def _put(folder: Path, files: dict[str, bytes]) -> tuple[list[Path], list[Path]]:
    made: list[Path] = []
    left: list[Path] = []
    make_folder(folder)
    for name, data in files.items():
        target = folder / name
        try:
            with target.open("xb") as file:
                file.write(data)
            made.append(target)
        except FileExistsError:
            left.append(target)
    return made, left


def init(given: argparse.Namespace) -> int:
    """``ddloco init``: write a project, or the examples, that the user can change and run."""
    try:
        made, left = put_template(given.folder, given.template)
    except ConfigError as error:
        return complain(error)
    if given.template == EXAMPLES:
        where = given.folder / EXAMPLES
        print(f"{where}: {len(made)} files copied, {len(left)} existed and were not changed")
        return HELD
    for path in made:
        print(f"wrote {path}")
    for path in left:
        print(f"{path} exists and was not changed")
    there = given.folder != Path()
    print("run it with: " + (f"cd {given.folder} && " if there else "") + "ddloco run job.toml")
    return HELD
