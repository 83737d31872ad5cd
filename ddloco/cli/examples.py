"""``ddloco init``: a project that runs at once, made of an example; or all examples."""

import argparse
import math
import re
import sys
from pathlib import Path
from typing import Any

import tomli_w

from ddloco.cli.ask import complain
from ddloco.job.advice import Advice, advice, advised_tables
from ddloco.job.config import LEARNERS
from ddloco.stage.files.run_folder import make_folder
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.nodes.exit_codes import HELD
from ddloco.stage.process.terminal import quoted

EXAMPLES = "examples"
"""The folder's name in a checkout, in the installed package, and in the copy: tasks are named
``examples.MODULE:FUNCTION`` in all three."""

HERE = Path(__file__).parents[1]
SOURCES = (HERE / EXAMPLES, HERE.parent / EXAMPLES)
"""Where they are: in the package installed from a wheel, or beside it in a checkout."""

SMALL = 1e6
"""Parameters of a model that no line is too slow for."""

TASK_FILE, JOB_FILE, README_FILE = "task.py", "job.toml", "README.md"

TEMPLATES = {
    "gpt": ("tiny_gpt.py", "quickstart.toml"),
    "classifier": ("classifier.py", "classifier.toml"),
    "blank": ("blank.py", "blank.toml"),
}

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


QUESTIONS: tuple[tuple[str, str, str, type[int] | type[float]], ...] = (
    ("learners", "machines, or learners on this one", "as in the example", int),
    ("mbit", "the line of each, in Mbit/s", "they share this machine", float),
    ("parameters", "parameters of the model, such as 1e9", "as in the example", float),
)
"""What ``ddloco init`` asks at a terminal: the option, the question, what no answer means."""


def put_template(
    folder: Path, template: str, found: Advice | None = None
) -> tuple[list[Path], list[Path]]:
    """Write a project, or with the template ``examples`` all examples to ``folder/examples``;
    returns the new files, and existing ones, which are not changed."""
    source = next((each for each in SOURCES if each.is_dir()), None)
    if source is None:
        raise ConfigError(f"{SOURCES[0]}: is missing; the installation is incomplete")
    try:
        if template == EXAMPLES:
            files = sorted(each for each in source.rglob("*") if _is_example(each))
            copied = {str(each.relative_to(source)): each.read_bytes() for each in files}
            return _put(folder / EXAMPLES, copied)
        texts = _project(source, template, folder.absolute().name)
        if found is not None:
            texts[JOB_FILE] = with_advice(texts[JOB_FILE].decode(), found).encode()
        return _put(folder, texts)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder}: {error.strerror}") from None


def _is_example(path: Path) -> bool:
    return path.is_file() and path.parent.name != "__pycache__"


def with_advice(text: str, found: Advice) -> str:
    """The text of a job file with other settings; comments stay."""
    for table, settings in advised_tables(found).items():
        for key, value in settings.items():
            said = tomli_w.dumps({key: value}).strip()
            head = re.search(rf"^\[{table}\].*$", text, re.MULTILINE)
            if head is None:
                text = f"{text.rstrip()}\n\n[{table}]\n{said}\n"
                continue
            begin = head.end()
            following = re.search(r"^\[", text[begin:], re.MULTILINE)
            end = begin + following.start() if following is not None else len(text)
            own, rest = text[begin:end], text[end:]
            known = re.compile(rf"^{key} = [^ #\n]*", re.MULTILINE)
            own = known.sub(said, own) if known.search(own) else f"\n{said}{own}"
            text = text[:begin] + own + rest
    return f"# {found.reason}.\n{text}"


def _project(source: Path, template: str, name: str) -> dict[str, bytes]:
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
        target.parent.mkdir(exist_ok=True)
        try:
            with target.open("xb") as file:
                file.write(data)
            made.append(target)
        except FileExistsError:
            left.append(target)
    return made, left


def init(given: argparse.Namespace) -> int:
    try:
        made, left = put_template(given.folder, given.template, _asked(given))
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
    there = f"{quoted(['cd', given.folder])} && " if given.folder != Path() else ""
    print(f"run it with: {there}ddloco run job.toml")
    return HELD


def _asked(given: argparse.Namespace) -> Advice | None:
    """The settings for what the user has said, or was asked at a terminal; None for the
    template's."""
    answers: dict[str, Any] = {name: getattr(given, name) for name, *_ in QUESTIONS}
    asks = sys.stdin.isatty() and sys.stdout.isatty() and given.template != EXAMPLES
    if asks and not any(answers.values()):
        answers = {each[0]: _ask(*each) for each in QUESTIONS}
    for name, value in answers.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name}: {value}; want a number above zero")
    if given.template == EXAMPLES or not any(answers.values()):
        return None
    return advice(
        answers["learners"] or LEARNERS, answers["mbit"] or math.inf, answers["parameters"] or SMALL
    )


def _ask(
    name: str, question: str, otherwise: str, kind: type[int] | type[float]
) -> int | float | None:
    said = input(f"{question} (Enter: {otherwise}): ").strip()
    try:
        return kind(said) if said else None
    except ValueError:
        raise ConfigError(f"{name}: {said!r} is no number") from None
