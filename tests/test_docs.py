"""The documentation is true: it builds, its commands exist, and the tutorial's commands work."""

import html
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ddloco.cli.parser import parser
from ddloco.debugger.divergence_screen import screen
from ddloco.job.config import Job, job_from
from ddloco.job.protocol.work import StepFinished
from ddloco.monitoring.live_display import Board
from ddloco.replayer.report import Report
from ddloco.workers.task import REQUIRED
from replay import Divergence
from tests.ddloco.debugger.conftest import simulate
from tests.pages import blocks, commands

__all__ = ["simulate"]

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES_MAX, PAGES_WORDS_MAX, WORDS_MAX = 24, 45_000, 60_000
"""Pages, their words, and the words of all documentation, decision records included."""

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
PICTURE_BYTES_MAX = 100_000
SECTIONS = ["Context", "Decision", "Consequences"]


COMMANDS = sorted({command for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    """Every `ddloco ...` line of README and of the documentation is a command that exists."""
    given = parser().parse_args(shlex.split(command)[1:])

    assert hasattr(given, "run")


def test_job_files_are_valid():
    """Every TOML block of the documentation is part of a job file, or a file of faults."""
    for page in PAGES:
        for language, text in blocks(page):
            if language == "toml":
                plain = tomllib.loads(text)
                plain = {"chaos": plain} if "seed" in plain else plain
                job = {"task": "module:function", **plain.pop("job", {})}
                job_from({"job": job, **plain}, page.name)


def test_the_task_protocol_is_whole():
    """The task on the page about tasks has the methods that ddloco asks for."""
    shown = next(text for language, text in blocks(DOCS / "own-tasks.md") if language == "python")

    assert all(f"def {name}(" in shown for name in REQUIRED)


def test_the_page_about_actors_shows_the_example():
    """Each class and function on the page about actors stands like this in the example."""
    example = (ROOT / "examples" / "parameter_server.py").read_text()
    shown = [text for language, text in blocks(DOCS / "own-actors.md") if language == "python"]
    parts = [part for text in shown for part in re.split(r"\n\n\n", text.strip())]
    parts = [part for part in parts if re.search(r"^(class|def) ", part, re.MULTILINE)]

    assert len(parts) > 3
    assert [] == [part for part in parts if f"\n{part}\n" not in example]


def test_the_python_of_the_page_about_explaining_runs(simulate, tmp_path, monkeypatch, capsys):
    """It is executed, with a run of the same kind under the same name."""
    shown = next(text for language, text in blocks(DOCS / "debugging.md") if language == "python")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "explained").symlink_to(simulate())
    monkeypatch.chdir(tmp_path)
    exec(compile(shown, "debugging.md", "exec"), {})  # noqa: S102, it is our own page
    assert capsys.readouterr().out.endswith("True\n")


@pytest.mark.slow
def test_the_python_of_the_page_about_jobs(tmp_path):
    """It is one script, which runs as it stands there; its run replays, from elsewhere, too."""
    shown = "\n".join(text for language, text in blocks(DOCS / "python.md") if language == "python")
    (tmp_path / "train.py").write_text(shown)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}

    def call(*command, cwd):
        command = [sys.executable, *command]
        ended = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        return ended.stdout

    said = call("train.py", cwd=tmp_path)
    assert "(1, 32)" in said
    assert "stopped" in said
    assert "['in', 'out']" in said
    (tmp_path / "elsewhere").mkdir()
    replay = ("-m", "ddloco", "replay", "../runs/first")
    assert "identical" in call(*replay, cwd=tmp_path / "elsewhere")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The documentation as `make docs` builds it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    made = subprocess.run(build, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr  # With --quiet no warning would count.
    return folder


def test_the_site_builds_strictly(site):
    """Every page is in the site's navigation, and every link and anchor leads somewhere."""
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    built = {path.parent.relative_to(site) for path in site.rglob("index.html")}

    assert {page for page in pages if page.name != "index"} <= built


def words_of(paths):
    """The words of some files: what has a letter or a digit, so no bar of a table."""
    return sum(any(map(str.isalnum, each)) for path in paths for each in path.read_text().split())


def test_the_documentation_is_no_longer_than_people_read():
    """A page or a record that grows makes another one shorter, or says here why it does not."""
    pages = sorted(DOCS.glob("*.md"))

    assert len(pages) <= PAGES_MAX
    assert words_of(pages) <= PAGES_WORDS_MAX
    assert words_of([*DOCS.rglob("*.md"), *ROOT.glob("*.md")]) <= WORDS_MAX


def test_every_setting_and_command_is_in_the_reference(site):
    """The pages that are made from the source name each key of a job file and each command."""
    configuration = (site / "configuration" / "index.html").read_text()
    told = (site / "commands" / "index.html").read_text()

    tables = msgspec.to_builtins(job_from({"job": {"task": "module:function"}}, "default"))
    tables["learner"] = {"factor": 1.0, "shard": 0}
    assert list(tables) == list(Job.__struct_fields__)
    for table, keys in tables.items():
        assert f"[{table}" in configuration
        assert [] == [key for key in keys if f"<code>{key}</code>" not in configuration]
    named = {command.split()[1] for command in COMMANDS if not command.split()[1].startswith("-")}
    assert len(named) > 10
    assert [] == [name for name in named if f'id="ddloco-{name}"' not in told]


def test_the_reference_is_that_of_the_source():
    """The pages about settings and commands are in the checkout as ``make reference`` writes them;
    argparse of another Python may wrap lines elsewhere."""
    where = spec_from_file_location("reference", DOCS / "reference.py")
    reference = module_from_spec(where)
    where.loader.exec_module(reference)
    assert {"configuration.md", "commands.md", "reading.md"} == set(reference.PAGES)
    for name, made in reference.PAGES.items():
        assert (DOCS / name).read_text().split() == made().split(), f"{name}: run make reference"


def test_nothing_is_loaded_from_elsewhere(site):
    """No page and no picture loads a font, a script or an image from another site."""
    text = [path.read_text() for path in (*site.rglob("*.html"), *site.rglob("*.svg"))]
    found = {each for page in text for each in re.findall(r"(?:src=|url\()\W?(https?://\S+)", page)}

    assert set() == found


def test_decisions_have_one_form():
    """Each record of a decision says its context, the decision and the consequences, in order, and
    the list of decisions leads to it."""
    listed = (DOCS / "decisions" / "index.md").read_text()
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))

    assert [int(path.name[:3]) for path in records] == [*range(1, len(records) + 1)]
    for path in records:
        text = path.read_text()
        assert re.findall("^## (.*)", text, flags=re.MULTILINE) == SECTIONS, path.name
        assert f"[{text.splitlines()[0][2:]}]({path.name})" in listed


def test_pictures_are_small():
    """Pictures load at once."""
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").glob("*.svg")}

    assert {"live.svg", "divergence.svg"} <= set(sizes)
    assert all(size <= PICTURE_BYTES_MAX for size in sizes.values())


def drawn(name):
    """The text of a picture."""
    found = re.findall(r"<text[^>]*>([^<]*)</text>", (DOCS / "pictures" / name).read_text())
    return html.unescape("".join(found)).replace("\xa0", " ")


def test_the_picture_of_a_divergence_is_of_today():
    """It is what is printed of the same difference today; draw it again with ``make pictures``."""
    command, _, rest = drawn("divergence.svg").partition("DIFFERENT")
    assert command == "ddloco replay runs/first"
    said = f"DIFFERENT{rest}"
    assert said.startswith("DIFFERENT ARITHMETIC: the loss of inner step 1 of ")
    event, number = re.search(r"\(event ([\w.-]+):(\d+)\)", said).groups()
    losses = [float(each) for each in re.search(r"loss +([\d.]+) +([\d.]+)", said).groups()]
    batch = bytes.fromhex(re.search(r"its batch \((\w+)\)", said)[1])
    then, now = (StepFinished(1, 1, loss, 8, batch) for loss in losses)
    found = Divergence(
        event, int(number), "result", "", "", {}, happened=then, values=(then, now), work=None
    )
    others = re.search(r"what follows from it, on (.*)", said)[1].split(", ")
    counts = {event: {"events": int(number) - 1}}
    report = Report(divergences=[found], dependent=others, equal=counts)
    assert screen(report, "runs/first", changed=True) == said.splitlines()


def test_the_picture_of_a_run_is_of_today():
    """It has the columns of the live display."""
    said, out = drawn("live.svg"), io.StringIO()
    board = Board(job_from({"job": {"task": "a:b", "learners": 3}}, "test"))
    Console(file=out, width=100).print(board.tables())
    headings = re.findall(r"[a-z][a-z/ :]*[a-z]", " ".join(re.findall(r"┃.*┃", out.getvalue())))
    assert "learner" in headings
    for each in headings:
        assert each in said


@pytest.mark.slow
def test_the_tutorial_works(tmp_path):
    """The tutorial's commands, typed in order in an empty folder, all succeed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for command in commands(DOCS / "tutorial.md"):
        ended = subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env={**os.environ, "PATH": path, **state},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    tapes = tmp_path / "runs" / "second" / "tapes"
    assert (tapes / "learner-1.2.tape").exists(), "learner-1 was not started again"


ROOM = r"^## (\w+): .*?```python\n(.*?)```"


@pytest.mark.parametrize(
    ("room", "shown"),
    re.findall(ROOM, (DOCS / "rooms.md").read_text(), flags=re.DOTALL | re.MULTILINE),
    ids=["clocks", "transport", "snapshot", "replay"],
)
def test_a_room_is_usable_without_ddloco(room, shown, tmp_path):
    """What its section shows runs, and imports nothing of ddloco."""
    assert f"from {room}" in shown
    assert len([line for line in shown.splitlines() if line]) <= 38
    check = "\nimport sys\nassert not [name for name in sys.modules if name.startswith('ddloco')]\n"
    (tmp_path / "shown.py").write_text(shown + check)
    words = [sys.executable, "shown.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)  # noqa: PLW1510
    assert done.returncode == 0, done.stderr
