"""The container image without a daemon: the lines of the Dockerfile, executed in fresh roots.

Each stage gets a root that ``debootstrap`` makes once; what a line runs, copies and sets is what a
builder would do. Then the image is used as its last lines say: as its user, with its entry point,
with a root that cannot be written.
"""

import json
import os
import re
import shlex
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.release.calls import call

NEEDED = ("debootstrap", "unshare", "chroot")
SUITES = {"debian:12-slim": "bookworm"}
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
"""A mount and a process namespace of its own: what is mounted and started ends with it."""

OF_THE_HOST = ("PIP_INDEX_URL", "http_proxy", "https_proxy")
CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE")
"""Variables with which this machine reaches package indexes, where it has such: they are set while
the lines of ``RUN`` are executed, and are not part of the image."""

WRITABLE = ("tmp", "app", "dev/shm")
"""What a job may write to where the root is sealed."""


class Stage:
    """One ``FROM`` of a Dockerfile: its root, and what its lines have set so far."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"PATH": SEARCHED, "HOME": "/tmp"}  # noqa: S108, of the image
        self.user = "root"
        self.folder = "/"
        self.entry: list[str] = []

    def run(self, words: list[str], *, sealed: bool = False) -> str:
        """Run a command in the root, as its user. If it is sealed, nothing can be written but
        ``WRITABLE``, as with ``docker run --read-only``."""
        root = shlex.quote(str(self.root))
        lines = [f"mount --bind {root} {root}", f"mount -t proc proc {root}/proc"]
        if sealed:
            lines.append(f"mount -o remount,bind,ro {root}")
        lines += [f"mount --rbind /dev {root}/dev"]
        lines += [f"mount -t tmpfs -o mode=1777 own {root}/{each}" for each in WRITABLE * sealed]
        sets = shlex.join(f"{name}={value}" for name, value in self.env.items())
        inside = shlex.quote(f"cd {shlex.quote(self.folder)} && exec {shlex.join(words)}")
        user = f"--userspec={self.user}" if self.user != "root" else ""
        lines.append(f"exec chroot {user} {root} /usr/bin/env -i {sets} /bin/sh -c {inside}")
        return call(*ISOLATED, "/bin/sh", "-ec", "\n".join(lines))


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile in order: the word, and what follows it."""
    whole = re.sub(r"\s*\\\n\s*", " ", text)
    lines = [line.strip() for line in whole.splitlines()]
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1])
        for line in lines
        if line and not line.startswith("#")
    ]


class Builder:
    """Executes a Dockerfile; knows the instructions that ours uses, and refuses others."""

    def __init__(self, context: Path, home: Path) -> None:
        self.context, self.home = context, home
        self.stages: dict[str, Stage] = {}
        self.now = Stage(home)
        self.arguments: dict[str, str] = {}

    def build(self, text: str) -> Stage:
        """The last stage, when all lines have run."""
        for word, rest in instructions(text):
            getattr(self, f"_{word.lower()}")(rest)
        return self.now

    def _from(self, rest: str) -> None:
        base, *named = re.split(r"\s+AS\s+", rest)
        name = named[0] if named else "last"
        first = self.home / SUITES[base]
        if not first.exists():
            call("debootstrap", "--variant=minbase", SUITES[base], first)
            network(first)
        root = self.home / name
        call("cp", "--archive", first, root)
        self.stages[name] = self.now = Stage(root)

    def _arg(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        self.arguments[name] = value

    def _env(self, rest: str) -> None:
        self.now.env |= dict(each.split("=", 1) for each in shlex.split(rest))

    def _user(self, rest: str) -> None:
        self.now.user = rest

    def _workdir(self, rest: str) -> None:
        self.now.folder = rest
        (self.now.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _entrypoint(self, rest: str) -> None:
        self.now.entry = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        assert isinstance(json.loads(rest), list)

    def _run(self, rest: str) -> None:
        host = {name: os.environ[name] for name in OF_THE_HOST if name in os.environ}
        for name in CERTIFICATES:
            if name in os.environ:
                shutil.copy(os.environ[name], self.now.root / "host.crt")
                host[name] = "/host.crt"
        sets = [f"{name}={value}" for name, value in (host | self.arguments).items()]
        self.now.run(["/usr/bin/env", *sets, "/bin/sh", "-ec", rest])
        (self.now.root / "host.crt").unlink(missing_ok=True)

    def _copy(self, rest: str) -> None:
        words = shlex.split(rest)
        source = self.context
        if words[0].startswith("--from="):
            source = self.stages[words.pop(0).removeprefix("--from=")].root / words[0].lstrip("/")
        target = self.now.root / words[1].lstrip("/")
        unread = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.so", "dist", "runs")
        shutil.copytree(source, target, ignore=unread)


def network(root: Path) -> None:
    """Give a root what a container gets from its host to reach the mirrors that this machine
    uses."""
    for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf"):
        if Path(name).is_file():
            shutil.copy(name, root / name.lstrip("/"))
    shutil.copytree("/etc/apt/apt.conf.d", root / "etc/apt/apt.conf.d", dirs_exist_ok=True)


def checked(context: Path) -> list[str]:
    """Build the image of a checkout and train in it, or say why that cannot be done here."""
    missing = [each for each in NEEDED if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        why = f"{', '.join(missing)} missing" if missing else "only root may make a root folder"
        return [f"not checked: the image ({why})"]
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddloco-image-")))
        stage = Builder(context, home).build((context / "Dockerfile").read_text())
        used(stage)
        said = stage.run([*stage.entry, "--version"]).strip()
    return [f"the image, as user {stage.user}, with a root that cannot be written: {said}"]


def used(stage: Stage) -> None:
    """Train, replay and be stopped in it, as it is started: by its entry point, as its user."""
    entry = shlex.join(stage.entry)
    lines = [
        f"{entry} init",
        f"{entry} run job.toml --dir runs/first",
        f"{entry} replay runs/first",
        "test $(id -u) = 1000",
        "! touch /opt/here 2>/dev/null",
    ]
    stage.run(["/bin/sh", "-ec", "\n".join(lines)], sealed=True)
