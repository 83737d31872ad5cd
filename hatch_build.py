"""Puts the wheel together: all packages inside ``ddloco``, so that it claims no other name.

``clocks``, ``transport``, ``snapshot`` and ``replay`` are packages of their own in the source tree,
so that their imports can be checked, and common words in the user's ``site-packages``. In the
wheel they are parts of ``ddloco._packages``, and every import of them names them there. Nothing
else of the source changes, no line moves, and an editable install has the tree as it is.

Where there is a C compiler, the arithmetic of merges and of compression is compiled, and the wheel
is one for this platform; elsewhere numpy computes the same bits (``ddloco/workers/merge_kernel.py``
and ``quantization_kernel.py``).
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOMS = ("clocks", "replay", "snapshot", "transport")
HOME = "ddloco._packages"

KERNELS = {
    "ddloco/workers/merge_kernel.c": "ddloco/workers/_merge_kernel.so",
    "ddloco/workers/quantization_kernel.c": "ddloco/workers/_quantization_kernel.so",
}
"""Sources and the libraries that are made of them."""

COMPILE = ("-O3", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
"""No fused multiply-add: the bits must not depend on which instructions a processor has."""

COMPILE_S_MAX = 300.0

OLDEST_GLIBC = (2, 17)
"""Of 2012; whatever runs jaxlib has a newer one."""


class Rooms(BuildHookInterface):
    """Fills a wheel with the rewritten sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the wheel's tree into a temporary folder, and name it."""
        root = Path(self.root)
        if version == "editable":
            compile_kernels(root, root)
            return
        self._made = made = Path(tempfile.mkdtemp(prefix="ddloco-wheel-"))
        write_tree(root, made)
        build_data["force_include"][str(made / "ddloco")] = "ddloco"
        if compile_kernels(root, made):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform_of(made)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Delete the temporary folder."""
        del build_data, artifact_path
        if version != "editable":
            shutil.rmtree(self._made)


def compile_kernels(root: Path, made: Path) -> bool:
    """Compile the arithmetic, if this machine has a C compiler (``CC``, or ``cc``).

    Args:
        root: the source tree.
        made: the folder of the tree that gets the libraries; old ones there are deleted.

    Returns:
        Whether all libraries are there.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    done = [_compiled(compiler, root / each, made / so) for each, so in KERNELS.items()]
    return all(done)


def platform_of(made: Path) -> str:
    """Return the platform in the wheel's tag: for Linux ``manylinux`` (PEP 600), which an index
    takes, if the libraries want nothing of a C library that is newer than glibc 2.17.

    Args:
        made: the folder of the tree with the compiled libraries.
    """
    kind, _, rest = sysconfig.get_platform().replace(".", "_").partition("-")
    wanted = [
        (int(major), int(minor))
        for library in KERNELS.values()
        for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", (made / library).read_bytes())
    ]
    if kind == "linux" and wanted and max(wanted) <= OLDEST_GLIBC:
        kind = "manylinux_{}_{}".format(*OLDEST_GLIBC)
    return f"{kind}_{rest}".replace("-", "_")


def _compiled(compiler: list[str], source: Path, library: Path) -> bool:
    partial = library.with_name(f"{library.name}.partial")
    library.unlink(missing_ok=True)
    command = [*compiler, *COMPILE, "-o", str(partial), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_S_MAX)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return False
    partial.replace(library)  # A process that has the old one keeps it.
    return True


def write_tree(root: Path, made: Path) -> None:
    """Write ``ddloco`` as it is in the wheel.

    Args:
        root: the source tree.
        made: the folder into which it is written.
    """
    unread = shutil.ignore_patterns("__pycache__", *(Path(so).name for so in KERNELS.values()))
    shutil.copytree(root / "ddloco", made / "ddloco", ignore=unread)
    for room in ROOMS:
        shutil.copytree(root / room, made / "ddloco" / "_packages" / room, ignore=unread)
    for path in (made / "ddloco").rglob("*.py"):
        path.write_text(rewritten(path.read_text(), path.relative_to(made).as_posix()))
    inside = '"""The packages that are folders beside ``ddloco`` in its source tree."""\n'
    (made / "ddloco" / "_packages" / "__init__.py").write_text(inside)
    # `ddloco docs` shows them; pictures and scripts are not among them.
    for page in sorted((root / "docs").rglob("*.md")):
        copy = made / "ddloco" / page.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, copy)
    # `ddloco init` copies them from there; they import nothing but what users may.
    shutil.copytree(root / "examples", made / "ddloco" / "examples", ignore=unread)


def rewritten(text: str, name: str) -> str:
    """Return a module's text with its imports of the rooms named by their place in the wheel.

    Args:
        text: the text.
        name: what it is called in errors.

    Raises:
        ValueError: it imports a room in another form than ``from ROOM import NAME``.
    """
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        plain = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if {each.partition(".")[0] for each in plain} & {*ROOMS}:
            raise ValueError(f"{name}:{node.lineno}: write `from {plain[0]} import ...`")
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        if node.module.partition(".")[0] in ROOMS:
            line, at = lines[node.lineno - 1], node.col_offset + len("from ")
            lines[node.lineno - 1] = f"{line[:at]}{HOME}.{line[at:]}"
    return "".join(lines)
