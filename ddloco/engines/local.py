"""A job on this machine under the rules of an engine, for trying: a bash script that restarts."""

from collections.abc import Sequence

from ddloco.engines.orders import EngineJob
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
    actors = [*order.job.syncer_names(), *order.job.learner_names()[: order.learners]]
    what = f"Runs the job {order.job.job.name} on this machine"
    return _script(order, what, actors)


def scale(order: EngineJob, count: int) -> str:
    if not (order.folder / "local").is_dir():
        said = "no run that was launched here; --scale changes the learners of one that runs"
        raise ConfigError(f"{order.folder}: {said}")
    if count < order.learners:
        folder, name = quoted([str(order.folder)]), order.job.job.name
        return LESS.format(first=count, last=order.learners - 1, folder=folder, name=name)
    what = f"Runs more learners of {order.job.job.name}"
    return _script(order, what, order.job.learner_names()[order.learners : count])


def _script(order: EngineJob, what: str, actors: Sequence[str]) -> str:
    here, folder = quoted([str(order.here)]), quoted([str(order.folder)])
    head = HEAD.format(what=what, here=here, folder=folder, pause=PAUSE_S)
    return "".join([head, *(_kept(order, each) for each in actors), TAIL])


def _kept(order: EngineJob, name: str) -> str:
    listens = name in order.job.syncer_names()
    command = order.command("syncer" if listens else "learner")
    command += ["--dir", str(order.folder), "--name", name]
    command += ["--bind", "tcp://127.0.0.1:*"] if listens else []
    words = quoted([*command, *order.connection(name, order.address)])
    return f"keep {name} {words} &\nkept+=($!)\n"
