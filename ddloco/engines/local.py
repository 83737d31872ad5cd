"""A job on this machine under the rules of an engine, for trying: a bash script that restarts."""

from collections.abc import Sequence

from ddloco.engines.orders import EngineJob
from ddloco.stage.files.run_folder import address_file
from ddloco.stage.files.toml import ConfigError
from ddloco.stage.process.terminal import quoted

SUBMIT = ("bash", "-s")
"""What reads the text and runs it, until all that it started has ended."""

RESCALE = SUBMIT

PAUSE_S = 1
"""Seconds before an actor is started again, so that one that fails at once keeps no core busy."""

HEAD = """\
#!/bin/bash
# {what}:  bash THIS_FILE
# It ends when its actors have ended. SIGTERM and Ctrl-C make them leave.
set -u
cd {here} || exit 2
out={folder}/local
mkdir -p "$out" || exit 2

# Run an actor until it ends with 0, 1 or 2, which are final, or this shell gets SIGTERM.
# 75: it left in good order, to be started again. Others, such as 137: it crashed.
keep() {{
  local name=$1 child='' code=0 left=''
  shift
  trap 'left=yes; if [ -n "$child" ]; then kill -TERM "$child" 2>/dev/null; fi' TERM INT
  echo "$BASHPID" > "$out/$name.pid"
  while [ -z "$left" ]; do
    "$@" >> "$out/$name.out" 2>&1 &
    child=$!
    code=0
    wait "$child" || code=$?
    # A signal ends wait, so wait again for what it asked to leave.
    if [ -n "$left" ]; then code=0; wait "$child" || code=$?; fi
    child=''
    case $code in 0 | 1 | 2) break ;; esac
    echo "$name ended with exit code $code"
    if [ -z "$left" ]; then sleep {pause}; fi
  done
  rm -f "$out/$name.pid"
  exit "$code"
}}

kept=()
trap 'kill -TERM "${{kept[@]}}" 2>/dev/null' TERM
trap '' INT  # Ctrl-C reaches all of them without this shell.
"""

TAIL = """\

worst=0
for each in "${kept[@]}"; do
  code=0
  wait "$each" || code=$?
  while kill -0 "$each" 2>/dev/null; do code=0; wait "$each" || code=$?; done
  if [ "$code" -gt "$worst" ]; then worst=$code; fi
done
exit "$worst"
"""

LESS = """\
#!/bin/bash
# Ends the learners {first} to {last} of {name}, for good:  bash THIS_FILE
set -u
for number in $(seq {first} {last}); do
  file={folder}/local/learner-$number.pid
  if [ -f "$file" ]; then kill -TERM "$(cat "$file")"; fi
done
"""


def launch(order: EngineJob) -> str:
    syncers = [_syncer(order, each) for each in order.job.syncer_names()]
    what = f"Runs the job {order.job.job.name} on this machine"
    return "".join([_head(order, what), *syncers, *_learners(order, 0, order.learners), TAIL])


def scale(order: EngineJob, count: int) -> str:
    if not (order.folder / "local").is_dir():
        said = "no run that was launched here; --scale changes the learners of one that runs"
        raise ConfigError(f"{order.folder}: {said}")
    if count < order.learners:
        folder, name = quoted([str(order.folder)]), order.job.job.name
        return LESS.format(first=count, last=order.learners - 1, folder=folder, name=name)
    what = f"Runs more learners of {order.job.job.name}"
    return "".join([_head(order, what), *_learners(order, order.learners, count), TAIL])


def _head(order: EngineJob, what: str) -> str:
    here, folder = quoted([str(order.here)]), quoted([str(order.folder)])
    return HEAD.format(what=what, here=here, folder=folder, pause=PAUSE_S)


def _syncer(order: EngineJob, name: str) -> str:
    lead = order.job.syncer_names()[0]
    more = ["--bind", "tcp://127.0.0.1:*"]
    more += ["--connect", f"file:{address_file(order.folder, lead)}"] if name != lead else []
    return _kept(order, "syncer", name, more)


def _learners(order: EngineJob, first: int, count: int) -> list[str]:
    addresses = [f"file:{address_file(order.folder, each)}" for each in order.job.syncer_names()]
    more = ["--connect", *addresses]
    return [_kept(order, "learner", f"learner-{n}", more) for n in range(first, count)]


def _kept(order: EngineJob, role: str, name: str, more: Sequence[str]) -> str:
    command = ["ddloco", role, str(order.file), *order.sets, "--join", "--dir", str(order.folder)]
    words = quoted([*command, "--name", name, *more])
    return f"keep {name} {words} &\nkept+=($!)\n"
