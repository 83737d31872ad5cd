"""The source files of a task: its module, and what it imports from its own folder. They are kept in
the run folder (``RUN/source``), so that a changed line can be shown later."""

import difflib
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath

from clocks import read_text, replace_file
from ddloco.stage.files.run_folder import SOURCE
from ddloco.stage.files.toml import ConfigError, refused
from ddloco.stage.files.trust import is_own_source, leave_source
from ddloco.stage.process.entry_point import PACKAGES, KeptModules, pinned_name, pinned_text
from ddloco.stage.process.entry_sources import FILES_MAX, INSTALLED, root_of

FILE_BYTES_MAX = 2**20
BYTES_MAX = 4 * 2**20
"""Limits of what is kept; of a larger task only the first files are."""

LINES_SHOWN_MAX = 6
"""Changed lines that are shown of one file."""


def sources_of(module_name: str) -> dict[str, str]:
    """Return the texts of the source files that importing a task has loaded from the task's own
    folder, by path relative to that, sorted, without installed packages other than the task's
    own."""
    spec = importlib.util.find_spec(module_name)
    if spec is None or spec.origin is None:
        return {}
    root = root_of(module_name, str(Path(spec.origin).resolve()))
    top = module_name.partition(".")[0]
    installed = INSTALLED & set(root.parts)
    found: dict[str, str] = {}
    total = 0
    for name, path in sorted(_loaded_from(root)):
        own = name.partition(".")[0] == top
        if (installed and not own) or len(found) >= FILES_MAX:
            continue
        with suppress(OSError, UnicodeDecodeError):
            if path.stat().st_size > FILE_BYTES_MAX:
                continue
            text = read_text(path)
            total += len(text)
            if total > BYTES_MAX:
                break
            found[path.relative_to(root).as_posix()] = text
    return found


@cache
def is_user_code(file: str) -> bool:
    """Whether a line of this file is user code: not of ddloco, Python, or an installed package."""
    path = Path(file)
    ours = path.is_relative_to(Path(__file__).parents[1]) or not path.is_file()
    installed = INSTALLED & set(path.parts)
    return not ours and not installed and not path.is_relative_to(Path(os.__file__).parent)


def _loaded_from(root: Path) -> Iterator[tuple[str, Path]]:
    # A worker has thousands of modules from a few hundred folders, nearly all of them elsewhere.
    folders: dict[str, tuple[Path, bool]] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py"):
            continue
        folder, own = os.path.split(file)
        if folder not in folders:
            found = Path(folder).resolve()
            folders[folder] = found, found.is_relative_to(root)
        resolved, inside = folders[folder]
        path = resolved / own
        if path.is_symlink():
            path = path.resolve()
            inside = path.is_relative_to(root)
        if inside and "site-packages" not in path.relative_to(root).parts:
            yield name, path


def of_the_user(sources: Mapping[str, str]) -> dict[str, str]:
    """The source files without ddloco's own, which are among them where the task lies in a checkout
    of ddloco; every host has those."""
    root = Path(__file__).resolve().parents[2]

    def is_ours(name: str, text: str) -> bool:
        with suppress(OSError, UnicodeDecodeError):
            return name.partition("/")[0] in PACKAGES and read_text(root / name) == text
        return False

    return {name: text for name, text in sources.items() if not is_ours(name, text)}


def keep_sources(folder: Path, sources: Mapping[str, str]) -> None:
    """Write source files into a run folder; those that are there already are left alone. A file
    that cannot be written is left out: no job ends because of it."""
    for name, text in sources.items():
        path = folder / SOURCE / PurePosixPath(name)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x") as file:
                file.write(text)


def keep_received(folder: Path, sources: Mapping[str, str]) -> None:
    """Write source files that were received into a run folder, and mark them as those that this
    user has let the run execute. ``ConfigError`` if the folder has other ones, or cannot be
    written."""
    there = kept_sources(folder)
    if there and there != sources:
        [name, *_] = sorted(n for n in {*there, *sources} if there.get(n) != sources.get(n))
        raise ConfigError(
            f"{folder / SOURCE / name}: is not what was received; choose another --dir"
        )
    try:
        for name, text in sources.items():
            path = folder / SOURCE / PurePosixPath(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, [text.encode()])
    except OSError as error:
        raise refused(str(folder / SOURCE), error) from None
    leave_source(folder, sources)


def kept_sources(folder: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    root = folder / SOURCE
    for path in sorted(root.rglob("*.py"))[:FILES_MAX]:
        with suppress(OSError, UnicodeDecodeError):
            if path.is_file() and path.stat().st_size <= FILE_BYTES_MAX:
                found[path.relative_to(root).as_posix()] = read_text(path)
    return found


def kept_modules(run_folder: Path, task: str) -> KeptModules | None:
    """Return the modules that may be imported from the source that a run folder keeps; None if
    there are none: those that this user has let the run execute, or the one that is named after its
    text."""
    root = run_folder / SOURCE
    pinned = pinned_text(root, task)
    if pinned:
        return _kept(root, {f"{pinned_name(pinned)}.py": pinned})
    kept = kept_sources(run_folder)
    if not kept or not is_own_source(run_folder, kept):
        return None
    return _kept(root, kept)


def _kept(root: Path, texts: Mapping[str, str]) -> KeptModules:
    digests = {name: hashlib.sha256(text.encode()).digest() for name, text in texts.items()}
    return KeptModules(str(root.resolve()), digests)


def keeps_module(run_folder: Path, module: str) -> bool:
    """Whether the source that a run folder keeps has a module with this dotted name."""
    path = module.replace(".", "/")
    return bool({f"{path}.py", f"{path}/__init__.py"} & kept_sources(run_folder).keys())


def changed_lines(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    """Yield, in words, what differs between two sets of source files that both have something."""
    if not then or not now:
        return
    for name in sorted({*then, *now}):
        if name not in now or name not in then:
            yield f"{name}: only {'then' if name in then else 'now'}"
            continue
        before, after = then[name].splitlines(), now[name].splitlines()
        changes = [
            line
            for line in difflib.unified_diff(before, after, n=0, lineterm="")
            if not line.startswith(("---", "+++"))
        ]
        if changes:
            more = len(changes) - LINES_SHOWN_MAX
            tail = [f"and {more} more lines"] if more > 0 else []
            yield f"{name}: " + " | ".join([*changes[:LINES_SHOWN_MAX], *tail])
