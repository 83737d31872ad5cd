"""``ddloco docs``: the documentation, which is part of the wheel, as plain Markdown."""

import argparse
from pathlib import Path

from ddloco.cli.ask import complain
from ddloco.stage.files.near_miss import did_you_mean
from ddloco.stage.nodes.exit_codes import HELD

HERE = Path(__file__).parents[1]
SOURCES = (HERE / "docs", HERE.parent / "docs")
"""Where the pages are: in the package installed from a wheel, or beside it in a checkout."""

FIRST = "index"


def docs(given: argparse.Namespace) -> int:
    folder = next((each for each in SOURCES if (each / f"{FIRST}.md").is_file()), None)
    if folder is None:
        return complain(f"{SOURCES[0]}: is missing; the installation is incomplete")
    pages = pages_in(folder)
    name = given.page.removesuffix(".md").removeprefix("docs/")
    if name and name not in pages:
        said = did_you_mean(name, list(pages))
        return complain(f"{given.page}: no such page{said}; ddloco docs lists all")
    if given.path:
        print(pages[name] if name else folder)
    elif name:
        print(pages[name].read_text().rstrip())
    else:
        width = max(map(len, pages))
        for each, path in pages.items():
            print(f"{each:{width}}  {title_of(path)}")
    return HELD


def pages_in(folder: Path) -> dict[str, Path]:
    """The pages by name, the first one first: ``tutorial``, or ``decisions/001-...``."""
    found = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.md"))
    }
    order = sorted(found, key=lambda name: (name != FIRST, name.startswith("decisions/")))
    return {name: found[name] for name in order}


def title_of(path: Path) -> str:
    with path.open() as file:
        return file.readline().strip("# \n")
