"""A job on SkyPilot: a bash script that submits one managed job per syncer and per learner."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from ddloco.engines.orders import EngineJob, check_keys
from ddloco.stage.files.keys import PUBLIC_FILE
from ddloco.stage.files.run_folder import address_file
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.terminal import quoted
from snapshot.storage import is_url

SUBMIT = ("bash", "-s")

RESCALE = SUBMIT

SHARED = "/ddloco"
"""Where the bucket is on each machine."""

KEYS = "~/.ddloco-keys"
"""Where a machine has its own actor's key, and everybody's public ones."""

LEARNER = "@LEARNER@"
"""Stands for a learner's name in the task of all of them."""

AGAIN = (75, 129, 132, 134, 135, 136, 137, 139, 143)
"""Exit codes after which an actor is started again: it left in good order; or it was ended by
SIGHUP, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV or SIGTERM. SkyPilot has no list of codes
that are final, so it is told of the others."""

OWN = frozenset({"name", "workdir", "run", "num_nodes"})
"""Fields of a task that are written here, so the job file cannot have them."""

HEAD = """\
#!/bin/bash
# {what}:  bash THIS_FILE
# Each actor is a managed job of its own, so a lost machine restarts only the actor that it had.
set -eu
tasks=$(mktemp -d)
trap 'rm -r "$tasks"' EXIT
"""

TASK = """\

cat > "$tasks/{part}.yaml" <<'END_OF_TASK'
name: {name}-{part}
workdir: {here}
file_mounts: {mounts}
resources: {resources}
{fields}run: |
{script}
END_OF_TASK
"""

START = 'sky jobs launch --yes --detach-run {options}"$tasks/{part}.yaml"\n'

SYNCER = """\
{command} --advertise "tcp://$(echo "$SKYPILOT_NODE_IPS" | head -n 1):*" &
child=$!
trap 'kill -TERM $child' TERM
# Learners read the address in the bucket, and find there that the job has ended.
publish() {{
  cmp -s {address} {published} || cp {address} {published}
  if [ -e {address}.ended ]; then cp {address}.ended {published}.ended
  elif [ -e {published}.ended ]; then rm {published}.ended; fi
}}
while kill -0 $child 2>/dev/null; do sleep 1; publish 2>/dev/null || true; done
code=0
wait $child || code=$?
publish
# The machine goes when its job ends, and its disk with it.
case $code in
  0 | 1 | 2) mkdir -p {kept} && cp -r run/. {kept}/ || echo "the run folder is not in the bucket" ;;
esac
exit $code
"""


def launch(order: EngineJob) -> str:
    _check(order)
    parts = [HEAD.format(what=f"Starts the job {order.job.job.name} on SkyPilot")]
    parts += [_syncer(order, each) for each in order.job.syncer_names()]
    return "".join([*parts, _learners(order, 0, order.learners)])


def scale(order: EngineJob, count: int) -> str:
    _check(order)
    name = order.job.job.name
    if count > order.learners:
        head = HEAD.format(what=f"Starts more learners of {name}")
        return head + _learners(order, order.learners, count)
    lines = [
        quoted(["sky", "jobs", "cancel", "--yes", "--name", f"{name}-learner-{number}"])
        for number in range(count, order.learners)
    ]
    return "\n".join([f"# Ends learners of {name} for good.", *lines, ""])


def _check(order: EngineJob) -> None:
    table = order.settings.skypilot
    if not is_url(table.bucket) or not table.bucket.isprintable():
        said = "want a bucket in which syncers leave their addresses, such as s3://mine/first"
        raise ConfigError(f"launch.skypilot.bucket: {table.bucket[:80]!a}: {said}")
    check_keys(order)
    if not order.file.is_relative_to(order.here):
        said = "SkyPilot copies this folder to the machines, and the job file is not in it"
        raise ConfigError(f"{order.here}: {said}")
    keys = _keys(order)
    if keys is not None and keys.is_relative_to(order.here.resolve()):
        said = "SkyPilot copies the folder that it is in to all machines; keep keys elsewhere"
        raise ConfigError(f"transport.keys: {keys}: {said}")
    for role in ("syncer", "learner"):
        for field in getattr(table, role):
            if field in OWN or not field.isidentifier():
                said = "is written by ddloco" if field in OWN else "is no field of a task"
                raise ConfigError(f"launch.skypilot.{role}: {field[:80]!a} {said}")


def _syncer(order: EngineJob, actor: str) -> str:
    command = _command(order, "syncer", actor, "--bind", "tcp://*:*", "--name", actor)
    script = SYNCER.format(
        command=_with_keys(order, command),
        address=f"run/{actor}.address",
        published=_address(order, actor).removeprefix("file:"),
        kept=f"{SHARED}/{order.job.job.name}-{actor}",
    )
    return _task(order, actor, "syncer", script, "syncer") + START.format(options="", part=actor)


def _learners(order: EngineJob, first: int, count: int) -> str:
    command = _command(order, "learner", LEARNER)
    script = f"exec {_with_keys(order, command)} --name {LEARNER}\n"
    options = f'--name {order.job.job.name}-learner-"$n" '
    start = START.format(options=options, part='learner-"$n"')
    own = f"""sed s/{LEARNER}/learner-"$n"/g "$tasks/learner.yaml" > "$tasks/learner-$n.yaml"\n"""
    loop = f"for n in {' '.join(map(str, range(first, count)))}; do\n  {own}  {start}done\n"
    return _task(order, "learner", "learner", script, LEARNER) + loop


def _command(order: EngineJob, role: str, name: str, *more: str) -> list[str]:
    command = order.command(role, str(order.file.relative_to(order.here)))
    return [*command, "--dir", "run", *more, *order.connection(name, partial(_address, order))]


def _with_keys(order: EngineJob, command: list[str]) -> str:
    """A command as a shell reads it, with its keys; the shell knows where its home is."""
    return quoted(command) + (f" --keys {KEYS}" if order.job.transport.keys else "")


def _keys(order: EngineJob) -> Path | None:
    said = order.job.transport.keys
    return (order.here / said).resolve() if said else None


def _address(order: EngineJob, syncer: str) -> str:
    """The file in the bucket that has the address of a syncer, wherever that runs."""
    name = address_file(order.folder, syncer).name
    return f"file:{SHARED}/{order.job.job.name}-{name}"


def _task(order: EngineJob, part: str, role: str, script: str, key: str) -> str:
    """The task of an actor, whose machine gets no other key than ``key``."""
    fields: dict[str, Any] = dict(getattr(order.settings.skypilot, role))
    mounts: dict[str, Any] = {SHARED: {"source": order.settings.skypilot.bucket, "mode": "MOUNT"}}
    if keys := _keys(order):
        mounts |= {f"{KEYS}/{each}": str(keys / each) for each in (PUBLIC_FILE, f"{key}.key")}
        # ddloco reads keys that nobody else may read.
        script = f"chmod 700 {KEYS}\nchmod 600 {KEYS}/*\n{script}"
    recovery = {"job_recovery": {"recover_on_exit_codes": list(AGAIN)}}
    return TASK.format(
        part=part,
        name=order.job.job.name,
        here=json.dumps(str(order.here)),
        mounts=json.dumps(fields.pop("file_mounts", {}) | mounts),
        resources=json.dumps(fields.pop("resources", {}) | recovery),
        fields="".join(f"{key}: {json.dumps(each)}\n" for key, each in fields.items()),
        script="\n".join(f"  {line}".rstrip() for line in script.splitlines()),
    )
